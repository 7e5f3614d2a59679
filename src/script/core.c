/*
 * core.c: the module sluice.core, what the library's own Lua modules ask of C: digests, JSON from outside, element types,
 * addresses, the text of compiled-in files, and the guard under which rule code runs. Rule code never sees it.
 */
#include "base/digest.h"
#include "base/dtype.h"
#include "base/error.h"
#include "script/json.h"
#include "script/modules.h"

#include <arpa/inet.h>
#include <string.h>

/* digest(text) -> SHA-256 in hex */
static int core_digest(lua_State *L)
{
    size_t length;
    const char *text = luaL_checklstring(L, 1, &length);
    char sum[SLC_DIGEST_TEXT];
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_digest(text, length, sum, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
    lua_pushstring(L, sum);
    return 1;
}

/* json(text) -> value, odd path, odd text | nil, message: see json.h */
static int core_json(lua_State *L)
{
    size_t length;
    const char *text = luaL_checklstring(L, 1, &length);
    return slc_json_decode(L, text, length);
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
        { "digest", core_digest }, { "json", core_json },   { "is_address", core_is_address }, { "file", core_file },
        { "files", core_files },   { "guard", slc_lua_guard }, { NULL, NULL },
    };
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
