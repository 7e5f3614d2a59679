/*
 * explain.c: shows a plan, where its targets land on each worker and who feeds them to lua/sluice/explain.lua, and takes
 * the answer. Owns what one question makes.
 */
#include "script/explainer.h"

#include "base/error.h"
#include "base/memory.h"
#include "plan/landing.h"
#include "plan/text.h"

#include <string.h>

static const char STAGE[] = "explain";

/* ---- what Lua reads: parameters ---- */

/* world() -> trainers, workers, the worker whose live tensors are known or -1 */
static int read_world(lua_State *L)
{
    const slc_explainer *e = slc_explainer_of(L);
    lua_pushinteger(L, slc_plan_trainers(e->resolver.plan));
    lua_pushinteger(L, slc_plan_workers(e->resolver.plan));
    lua_pushinteger(L, e->question->rank);
    return 3;
}

/* mode(i) -> its mode, alone */
static int read_mode(lua_State *L)
{
    lua_pushstring(L, slc_mode_text(slc_explain_param(L)->mode));
    return 1;
}

/* decision(i) -> { mode, reason, where, alias_of, bytes, source, targets }; targets: how many routes it has */
static int read_decision(lua_State *L)
{
    const slc_param *param = slc_explain_param(L);
    char text[SLC_PLACE_TEXT];
    size_t used = 0;
    lua_newtable(L);
    slc_explain_set_text(L, "mode", slc_mode_text(param->mode));
    slc_explain_set_text(L, "reason", param->reason);
    slc_explain_set_text(L, "where", param->where);
    slc_explain_set_text(L, "alias_of", param->alias_of);
    slc_explain_set_number(L, "bytes", param->bytes);
    slc_explain_set_number(L, "targets", slc_explain_routes(param));
    slc_layout_text(param->source, text, sizeof text, &used);
    slc_explain_set_text(L, "source", text);
    return 1;
}

static bool takes_part(const slc_param *param, const slc_target *target)
{
    for (int d = 0; d < param->ndim; d++)
        if (target->source[d].select || target->source[d].count != param->shape[d])
            return true;
    return false;
}

/* target(i, t) of a direct parameter -> { live, take, view, layout, permute, pad, convert }; without what is as it is */
static int read_target(lua_State *L)
{
    slc_route route;
    static const char *const PADS[] = { "", "zero", "empty", "clear" }; /* by slc_pad */
    const slc_param *param = slc_explain_route(L, &route);
    if (param->mode != SLC_MODE_DIRECT)
        return 0;
    const slc_target *target = &param->target[route.target];
    char text[SLC_PLACE_TEXT];
    size_t used = 0;
    lua_newtable(L);
    slc_explain_set_text(L, "live", target->live);
    if (takes_part(param, target)) {
        slc_ranges_text(param->ndim, target->source, text);
        slc_explain_set_text(L, "take", text);
    }
    slc_ranges_text(target->view.ndim, target->view.range, text);
    slc_explain_set_text(L, "view", text);
    slc_layout_text(target->layout, text, sizeof text, &used);
    slc_explain_set_text(L, "layout", text);
    slc_explain_set_text(L, "pad", PADS[target->pad]);
    slc_explain_set_text(L, "convert", target->dtype == NULL ? "" : target->scales ? "scales" : target->dtype->name);
    bool permuted = false;
    lua_createtable(L, route.ndim, 0);
    for (int i = 0; i < route.ndim; i++) {
        permuted = permuted || target->view.order[i] != i;
        lua_pushinteger(L, target->view.order[i]);
        lua_rawseti(L, -2, i + 1);
    }
    if (permuted)
        lua_setfield(L, -2, "permute");
    else
        lua_pop(L, 1);
    return 1;
}

/* ---- what Lua reads: live tensors ---- */

