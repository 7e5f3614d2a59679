/*
 * resolve.c: shows a plan and the live tensors of a worker to lua/sluice/resolve.lua, and writes the destinations that come
 * back into the plan, which checks each. The parts that thousands of targets share (ranges, view, layout) come once each,
 * as a template; a target is then a live name and a template's number.
 */
#include "script/resolve.h"

#include "base/error.h"
#include "base/memory.h"
#include "script/resolver.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_TARGETS_IN_ALL = 1 << 20 /* as plan_wire.c takes */ };

static slc_resolver *get_resolver(lua_State *L)
{
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* ---- what Lua reads ---- */

static void push_shape(lua_State *L, int ndim, const int64_t *shape)
{
    char text[SLC_MAX_DIMS * 21];
    int used = 0;
    for (int i = 0; i < ndim; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%" PRId64, i > 0 ? "," : "", shape[i]);
    lua_pushlstring(L, text, (size_t)used);
}

/* count() of parameters */
static int count_params(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)slc_plan_count(get_resolver(L)->plan));
    return 1;
}

/* param(number from 1) -> name, dtype, "4096,128", whether full is allowed */
static int read_param(lua_State *L)
{
    const slc_param *param = slc_plan_at(get_resolver(L)->plan, (size_t)slc_lua_integer(L, 1, 1, INT64_MAX) - 1);
    if (param == NULL)
        return luaL_error(L, "no such parameter");
    lua_pushstring(L, param->name);
    lua_pushstring(L, param->dtype->name);
    push_shape(L, param->ndim, param->shape);
    lua_pushboolean(L, param->allow_full);
    return 4;
}

/* live_count() */
static int count_live(lua_State *L)
{
    lua_pushnumber(L, (lua_Number)get_resolver(L)->live->count);
    return 1;
}

static const slc_live *get_live(lua_State *L)
{
    const slc_live_set *set = get_resolver(L)->live;
    size_t index = (size_t)slc_lua_integer(L, 1, 1, INT64_MAX) - 1;
    if (index >= set->count)
        luaL_error(L, "no such live tensor");
    return &set->item[index];
}

/* live(number from 1) -> name, dtype, "4096,128", whether contiguous */
static int read_live(lua_State *L)
{
    const slc_live *live = get_live(L);
    lua_pushstring(L, live->name);
    lua_pushstring(L, live->dtype->name);
    push_shape(L, live->ndim, live->shape);
    lua_pushboolean(L, slc_live_contiguous(live));
    return 4;
}

/* attributes(number from 1) -> JSON */
static int read_attributes(lua_State *L)
{
    const slc_live *live = get_live(L);
    lua_pushstring(L, live->attributes == NULL ? "{}" : live->attributes);
    return 1;
}

/* host() -> JSON or nil */
static int read_host(lua_State *L)
{
    const slc_script *script = get_resolver(L)->script;
    if (script->host == NULL)
        return 0;
    lua_pushlstring(L, script->host, script->host_length);
    return 1;
}

void slc_lua_push_meshes(lua_State *L, const slc_plan *plan, bool workers)
{
    const slc_mesh *mesh;
    lua_newtable(L);
    for (size_t i = 0; (mesh = slc_plan_mesh_at(plan, workers, i)) != NULL; i++) {
        lua_createtable(L, 0, 2);
        lua_pushstring(L, mesh->name);
        lua_setfield(L, -2, "name");
        lua_createtable(L, mesh->naxes, 0);
        for (int axis = 0; axis < mesh->naxes; axis++) {
            lua_createtable(L, 2, 0);
            lua_pushstring(L, mesh->axis_name[axis]);
            lua_rawseti(L, -2, 1);
            lua_pushinteger(L, mesh->axis[axis]);
            lua_rawseti(L, -2, 2);
            lua_rawseti(L, -2, axis + 1);
        }
        lua_setfield(L, -2, "axes");
        lua_rawseti(L, -2, (int)i + 1);
    }
}

/* meshes() of the workers */
static int read_meshes(lua_State *L)
{
    slc_lua_push_meshes(L, get_resolver(L)->plan, true);
    return 1;
}

/* ---- what Lua writes ---- */

