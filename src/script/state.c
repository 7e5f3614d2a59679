/*
 * state.c: makes and ends a Lua state: the bounded allocator, the standard libraries for Sluice's own modules, and the
 * searcher that finds those modules inside the library. Rule code never sees any of this: lua/sluice/sandbox.lua.
 */
#include "script/state.h"

#include "base/error.h"
#include "base/memory.h"
#include "script/call.h"
#include "script/init_info.h"
#include "script/modules.h"

#include <lua-cjson.h>
#include <luajit.h>
#include <lualib.h>
#include <string.h>

/* What a state may hold: some ten times the largest plan seen (100,000 parameters), so that hostile input ends early. */
static const size_t STATE_LIMIT = (size_t)768 << 20;

enum {
    CRADLE_BYTES = 128 << 10, /* lua_newstate was seen to ask for 23 KiB */
    SHORTEST_SECRET = SLC_UNIQUE_ID_BYTES
};

static bool may_grow(slc_script *script, size_t more)
{
    if (more > script->limit || script->used > script->limit - more)
        return false;
    if (!script->budget.on)
        return true;
    if (script->budget.bytes >= 0)
        script->budget.bytes -= (int64_t)more;
    if (script->budget.bytes >= 0)
        return true;
    script->budget.over = true;
    script->budget.why = "it used too much memory";
    return false;
}

/*
 * LuaJIT reads a state that it has only half made when memory ends inside lua_newstate. So what that call asks for comes
 * from one block that is there beforehand; it lives as long as the state.
 */
static bool from_cradle(const slc_script *script, const void *block)
{
    const unsigned char *at = block;
    return at >= script->cradle && at < script->cradle + CRADLE_BYTES;
}

static void *take_from_cradle(slc_script *script, size_t bytes)
{
    size_t rounded = (bytes + 15) & ~(size_t)15;
    if (bytes > CRADLE_BYTES || rounded > CRADLE_BYTES - script->cradle_used)
        return NULL;
    void *taken = script->cradle + script->cradle_used;
    script->cradle_used += rounded;
    return taken;
}

static bool may_hold_secret(const slc_script *script, size_t bytes)
{
    return script->reads_secret && bytes >= SHORTEST_SECRET;
}

static void release(slc_script *script, void *block, size_t bytes)
{
    if (from_cradle(script, block))
        return;
    if (may_hold_secret(script, bytes))
        slc_release_wiped(block, bytes);
    else
        slc_release(block);
}

static void *grow(slc_script *script, void *block, size_t old_bytes, size_t bytes)
{
    if (script->L != NULL && block != NULL && !may_hold_secret(script, old_bytes) && !from_cradle(script, block))
        return slc_reallocate(block, bytes);
    void *fresh = script->L == NULL ? take_from_cradle(script, bytes) : slc_allocate(bytes);
    if (fresh != NULL && block != NULL) {
        memcpy(fresh, block, old_bytes < bytes ? old_bytes : bytes);
        release(script, block, old_bytes);
    }
    return fresh;
}

static void *allocate(void *user, void *block, size_t old_bytes, size_t bytes)
{
    slc_script *script = user;
    if (block == NULL)
        old_bytes = 0;
    if (bytes == 0) {
        script->used -= old_bytes;
        release(script, block, old_bytes);
        return NULL;
    }
    if (bytes > old_bytes && !may_grow(script, bytes - old_bytes))
        return NULL;
    void *fresh = grow(script, block, old_bytes, bytes);
    if (fresh == NULL) {
        if (bytes > old_bytes)
            return NULL;
        fresh = block; /* Lua relies on it that shrinking succeeds */
    }
    script->used = script->used - old_bytes + bytes;
    return fresh;
}

/* "a.b" is a/b.lua or a/b/init.lua. */
static const slc_lua_module *find_module(const char *name)
{
    size_t length = strlen(name);
    for (const slc_lua_module *module = slc_lua_modules; module->name != NULL; module++)
        if (strncmp(module->name, name, length) == 0 && (module->name[length] == '\0' || strcmp(module->name + length, ".init") == 0))
            return module;
    return NULL;
}

static int search_module(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    const slc_lua_module *module = find_module(name);
    if (module == NULL) {
        lua_pushfstring(L, "\n\tno module '%s' in the library", name);
        return 1;
    }
    lua_pushfstring(L, "@%s", module->path);
    slc_lua_load(L, module->text, module->length, lua_tostring(L, -1));
    return 1;
}

/* Modules come from the library or from package.preload, never from the disk of the host. */
static int open_libraries(lua_State *L)
{
    luaL_openlibs(L);
    /*
     * Compiled traces do not live through a refused allocation: LuaJIT 2.1.0-beta3 raises from the last interpreted frame,
     * which is not where a trace stands. Planning is bound by C functions, so interpreting costs it little.
     */
    if (!luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF))
        return luaL_error(L, "the JIT compiler cannot be turned off");
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaders");
    lua_pushcfunction(L, search_module);
    lua_rawseti(L, -2, 2);
    for (int i = (int)lua_objlen(L, -1); i > 2; i--) {
        lua_pushnil(L);
        lua_rawseti(L, -2, i);
    }
    lua_pop(L, 1);
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, slc_lua_open_core);
    lua_setfield(L, -2, "sluice.core");
    lua_pushcfunction(L, luaopen_cjson);
    lua_setfield(L, -2, "cjson");
    return 0;
}

sluice_status slc_script_create(const slc_log *log, slc_script **script, sluice_error *error)
{
    *script = NULL;
    slc_script *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, "script", "a Lua state", sizeof *made);
    made->cradle = slc_allocate(CRADLE_BYTES);
    if (made->cradle == NULL) {
        slc_release(made);
        return slc_fail_memory(error, "script", "a Lua state", CRADLE_BYTES);
    }
    made->log = log;
    made->limit = STATE_LIMIT;
    made->raised = (sluice_error)SLUICE_ERROR_INIT;
    made->L = lua_newstate(allocate, made);
    if (made->L == NULL) {
        slc_script_destroy(made);
        return slc_fail(error, SLUICE_NO_MEMORY, "script", "out of memory for a Lua state");
    }
    if (lua_cpcall(made->L, open_libraries, NULL) != 0) {
        slc_script_destroy(made);
        return slc_fail(error, SLUICE_NO_MEMORY, "script", "out of memory for the Lua libraries");
    }
    *script = made;
    return SLUICE_OK;
}

void slc_script_destroy(slc_script *script)
{
    if (script == NULL)
        return;
    if (script->L != NULL)
        lua_close(script->L);
    slc_release(script->cradle);
    slc_release(script->host);
    slc_release(script);
}
