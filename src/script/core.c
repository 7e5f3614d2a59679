/*
 * core.c: the module sluice.core, what the library's own Lua modules ask of C: JSON from outside and its canonical form,
 * digests, element types, addresses, the text of compiled-in files, and the guard under which rule code runs. Rule code never sees it.
 */
#include "base/digest.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "script/canonical.h"
#include "script/json.h"
#include "script/modules.h"
#include "script/rule_folders.h"

#include <arpa/inet.h>
#include <string.h>

/* json(text) -> value, odd path, odd text | nil, message: see json.h */
static int core_json(lua_State *L)
{
    size_t length;
    const char *text = luaL_checklstring(L, 1, &length);
    return slc_json_decode(L, text, length);
}

/* is_utf8(text) -> whether it is, and has no zero byte */
static int core_is_utf8(lua_State *L)
{
    size_t length;
    const char *text = luaL_checklstring(L, 1, &length);
    lua_pushboolean(L, strlen(text) == length && slc_text_is_utf8(text));
    return 1;
}

static const char BUFFER[] = "sluice.buffer";

static int clear_buffer(lua_State *L)
{
    slc_buffer_clear(luaL_checkudata(L, 1, BUFFER));
    return 0;
}

slc_buffer *slc_lua_buffer(lua_State *L)
{
    slc_buffer *buffer = lua_newuserdata(L, sizeof *buffer);
    *buffer = (slc_buffer){ 0 };
    luaL_getmetatable(L, BUFFER);
    lua_setmetatable(L, -2);
    return buffer;
}

static slc_buffer *write_canonical(lua_State *L)
{
    luaL_checkany(L, 1);
    slc_buffer *buffer = slc_lua_buffer(L);
    const char *problem;
    if (!slc_canonical(L, 1, buffer, &problem)) {
        bool no_memory = buffer->failed;
        slc_buffer_clear(buffer);
        if (no_memory)
            slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for canonical JSON");
        luaL_error(L, "canonical JSON: %s", problem);
    }
    return buffer;
}

/* canonical(value) -> its canonical JSON */
static int core_canonical(lua_State *L)
{
    slc_buffer *buffer = write_canonical(L);
    lua_pushlstring(L, (const char *)buffer->data, buffer->length);
    slc_buffer_clear(buffer);
    return 1;
}

/* canonical_digest(value) -> the digest of its canonical JSON */
static int core_canonical_digest(lua_State *L)
{
    slc_buffer *buffer = write_canonical(L);
    char sum[SLC_DIGEST_TEXT];
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_digest(buffer->data, buffer->length, sum, &error);
    slc_buffer_clear(buffer);
    if (status != SLUICE_OK)
        slc_lua_raise(L, &error);
    lua_pushstring(L, sum);
    return 1;
}

/* is_address(text, 4 or 6) -> whether it is an IP address of that version */
static int core_is_address(lua_State *L)
{
    const char *text = luaL_checkstring(L, 1);
    unsigned char bytes[16];
    lua_pushboolean(L, inet_pton(luaL_checkint(L, 2) == 4 ? AF_INET : AF_INET6, text, bytes) == 1);
    return 1;
}

/* file(name) -> text, chunk name | nothing: a Lua file that is compiled into the library, by its module name */
static int core_file(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    for (const slc_lua_module *module = slc_lua_modules; module->name != NULL; module++) {
        if (strcmp(module->name, name) == 0) {
            lua_pushlstring(L, module->text, module->length);
            lua_pushfstring(L, "@%s", module->path);
            return 2;
        }
    }
    return 0;
}

/* read_file(path, limit) -> the text of a regular file, or nil and what is wrong */
static int core_read_file(lua_State *L)
{
    char problem[1024];
    slc_buffer *text = slc_lua_buffer(L);
    if (!slc_file_read(luaL_checkstring(L, 1), 0, (size_t)luaL_checknumber(L, 2), text, problem, sizeof problem)) {
        slc_buffer_clear(text);
        lua_pushnil(L);
        lua_pushstring(L, problem);
        return 2;
    }
    lua_pushlstring(L, (const char *)text->data, text->length);
    slc_buffer_clear(text);
    return 1;
}

/* files(prefix) -> a list of the names of such files that start with `prefix` */
static int core_files(lua_State *L)
{
    size_t length;
    const char *prefix = luaL_checklstring(L, 1, &length);
    lua_newtable(L);
    int count = 0;
    for (const slc_lua_module *module = slc_lua_modules; module->name != NULL; module++) {
        if (strncmp(module->name, prefix, length) == 0) {
            lua_pushstring(L, module->name);
            lua_rawseti(L, -2, ++count);
        }
    }
    return 1;
}

static void push_dtypes(lua_State *L)
{
    lua_newtable(L);
    const slc_dtype *dtype;
    for (uint8_t code = 0; (dtype = slc_dtype_by_code(code)) != NULL; code++) {
        lua_pushinteger(L, (lua_Integer)dtype->bytes);
        lua_setfield(L, -2, dtype->name);
    }
}

static void push_statuses(lua_State *L)
{
    lua_newtable(L);
#define PUSH(name, number, text)                                                                                       \
    lua_pushinteger(L, number);                                                                                        \
    lua_setfield(L, -2, #name);
    SLUICE_STATUS_LIST(PUSH)
#undef PUSH
}

int slc_lua_open_core(lua_State *L)
{
    static const luaL_Reg FUNCTIONS[] = {
        { "json", core_json },
        { "canonical", core_canonical },
        { "canonical_digest", core_canonical_digest },
        { "is_address", core_is_address },
        { "is_utf8", core_is_utf8 },
        { "file", core_file },
        { "read_file", core_read_file },
        { "files", core_files },
        { "rule_folders", slc_lua_rule_folders },
        { "read_rules", slc_lua_read_rules },
        { "guard", slc_lua_guard },
        { "unguarded", slc_lua_unguarded },
        { NULL, NULL },
    };
    luaL_newmetatable(L, BUFFER);
    lua_pushcfunction(L, clear_buffer);
    lua_setfield(L, -2, "__gc");
    lua_pop(L, 1);
    lua_newtable(L);
    for (const luaL_Reg *f = FUNCTIONS; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
    push_dtypes(L);
    lua_setfield(L, -2, "dtypes"); /* name -> bytes of an element */
    push_statuses(L);
    lua_setfield(L, -2, "status"); /* "INVALID" -> number */
    lua_pushlightuserdata(L, NULL);
    lua_setfield(L, -2, "null");
    return 1;
}