static void push_write(lua_State *L, const slc_explainer *e, size_t index, uint32_t target)
{
    const slc_param *param = slc_plan_at(e->resolver.plan, index);
    slc_landing landing;
    sluice_error error = SLUICE_ERROR_INIT;
    slc_route route;
    sluice_status status = slc_target_land(param, &param->target[target], e->question->live, e->question->rank, &landing, &error);
    lua_newtable(L);
    slc_explain_set_number(L, "parameter", (int64_t)index + 1);
    slc_explain_set_number(L, "target", target + 1);
    if (status != SLUICE_OK) {
        slc_explain_set_text(L, "problem", error.text);
        return;
    }
    if (!landing.holds)
        return;
    slc_route_direct(param, target, &route);
    slc_explain_set_number(L, "bytes", landing.clears ? 0 : slc_route_numbers(&route, &landing.box) * landing.item);
    slc_explain_set_ranges(L, "window", e->question->live->item[landing.live].ndim, landing.range);
    if (landing.clears || slc_box_empty(&landing.box))
        return;
    slc_explain_set_source(L, &route, &landing.box);
    slc_explain_set_live(L, &param->target[target], &route, &landing.box);
}

/*
 * writes(live name) -> { { parameter, target, bytes, window, source, live } or { parameter, target, problem }, ... }, the
 * targets that name it; without a window where this worker gets nothing, without a source where all of it is padding
 */
static int read_writes(lua_State *L)
{
    const slc_explainer *e = slc_explainer_of(L);
    const char *name = luaL_checkstring(L, 1);
    int count = 0;
    lua_newtable(L);
    for (size_t i = 0; i < slc_plan_count(e->resolver.plan); i++) {
        const slc_param *param = slc_plan_at(e->resolver.plan, i);
        for (uint32_t target = 0; param->mode == SLC_MODE_DIRECT && target < param->ntargets; target++) {
            if (strcmp(param->target[target].live, name) != 0)
                continue;
            push_write(L, e, i, target);
            lua_rawseti(L, -2, ++count);
        }
    }
    return 1;
}

/* shared(live number) -> names of other live tensors that lie on some of the same memory */
static int read_shared(lua_State *L)
{
    const slc_live_set *set = slc_explainer_of(L)->question->live;
    size_t index = slc_explain_index(L, 1);
    int count = 0;
    lua_newtable(L);
    if (index >= set->count || set->item[index].data == NULL)
        return 1;
    uintptr_t low, high, from, to;
    slc_live_span(&set->item[index], &low, &high);
    for (size_t i = 0; i < set->count; i++) {
        slc_live_span(&set->item[i], &from, &to);
        if (i == index || set->item[i].data == NULL || from >= high || low >= to)
            continue;
        lua_pushstring(L, set->item[i].name);
        lua_rawseti(L, -2, ++count);
    }
    return 1;
}

/* ---- what Lua reads: errors ---- */

/* raised() -> text and status of the error that C raised last */
static int read_raised(lua_State *L)
{
    const sluice_error *raised = &slc_explainer_of(L)->resolver.script->raised;
    lua_pushstring(L, raised->text);
    lua_pushinteger(L, raised->status);
    return 2;
}

static void push_uncovered(lua_State *L, const slc_resolver *r, const slc_coverage *coverage)
{
    lua_createtable(L, (int)coverage->nuncovered, 0);
    for (size_t i = 0; i < coverage->nuncovered; i++) {
        lua_newtable(L);
        slc_explain_set_text(L, "name", r->live->item[coverage->uncovered[i].live].name);
        slc_explain_set_number(L, "bytes", coverage->uncovered[i].bytes);
        lua_rawseti(L, -2, (int)i + 1);
    }
}

/* check() of a plan whose destinations are all set -> what a worker's init would refuse or nil, { { name, bytes }, ... } unwritten,
   nil where it is refused before that is known */
static int check_plan(lua_State *L)
{
    const slc_explainer *e = slc_explainer_of(L);
    const slc_resolver *r = &e->resolver;
    slc_coverage coverage = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_plan_complete(r->plan, &error);
    if (status == SLUICE_OK)
        status =
            slc_coverage_check(r->plan, r->live, e->question->rank, r->resolution->whole_modules, r->arena, &coverage, &error);
    bool covered = status == SLUICE_OK;
    if (covered)
        status = slc_resolution_check(r->resolution, &coverage, r->live, &error);
    if (status == SLUICE_NO_MEMORY)
        slc_lua_raise(L, &error);
    if (status == SLUICE_OK)
        lua_pushnil(L);
    else
        lua_pushstring(L, error.text);
    if (covered)
        push_uncovered(L, r, &coverage);
    else
        lua_pushnil(L);
    return 2;
}