/* A list of lists {start, step, count, select}, at most SLC_MAX_DIMS; gives how many. */
static int read_ranges(lua_State *L, int index, slc_range *range)
{
    static const int64_t LOW[4] = { 0, 1, SLC_TO_END, 0 }, HIGH[4] = { INT64_MAX, INT64_MAX, INT64_MAX, 1 };
    luaL_checktype(L, index, LUA_TTABLE);
    size_t count = lua_objlen(L, index);
    if (count > SLC_MAX_DIMS)
        return luaL_error(L, "too many dims");
    for (int dim = 0; dim < (int)count; dim++) {
        int64_t value[4];
        lua_rawgeti(L, index, dim + 1);
        luaL_checktype(L, -1, LUA_TTABLE);
        for (int i = 0; i < 4; i++) {
            lua_rawgeti(L, -1, i + 1);
            value[i] = slc_lua_integer(L, -1, LOW[i], HIGH[i]);
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
        range[dim] = (slc_range){ .start = value[0], .step = value[1], .count = value[2], .select = value[3] != 0 };
    }
    return (int)count;
}

static slc_target *next_template(lua_State *L, slc_resolver *r)
{
    if (r->ntemplates == r->capacity) {
        int capacity = r->capacity == 0 ? 64 : 2 * r->capacity;
        slc_target *grown = slc_reallocate(r->template, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for targets");
        r->template = grown;
        r->capacity = capacity;
    }
    slc_target *target = &r->template[r->ntemplates++];
    *target = (slc_target){ 0 };
    return target;
}

/*
 * template(mesh name, placements, ranges of the parameter, ranges of the live tensor, order, pad: nil or a word of PADS, dtype in
 * which it lands or nil, whether it brings the scales of the target before it) -> its number
 */
static int add_template(lua_State *L)
{
    static const char *const PADS[] = { "none", "zero", "empty", "clear", NULL }; /* as slc_pad */
    slc_resolver *r = get_resolver(L);
    slc_layout layout = { .mesh = slc_plan_mesh(r->plan, true, luaL_checkstring(L, 1)) };
    if (layout.mesh == NULL)
        return luaL_error(L, "no such mesh");
    slc_lua_read_placements(L, 2, &layout);
    slc_target *target = next_template(L, r);
    read_ranges(L, 3, target->source);
    target->view.ndim = read_ranges(L, 4, target->view.range);
    luaL_checktype(L, 5, LUA_TTABLE);
    for (int i = 0; i < SLC_MAX_DIMS && i < (int)lua_objlen(L, 5); i++) {
        lua_rawgeti(L, 5, i + 1);
        target->view.order[i] = (int8_t)slc_lua_integer(L, -1, 0, SLC_MAX_DIMS - 1);
        lua_pop(L, 1);
    }
    target->pad = (slc_pad)luaL_checkoption(L, 6, PADS[0], PADS);
    target->dtype = lua_isnoneornil(L, 7) ? NULL : slc_dtype_find(luaL_checkstring(L, 7));
    target->scales = lua_toboolean(L, 8) != 0;
    target->layout = slc_plan_layout(r->plan, &layout);
    if (target->layout == NULL)
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for a layout");
    lua_pushinteger(L, r->ntemplates);
    return 1;
}

/* blocked(number from 1, template) -> why the trainers' shards do not let the target be converted in blocks; nil where they do */
static int read_blocked(lua_State *L)
{
    slc_resolver *r = get_resolver(L);
    size_t index = (size_t)slc_lua_integer(L, 1, 1, INT64_MAX) - 1;
    if (index >= slc_plan_count(r->plan))
        return luaL_error(L, "no such parameter");
    const slc_param *param = slc_plan_at(r->plan, index);
    slc_target target = r->template[slc_lua_integer(L, 2, 1, r->ntemplates) - 1];
    for (int d = 0; d < param->ndim; d++)
        if (!slc_range_resolve(target.source[d], param->shape[d], &target.source[d]) || target.source[d].count == 0)
            return 0; /* slc_plan_set says so */
    sluice_error error = SLUICE_ERROR_INIT;
    char place[256];
    snprintf(place, sizeof place, "'%.200s'", param->name);
    if (slc_blocks_check(param, &target, place, &error) == SLUICE_OK)
        return 0;
    const char *text = strstr(error.text, place); /* behind the stage */
    lua_pushstring(L, text == NULL ? error.text : text);
    return 1;
}

/* set(number from 1, mode, reason, where, alias or nil, live name, template, live name, template, ...) */
static int set_destination(lua_State *L)
{
    static const slc_mode MODES[] = { SLC_MODE_UNRESOLVED, SLC_MODE_DIRECT, SLC_MODE_FULL, SLC_MODE_ALIAS, SLC_MODE_SKIP };
    slc_resolver *r = get_resolver(L);
    size_t index = (size_t)slc_lua_integer(L, 1, 1, INT64_MAX) - 1;
    slc_mode mode = MODES[slc_lua_integer(L, 2, 1, 4)];
    int ntargets = lua_gettop(L) < 6 ? 0 : (lua_gettop(L) - 4) / 2;
    if (ntargets > SLC_MAX_TARGETS)
        return luaL_error(L, "not a destination");
    if ((r->targets += (size_t)ntargets) > MOST_TARGETS_IN_ALL)
        slc_lua_fail(L, SLUICE_SCRIPT, "%s: the rules make more than %d targets in all", luaL_checkstring(L, 4), MOST_TARGETS_IN_ALL);
    slc_target few[8], *target = ntargets <= 8 ? few : lua_newuserdata(L, (size_t)ntargets * sizeof *target);
    for (int i = 0; i < ntargets; i++) {
        target[i] = r->template[slc_lua_integer(L, 7 + 2 * i, 1, r->ntemplates) - 1];
        target[i].live = luaL_checkstring(L, 6 + 2 * i);
    }
    slc_param destination = { .mode = mode, .reason = luaL_checkstring(L, 3), .where = luaL_checkstring(L, 4),
                              .alias_of = luaL_optstring(L, 5, NULL), .ntargets = (size_t)ntargets, .target = target };
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_plan_set(r->plan, index, &destination, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
    return 0;
}

/* companions(number from 1, list of numbers from 1) */
static int set_companions(lua_State *L)
{
    slc_resolver *r = get_resolver(L);
    size_t index = (size_t)slc_lua_integer(L, 1, 1, INT64_MAX) - 1;
    luaL_checktype(L, 2, LUA_TTABLE);
    size_t count = lua_objlen(L, 2);
    uint32_t companion[SLC_MAX_COMPANIONS] = { 0 };
    for (size_t i = 0; i < count && i < SLC_MAX_COMPANIONS; i++) {
        lua_rawgeti(L, 2, (int)i + 1);
        companion[i] = (uint32_t)slc_lua_integer(L, -1, 1, UINT32_MAX) - 1;
        lua_pop(L, 1);
    }
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_plan_set_companions(r->plan, index, companion, count, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
    return 0;
}

static void read_texts(lua_State *L, int index, slc_resolver *r, slc_texts *texts)
{
    *texts = (slc_texts){ 0 };
    luaL_checktype(L, index, LUA_TTABLE);
    size_t count = lua_objlen(L, index);
    texts->item = slc_arena_take(r->arena, count, sizeof *texts->item);
    if (texts->item == NULL)
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for a list of names");
    for (; texts->count < count; texts->count++) {
        lua_rawgeti(L, index, (int)texts->count + 1);
        size_t length;
        const char *text = luaL_checklstring(L, -1, &length);
        texts->item[texts->count] = slc_arena_text(r->arena, text, length);
        lua_pop(L, 1);
        if (texts->item[texts->count] == NULL)
            slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for a name");
    }
}

/* finish(list of unsourced live names, list of loaded ones, strict coverage, whole modules) */
static int finish(lua_State *L)
{
    slc_resolver *r = get_resolver(L);
    read_texts(L, 1, r, &r->resolution->unsourced);
    read_texts(L, 2, r, &r->resolution->loaded);
    r->resolution->strict_coverage = lua_toboolean(L, 3);
    r->resolution->whole_modules = lua_toboolean(L, 4);
    return 0;
}

void slc_resolver_push(lua_State *L, slc_resolver *resolver)
{
    static const luaL_Reg FUNCTIONS[] = {
        { "count", count_params },   { "param", read_param },       { "live_count", count_live }, { "live", read_live },
        { "host", read_host },       { "attributes", read_attributes }, { "meshes", read_meshes },
        { "template", add_template }, { "blocked", read_blocked }, { "set", set_destination }, { "companions", set_companions },
        { "finish", finish },
        { NULL, NULL },
    };
    lua_newtable(L);
    slc_lua_add(L, FUNCTIONS, resolver);
}

static int push_arguments(lua_State *L, void *context)
{
    slc_resolver *r = context;
    slc_resolver_push(L, r);
    lua_pushstring(L, r->rules);
    return 2;
}

static void keep_context(lua_State *L, int count, void *context)
{
    const slc_resolver *r = context;
    if (count < 1)
        return;
    lua_pushvalue(L, 1);
    r->resolution->context = luaL_ref(L, LUA_REGISTRYINDEX);
}

/* ---- the doors ---- */

typedef struct text {
    const char *data;
    size_t length;
} text;

static int push_text(lua_State *L, void *context)
{
    const text *t = context;
    lua_pushlstring(L, t->data, t->length);
    return 1;
}

sluice_status slc_script_describe_host(slc_script *script, const char *json, size_t length, sluice_error *error)
{
    enum { LONGEST = 1 << 20 };
    if (length > LONGEST)
        return slc_fail(error, SLUICE_INVALID, "destination", "the host's description (%zu bytes) must be at most %d bytes", length, LONGEST);
    text given = { json, length };
    sluice_status status = slc_script_call(script, "destination", "sluice.resolve", "check_host", push_text, NULL, &given, error);
    if (status != SLUICE_OK)
        return status;
    char *copy = slc_allocate(length + 1);
    if (copy == NULL)
        return slc_fail_memory(error, "destination", "the host's description", length);
    memcpy(copy, json, length);
    copy[length] = '\0';
    slc_release(script->host);
    script->host = copy;
    script->host_length = length;
    return SLUICE_OK;
}

static int push_attributes(lua_State *L, void *context)
{
    const char *const *given = context;
    lua_pushstring(L, given[0]);
    lua_pushstring(L, given[1]);
    return 2;
}

sluice_status slc_script_check_attributes(slc_script *script, const char *stage, const char *live, const char *json, sluice_error *error)
{
    const char *given[] = { live, json };
    return slc_script_call(script, stage, "sluice.check", "attributes", push_attributes, NULL, given, error);
}

sluice_status slc_resolve(slc_script *script, slc_plan *plan, const slc_live_set *live, const char *rules, slc_arena *arena,
                          slc_resolution *resolution, sluice_error *error)
{
    *resolution = (slc_resolution){ 0 };
    slc_resolver r = { .script = script, .plan = plan, .live = live, .rules = rules, .arena = arena, .resolution = resolution };
    sluice_status status = slc_script_call(script, "destination", "sluice.resolve", "resolve", push_arguments, keep_context, &r, error);
    slc_release(r.template);
    return status == SLUICE_OK ? slc_plan_complete(plan, error) : status;
}

/* ---- rule files ---- */

typedef struct taker {
    void (*take)(void *context, const slc_rule_text *text);
    void *context;
} taker;

static void take_files(lua_State *L, int count, void *context)
{
    const taker *t = context;
    for (int i = 1; count >= 1 && i <= (int)lua_objlen(L, 1); i++) {
        slc_rule_text file;
        lua_rawgeti(L, 1, i);
        lua_getfield(L, -1, "name");
        lua_getfield(L, -2, "text");
        lua_getfield(L, -3, "family");
        lua_getfield(L, -4, "folder");
        file.folder = (int)lua_tointeger(L, -1);
        file.family = lua_tostring(L, -2);
        file.text = luaL_checklstring(L, -3, &file.length);
        file.name = luaL_checkstring(L, -4);
        t->take(t->context, &file);
        lua_pop(L, 5);
    }
}

sluice_status slc_rule_texts(slc_script *script, void (*take)(void *context, const slc_rule_text *text), void *context, sluice_error *error)
{
    taker t = { take, context };
    return slc_script_call(script, "destination", "sluice.rule_file", "read_so_far", NULL, take_files, &t, error);
}

static int push_file(lua_State *L, void *context)
{
    const slc_rule_text *file = context;
    lua_pushstring(L, file->name);
    lua_pushlstring(L, file->text, file->length);
    lua_pushstring(L, file->family); /* nil for NULL */
    lua_pushinteger(L, file->folder);
    return 4;
}

sluice_status slc_rule_give(slc_script *script, const slc_rule_text *file, sluice_error *error)
{
    slc_rule_text copy = *file;
    return slc_script_call(script, "rules", "sluice.rule_file", "give", push_file, NULL, &copy, error);
}
