/*
 * planned.c: `open`: a job's plan that is kept, for any number of questions: what its parameters and live tensors are, what its
 * rules decide, who sends what to whom. Moves nothing. Owns the planning until Lua lets go of it.
 */
#include "cli/native.h"

#include "base/error.h"
#include "cli/flow.h"
#include "cli/planning.h"
#include "cli/rehearse.h"
#include "plan/program.h"
#include "plan/text.h"
#include "script/call.h"
#include "script/explain.h"
#include "script/resolver.h"

#include <string.h>

static const char TYPE[] = "sluice.planned";

typedef struct planned {
    slc_planning base;
    slc_job job;
    slc_resolution resolution;
} planned;

static planned *get_planned(lua_State *L)
{
    planned *p = luaL_checkudata(L, 1, TYPE);
    if (p->base.plan == NULL)
        luaL_error(L, "this plan is closed");
    return p;
}

static slc_question question_of(const planned *p)
{
    return (slc_question){ .name = "", .live = &p->base.live, .rank = p->job.rank, .rules = p->job.rules };
}

static void set_text(lua_State *L, const char *key, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return;
    lua_pushstring(L, text);
    lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void set_shape(lua_State *L, int ndim, const int64_t *shape)
{
    lua_createtable(L, ndim, 0);
    for (int i = 0; i < ndim; i++) {
        lua_pushnumber(L, (double)shape[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "shape");
}

/* ---- what is asked ---- */

/* The live tensors that a direct parameter lands in, each once. */
static void set_into(lua_State *L, const slc_param *param)
{
    int count = 0;
    lua_newtable(L);
    for (size_t t = 0; t < param->ntargets; t++) {
        bool seen = false;
        for (size_t before = 0; before < t && !seen; before++)
            seen = strcmp(param->target[before].live, param->target[t].live) == 0;
        if (seen)
            continue;
        lua_pushstring(L, param->target[t].live);
        lua_rawseti(L, -2, ++count);
    }
    lua_setfield(L, -2, "into");
}

void slc_native_push_params(lua_State *L, const slc_plan *plan)
{
    char text[4096];
    lua_createtable(L, (int)slc_plan_count(plan), 0);
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        size_t used = 0;
        lua_createtable(L, 0, 10);
        set_text(L, "name", param->name);
        set_text(L, "dtype", param->dtype->name);
        set_shape(L, param->ndim, param->shape);
        set_number(L, "bytes", (double)param->bytes);
        slc_layout_text(param->source, text, sizeof text, &used);
        set_text(L, "source", text);
        set_text(L, "mode", slc_mode_text(param->mode));
        set_text(L, "reason", param->reason);
        set_text(L, "where", param->where);
        slc_plan_destination_text(plan, i, text, sizeof text);
        set_text(L, "destination", text);
        set_into(L, param);
        lua_rawseti(L, -2, (int)i + 1);
    }
}

/* params() */
static int read_params(lua_State *L)
{
    slc_native_push_params(L, get_planned(L)->base.plan);
    return 1;
}

/* live() -> { { name, dtype, shape, bytes }, ... } of the job's worker */
static int read_live(lua_State *L)
{
    const planned *p = get_planned(L);
    lua_createtable(L, (int)p->base.live.count, 0);
    for (size_t i = 0; i < p->base.live.count; i++) {
        const slc_live *live = &p->base.live.item[i];
        lua_createtable(L, 0, 4);
        set_text(L, "name", live->name);
        set_text(L, "dtype", live->dtype->name);
        set_shape(L, live->ndim, live->shape);
        set_number(L, "bytes", (double)slc_live_bytes(live));
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

static void set_meshes(lua_State *L, const slc_plan *plan, bool workers, const char *key)
{
    slc_lua_push_meshes(L, plan, workers);
    lua_setfield(L, -2, key);
}

/* topology() -> { trainers, workers, rank, trainer_meshes, worker_meshes } */
static int read_topology(lua_State *L)
{
    const planned *p = get_planned(L);
    lua_newtable(L);
    set_number(L, "trainers", slc_plan_trainers(p->base.plan));
    set_number(L, "workers", slc_plan_workers(p->base.plan));
    set_number(L, "rank", p->job.rank);
    set_meshes(L, p->base.plan, false, "trainer_meshes");
    set_meshes(L, p->base.plan, true, "worker_meshes");
    return 1;
}

static int give_json(lua_State *L, sluice_status status, char *json, const sluice_error *error)
{
    if (status != SLUICE_OK)
        return slc_native_fail(L, error);
    lua_pushstring(L, json);
    slc_release(json);
    return 1;
}

static bool is_set(lua_State *L, int index, const char *key)
{
    lua_getfield(L, index, key);
    bool set = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return set;
}

/* explain({ name =, one_rank =, all =, afresh = }) -> the answer as JSON; afresh: every parameter is decided again */
static int explain(lua_State *L)
{
    planned *p = get_planned(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_getfield(L, 2, "name");
    slc_question question = question_of(p);
    question.name = luaL_checkstring(L, -1);
    question.one_rank = is_set(L, 2, "one_rank");
    question.all = is_set(L, 2, "all");
    char *json = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = is_set(L, 2, "afresh")
                               ? slc_explain_rules(p->base.script, p->base.plan, &question, &json, &error)
                               : slc_explain(p->base.script, p->base.plan, &p->resolution, &question, &json, &error);
    return give_json(L, status, json, &error);
}

/* rules() -> what each rule decides, as JSON: lua/sluice/audit.lua */
static int audit_rules(lua_State *L)
{
    planned *p = get_planned(L);
    slc_question question = question_of(p);
    char *json = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_audit_rules(p->base.script, p->base.plan, &p->resolution, &question, &json, &error);
    return give_json(L, status, json, &error);
}

/* flow(rank) -> what this rank sends or receives: see flow.h */
static int read_flow(lua_State *L)
{
    const planned *p = get_planned(L);
    int32_t rank = (int32_t)luaL_checkint(L, 2);
    if (rank < 0 || rank >= slc_plan_trainers(p->base.plan) + slc_plan_workers(p->base.plan))
        return luaL_error(L, "no such rank");
    return slc_flow_push(L, p->base.plan, rank);
}

/* traffic(places) -> what moves between all ranks: see native.h */
static int read_traffic(lua_State *L)
{
    return slc_native_push_traffic(L, get_planned(L)->base.plan);
}

/* parts(name) -> how both sides cut a parameter: see parts.c; nothing where there is none of that name */
static int read_parts(lua_State *L)
{
    const slc_plan *plan = get_planned(L)->base.plan;
    size_t index = slc_plan_find(plan, luaL_checkstring(L, 2));
    if (index == SIZE_MAX)
        return 0;
    slc_native_push_parts(L, plan, index);
    return 1;
}

/* digests() -> of the source plan, of the destinations: as the engines that agree on this plan have them; or nil, text, status */
static int read_digests(lua_State *L)
{
    const planned *p = get_planned(L);
    char digest[SLC_DIGEST_TEXT];
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_plan_digest_destinations(p->base.plan, digest, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    lua_pushstring(L, p->base.info.computed_digest);
    lua_pushstring(L, digest);
    return 2;
}

/*
 * rehearse({ numbers of parameters, from 1 }) -> bytes that were verified; or nil, text, status. The plan has no mistakes.
 * See rehearse.h.
 */
static int rehearse(lua_State *L)
{
    const planned *p = get_planned(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    slc_program program = { 0 };
    uint64_t bytes = 0;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_program_compile(p->base.plan, &p->base.live, p->job.rank, &program, &error);
    for (int i = 1; status == SLUICE_OK && i <= (int)lua_objlen(L, 2); i++) {
        lua_rawgeti(L, 2, i);
        size_t index = (size_t)lua_tointeger(L, -1) - 1;
        lua_pop(L, 1);
        status = index < slc_plan_count(p->base.plan)
                     ? slc_rehearse(p->base.plan, &p->base.live, &program, index, &bytes, &error)
                     : slc_fail(&error, SLUICE_INVALID, "dry run", "there is no parameter number %zu", index + 1);
    }
    slc_program_clear(&program);
    if (status != SLUICE_OK)
        return slc_native_fail(L, &error);
    lua_pushnumber(L, (double)bytes);
    return 1;
}

static void end(planned *p)
{
    slc_planning_end(&p->base);
    slc_job_clear(&p->job);
}

/* close() */
static int close_planned(lua_State *L)
{
    end(luaL_checkudata(L, 1, TYPE));
    return 0;
}

static planned *new_planned(lua_State *L)
{
    static const luaL_Reg methods[] = {
        { "params", read_params },  { "live", read_live }, { "topology", read_topology }, { "explain", explain },
        { "rules", audit_rules },   { "flow", read_flow }, { "traffic", read_traffic },   { "parts", read_parts },
        { "digests", read_digests }, { "rehearse", rehearse },    { "close", close_planned },   { NULL, NULL },
    };
    planned *p = lua_newuserdata(L, sizeof *p);
    *p = (planned){ .job = { .listen_fd = -1, .key_fd = -1 } };
    if (luaL_newmetatable(L, TYPE)) {
        lua_newtable(L);
        luaL_register(L, NULL, methods);
        lua_setfield(L, -2, "__index");
        lua_pushcfunction(L, close_planned);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return p;
}

/* open(job) -> the plan, what is wrong with it as JSON. The job is a worker's. */
int slc_native_plan_open(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    planned *p = new_planned(L);
    sluice_error error = SLUICE_ERROR_INIT;
    char *json = NULL;
    sluice_status status = slc_job_read(L, 1, &p->job, &error);
    if (status == SLUICE_OK)
        status = slc_planning_begin(&p->base, &p->job, &error);
    if (status == SLUICE_OK)
        slc_script_watch_alike(p->base.script, slc_lua_script(L));
    if (status == SLUICE_OK) {
        slc_question question = question_of(p);
        status = slc_audit(p->base.script, p->base.plan, &question, &p->resolution, &json, &error);
    }
    if (status == SLUICE_OK)
        return 1 + give_json(L, status, json, &error);
    end(p);
    return slc_native_fail(L, &error);
}