/* ---- the doors ---- */

static int push_question(lua_State *L, void *context)
{
    static const luaL_Reg FUNCTIONS[] = {
        { "world", read_world },   { "mode", read_mode },     { "decision", read_decision },
        { "target", read_target }, { "writes", read_writes }, { "shared", read_shared },
        { "raised", read_raised }, { "check", check_plan },   { NULL, NULL },
    };
    slc_explainer *e = context;
    slc_resolver_push(L, &e->resolver);
    slc_lua_add(L, FUNCTIONS, e);
    slc_lua_add(L, slc_explain_workers, e);
    lua_newtable(L);
    lua_pushstring(L, e->question->name);
    lua_setfield(L, -2, "name");
    lua_pushboolean(L, e->question->one_rank);
    lua_setfield(L, -2, "one_rank");
    lua_pushboolean(L, e->question->all);
    lua_setfield(L, -2, "all");
    if (e->resolver.resolution->context != 0)
        lua_rawgeti(L, LUA_REGISTRYINDEX, e->resolver.resolution->context);
    else
        lua_pushstring(L, e->resolver.rules);
    return 3;
}

static void take_answer(lua_State *L, int count, void *context)
{
    slc_explainer *e = context;
    if (count < 1 || lua_type(L, 1) != LUA_TSTRING)
        luaL_error(L, "no answer");
    e->answer = slc_duplicate(lua_tostring(L, 1));
    if (e->answer == NULL)
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for an answer");
    if (count < 2)
        return;
    lua_pushvalue(L, 2);
    e->resolver.resolution->context = luaL_ref(L, LUA_REGISTRYINDEX);
}

static sluice_status ask(slc_script *script, slc_plan *plan, slc_resolution *resolution, const slc_question *question,
                         const char *stage, const char *module, const char *function, char **json, sluice_error *error)
{
    *json = NULL;
    slc_arena arena = { 0 };
    slc_explainer e = { .question = question };
    e.resolver = (slc_resolver){ .script = script,
                                 .plan = plan,
                                 .live = question->live,
                                 .rules = question->rules,
                                 .arena = &arena,
                                 .resolution = resolution };
    int32_t workers = slc_plan_workers(plan);
    e.row = (slc_mesh){ .name = "", .first = slc_plan_trainers(plan), .size = workers, .naxes = 1, .axis = { workers } };
    e.everyone = (slc_layout){ .mesh = &e.row };
    sluice_status status = slc_script_call(script, stage, module, function, push_question, take_answer, &e, error);
    slc_piece_list_clear(&e.pieces);
    slc_release(e.schedule);
    slc_release(e.resolver.template);
    slc_arena_clear(&arena);
    *json = status == SLUICE_OK ? e.answer : NULL;
    if (status != SLUICE_OK)
        slc_release(e.answer);
    return status;
}

sluice_status slc_explain(slc_script *script, slc_plan *plan, const slc_resolution *resolution, const slc_question *question,
                          char **json, sluice_error *error)
{
    slc_resolution asked = *resolution; /* nothing is written to it: the plan has its destinations */
    return ask(script, plan, &asked, question, STAGE, "sluice.explain", "plan", json, error);
}

sluice_status slc_explain_rules(slc_script *script, slc_plan *plan, const slc_question *question, char **json,
                                sluice_error *error)
{
    slc_resolution resolution = { 0 };
    return ask(script, plan, &resolution, question, STAGE, "sluice.explain", "rules", json, error);
}

sluice_status slc_audit(slc_script *script, slc_plan *plan, const slc_question *question, slc_resolution *resolution, char **json,
                        sluice_error *error)
{
    *resolution = (slc_resolution){ 0 };
    sluice_status status = ask(script, plan, resolution, question, "destination", "sluice.audit", "open", json, error);
    resolution->unsourced = resolution->loaded = (slc_texts){ 0 }; /* they were of that call */
    return status;
}

sluice_status slc_audit_rules(slc_script *script, slc_plan *plan, const slc_resolution *resolution, const slc_question *question,
                              char **json, sluice_error *error)
{
    slc_resolution asked = *resolution;
    return ask(script, plan, &asked, question, "destination", "sluice.audit", "rules", json, error);
}
