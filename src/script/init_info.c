/*
 * init_info.c: hands init info to lua/sluice/init_info.lua, which knows the rules, and builds the plan that it describes.
 * Lua gives each mesh, each different layout and each parameter once, already checked; C checks again what it must rely on.
 */
#include "script/init_info.h"

#include "base/error.h"
#include "base/memory.h"
#include "script/json.h"

#include <string.h>

static const size_t LONGEST = (size_t)256 << 20;

typedef struct builder {
    const char *json;
    size_t length;
    slc_init_info *info;
    bool *met;
    slc_plan *plan;
    slc_layout *layout; /* by the number that Lua knows it by, less one */
    int nlayouts, capacity;
    char **sealed;
} builder;

static builder *get_builder(lua_State *L)
{
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* ---- what Lua calls while it reads ---- */

/* json() -> as core.json, of the text that C holds: it is never copied into Lua whole */
static int read_json(lua_State *L)
{
    const builder *b = get_builder(L);
    if (b->length > LONGEST)
        slc_lua_fail(L, SLUICE_INVALID, "JSON (%zu bytes) must be at most %zu bytes", b->length, LONGEST);
    return slc_json_decode(L, b->json, b->length);
}

/* meet(address, port, trainers, world size) */
static int meet(lua_State *L)
{
    builder *b = get_builder(L);
    size_t length;
    const char *address = luaL_checklstring(L, 1, &length);
    if (length >= sizeof b->info->address)
        return luaL_error(L, "address too long");
    memcpy(b->info->address, address, length + 1);
    b->info->port = (uint16_t)slc_lua_integer(L, 2, 1, UINT16_MAX);
    b->info->trainers = (int32_t)slc_lua_integer(L, 3, 1, INT32_MAX);
    b->info->world_size = (int32_t)slc_lua_integer(L, 4, 1, INT32_MAX);
    *b->met = true;
    return 0;
}

/* open(trainers, workers): the plan, empty */
static int open_plan(lua_State *L)
{
    builder *b = get_builder(L);
    int32_t trainers = (int32_t)slc_lua_integer(L, 1, 1, INT32_MAX), workers = (int32_t)slc_lua_integer(L, 2, 1, INT32_MAX);
    if (b->plan == NULL)
        b->plan = slc_plan_create(trainers, workers);
    if (b->plan == NULL)
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for a plan");
    return 0;
}

static slc_plan *need_plan(lua_State *L)
{
    builder *b = get_builder(L);
    if (b->plan == NULL)
        luaL_error(L, "the plan is not open");
    return b->plan;
}

/* mesh(of workers, name, {axis name, size, axis name, size, ...}) */
static int add_mesh(lua_State *L)
{
    slc_plan *plan = need_plan(L);
    slc_mesh mesh = { .name = luaL_checkstring(L, 2), .first = lua_toboolean(L, 1) ? slc_plan_trainers(plan) : 0 };
    size_t entries = lua_objlen(L, 3);
    if (entries > 2 * SLC_MAX_AXES)
        return luaL_error(L, "too many axes");
    luaL_checkstack(L, SLC_MAX_AXES, "axes"); /* the names stay on the stack, so that they stay valid */
    for (; mesh.naxes < (int)entries / 2; mesh.naxes++) {
        lua_rawgeti(L, 3, 2 * mesh.naxes + 2);
        mesh.axis[mesh.naxes] = (int32_t)slc_lua_integer(L, -1, 1, INT32_MAX);
        lua_pop(L, 1);
        lua_rawgeti(L, 3, 2 * mesh.naxes + 1);
        mesh.axis_name[mesh.naxes] = luaL_checkstring(L, -1);
    }
    const slc_mesh *added;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_plan_add_mesh(plan, &mesh, &added, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
    return 0;
}

/* One placement from five numbers: axis, dim or -1, parts or pin, kind of split, chunk. */
static slc_placement read_placement(lua_State *L, int index)
{
    static const int64_t LOW[5] = { 0, -1, 0, 0, 0 };
    static const int64_t HIGH[5] = { SLC_MAX_AXES - 1, SLC_MAX_DIMS - 1, INT32_MAX, SLC_SPLIT_CHUNK, INT64_MAX };
    int64_t value[5];
    luaL_checktype(L, index, LUA_TTABLE);
    for (int i = 0; i < 5; i++) {
        lua_rawgeti(L, index, i + 1);
        value[i] = slc_lua_integer(L, -1, LOW[i], HIGH[i]);
        lua_pop(L, 1);
    }
    slc_placement placement = { .kind = value[1] < 0 ? SLC_PIN : SLC_SHARD, .axis = (int)value[0] };
    if (placement.kind == SLC_PIN) {
        placement.coordinate = (int32_t)value[2];
        return placement;
    }
    placement.dim = (int)value[1];
    placement.parts = (int32_t)value[2];
    placement.split = (slc_split)value[3];
    placement.chunk = value[4];
    return placement;
}

int slc_lua_read_placements(lua_State *L, int index, slc_layout *layout)
{
    luaL_checktype(L, index, LUA_TTABLE);
    size_t count = lua_objlen(L, index);
    if (count > SLC_MAX_AXES)
        return luaL_error(L, "too many placements");
    for (layout->nplacements = 0; layout->nplacements < (int)count; layout->nplacements++) {
        lua_rawgeti(L, index, layout->nplacements + 1);
        layout->placement[layout->nplacements] = read_placement(L, lua_gettop(L));
        lua_pop(L, 1);
    }
    return 0;
}

/* layout(mesh name, list of placements) -> its number */
static int add_layout(lua_State *L)
{
    builder *b = get_builder(L);
    const slc_mesh *mesh = slc_plan_mesh(need_plan(L), false, luaL_checkstring(L, 1));
    if (mesh == NULL)
        return luaL_error(L, "no such mesh");
    if (b->nlayouts == b->capacity) {
        int capacity = b->capacity == 0 ? 64 : 2 * b->capacity;
        slc_layout *grown = slc_reallocate(b->layout, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for layouts");
        b->layout = grown;
        b->capacity = capacity;
    }
    slc_layout layout = { .mesh = mesh };
    slc_lua_read_placements(L, 2, &layout);
    b->layout[b->nlayouts++] = layout;
    lua_pushinteger(L, b->nlayouts);
    return 1;
}

/* param(name, dtype, shape, layout's number, allow full) */
static int add_param(lua_State *L)
{
    builder *b = get_builder(L);
    slc_param param = { .name = luaL_checkstring(L, 1), .dtype = slc_dtype_find(luaL_checkstring(L, 2)) };
    int64_t number = slc_lua_integer(L, 4, 1, b->nlayouts);
    size_t ndim = lua_objlen(L, 3);
    if (param.dtype == NULL || ndim > SLC_MAX_DIMS)
        return luaL_error(L, "not a checked parameter");
    for (; param.ndim < (int)ndim; param.ndim++) {
        lua_rawgeti(L, 3, param.ndim + 1);
        param.shape[param.ndim] = slc_lua_integer(L, -1, 1, INT64_MAX);
        lua_pop(L, 1);
    }
    param.source = &b->layout[number - 1];
    param.allow_full = lua_toboolean(L, 5);
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_plan_add(need_plan(L), &param, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
    return 0;
}

/* digests(told or nil, computed) */
static int set_digests(lua_State *L)
{
    slc_init_info *info = get_builder(L)->info;
    size_t told, computed;
    const char *told_text = luaL_optlstring(L, 1, "", &told), *computed_text = luaL_checklstring(L, 2, &computed);
    if (told >= SLC_DIGEST_TEXT || computed >= SLC_DIGEST_TEXT)
        return luaL_error(L, "digest too long");
    memcpy(info->told_digest, told_text, told + 1);
    memcpy(info->computed_digest, computed_text, computed + 1);
    return 0;
}

static int base64_value(unsigned char c)
{
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c == '\0' ? NULL : strchr(ALPHABET, c);
    return found == NULL ? -1 : (int)(found - ALPHABET);
}

/* unique_id(base64) -> whether it is exactly 128 bytes; 128 bytes are 42 groups of 4 letters, then 3 letters and "=" */
static int set_unique_id(lua_State *L)
{
    slc_init_info *info = get_builder(L)->info;
    enum { LETTERS = 171 };
    size_t length;
    const char *text = luaL_checklstring(L, 1, &length);
    unsigned bits = 0, nbits = 0;
    size_t count = 0;
    bool good = length == LETTERS + 1 && text[LETTERS] == '=';
    for (size_t i = 0; good && i < LETTERS; i++) {
        int value = base64_value((unsigned char)text[i]);
        good = value >= 0;
        bits = bits << 6 | (unsigned)(value & 63);
        nbits += 6;
        if (nbits >= 8) {
            nbits -= 8;
            info->unique_id[count++] = (unsigned char)(bits >> nbits);
        }
    }
    good = good && (bits & ((1u << nbits) - 1)) == 0; /* what the last letter holds too much is zero */
    if (!good)
        memset(info->unique_id, 0, sizeof info->unique_id);
    info->has_unique_id = good;
    lua_pushboolean(L, good);
    return 1;
}

/* max_cta(number) */
static int set_max_cta(lua_State *L)
{
    get_builder(L)->info->max_cta = (int32_t)slc_lua_integer(L, 1, 1, INT32_MAX);
    return 0;
}

static int push_builder(lua_State *L, void *context)
{
    static const luaL_Reg FUNCTIONS[] = {
        { "json", read_json },       { "meet", meet },           { "open", open_plan },          { "mesh", add_mesh },
        { "layout", add_layout },    { "param", add_param },     { "digests", set_digests },     { "unique_id", set_unique_id },
        { "max_cta", set_max_cta },  { NULL, NULL },
    };
    lua_newtable(L);
    for (const luaL_Reg *f = FUNCTIONS; f->name != NULL; f++) {
        lua_pushlightuserdata(L, context);
        lua_pushcclosure(L, f->func, 1);
        lua_setfield(L, -2, f->name);
    }
    return 1;
}

/* ---- the doors ---- */

static sluice_status call(slc_script *script, const char *function, void (*take)(lua_State *L, int count, void *context), builder *b,
                          sluice_error *error)
{
    static const char SECRET[] = "nccl_unique_id_b64";
    if (memmem(b->json, b->length, SECRET, sizeof SECRET - 1) != NULL)
        script->reads_secret = true;
    return slc_script_call(script, "init", "sluice.init_info", function, push_builder, take, b, error);
}

static sluice_status read_by(slc_script *script, const char *function, const char *json, size_t length, slc_init_info *info, bool *met,
                             slc_plan **plan, sluice_error *error)
{
    *info = (slc_init_info){ 0 };
    *met = false;
    *plan = NULL;
    builder b = { .json = json, .length = length, .info = info, .met = met };
    sluice_status status = call(script, function, NULL, &b, error);
    slc_release(b.layout);
    if (status != SLUICE_OK) {
        slc_plan_destroy(b.plan);
        return status;
    }
    *plan = b.plan;
    return SLUICE_OK;
}

sluice_status slc_init_info_read(slc_script *script, const char *json, size_t length, slc_init_info *info, bool *met, slc_plan **plan,
                                 sluice_error *error)
{
    return read_by(script, "read", json, length, info, met, plan, error);
}

sluice_status slc_init_info_draft(slc_script *script, const char *json, size_t length, slc_init_info *info, bool *met, slc_plan **plan,
                                  sluice_error *error)
{
    return read_by(script, "draft", json, length, info, met, plan, error);
}

static void take_sealed(lua_State *L, int count, void *context)
{
    builder *b = context;
    size_t length = 0;
    const char *text = count < 1 ? NULL : lua_tolstring(L, 1, &length);
    if (text == NULL)
        luaL_error(L, "no sealed text");
    *b->sealed = slc_allocate(length + 1);
    if (*b->sealed == NULL)
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for %d bytes of sealed init info", (int)length);
    memcpy(*b->sealed, text, length + 1);
}

static sluice_status write_anew(slc_script *script, const char *function, const char *json, size_t length, char **text, sluice_error *error)
{
    *text = NULL;
    slc_init_info info = { 0 };
    bool met = false;
    builder b = { .json = json, .length = length, .info = &info, .met = &met, .sealed = text };
    sluice_status status = call(script, function, take_sealed, &b, error);
    slc_release(b.layout);
    slc_plan_destroy(b.plan);
    return status;
}

sluice_status slc_init_info_seal(slc_script *script, const char *json, size_t length, char **sealed, sluice_error *error)
{
    return write_anew(script, "seal", json, length, sealed, error);
}

sluice_status slc_init_info_without_secret(slc_script *script, const char *json, size_t length, char **shown, sluice_error *error)
{
    return write_anew(script, "without_secret", json, length, shown, error);
}
