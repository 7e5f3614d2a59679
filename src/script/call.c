/*
 * call.c: the protected call and the conversion of Lua errors into sluice_error. Owns no state of its own; knows nothing of
 * plans.
 */
#include "script/call.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- raising from C ---- */

slc_script *slc_lua_script(lua_State *L)
{
    void *script;
    lua_getallocf(L, &script);
    return script;
}

int slc_lua_raise(lua_State *L, const sluice_error *error)
{
    slc_script *script = slc_lua_script(L);
    slc_error_copy(&script->raised, error);
    lua_pushlightuserdata(L, script);
    lua_error(L);
    __builtin_unreachable();
}

int slc_lua_fail(lua_State *L, sluice_status status, const char *format, ...)
{
    char text[SLUICE_ERROR_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, status);
    lua_setfield(L, -2, "status");
    lua_pushstring(L, text);
    lua_setfield(L, -2, "text");
    lua_error(L);
    __builtin_unreachable();
}

int64_t slc_lua_integer(lua_State *L, int index, int64_t low, int64_t high)
{
    static const lua_Number MOST = 9007199254740992.0;
    lua_Number number = lua_tonumber(L, index);
    bool whole = lua_type(L, index) == LUA_TNUMBER && number >= -MOST && number <= MOST && (lua_Number)(int64_t)number == number;
    if (!whole || (int64_t)number < low || (int64_t)number > high)
        luaL_error(L, "not a checked number");
    return (int64_t)number;
}

void slc_lua_fail_memory(lua_State *L)
{
    const slc_script *script = slc_lua_script(L);
    slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory in the script (%zu bytes held, at most %zu)", script->used, script->limit);
}

void slc_lua_add(lua_State *L, const luaL_Reg *functions, void *context)
{
    for (; functions->name != NULL; functions++) {
        lua_pushlightuserdata(L, context);
        lua_pushcclosure(L, functions->func, 1);
        lua_setfield(L, -2, functions->name);
    }
}

void slc_lua_load(lua_State *L, const char *text, size_t length, const char *chunk_name)
{
    int status = luaL_loadbuffer(L, text, length, chunk_name);
    if (status == LUA_ERRMEM)
        slc_lua_fail_memory(L);
    if (status != 0)
        lua_error(L);
}

/* ---- errors on their way out ---- */

static int traceback(lua_State *L)
{
    if (lua_type(L, 1) == LUA_TSTRING)
        luaL_traceback(L, L, lua_tostring(L, 1), 1);
    return 1;
}

/* The error value is on the top of the stack. */
static sluice_status convert(lua_State *L, int lua_status, const char *stage, sluice_error *error)
{
    slc_script *script = slc_lua_script(L);
    if (lua_status == LUA_ERRMEM)
        return slc_fail(error, SLUICE_NO_MEMORY, stage, "out of memory in the script (%zu bytes held, at most %zu)", script->used,
                        script->limit);
    if (lua_islightuserdata(L, -1) && lua_touserdata(L, -1) == script)
        return slc_error_copy(error, &script->raised);
    if (lua_istable(L, -1)) {
        lua_getfield(L, -1, "status");
        lua_getfield(L, -2, "text");
        sluice_status status = lua_isnumber(L, -2) ? (sluice_status)lua_tointeger(L, -2) : SLUICE_SCRIPT;
        if (lua_type(L, -1) == LUA_TSTRING)
            return slc_fail(error, status == SLUICE_OK ? SLUICE_SCRIPT : status, stage, "%s", lua_tostring(L, -1));
        lua_pop(L, 2);
    }
    if (lua_type(L, -1) == LUA_TSTRING)
        return slc_fail(error, SLUICE_SCRIPT, stage, "%s", lua_tostring(L, -1));
    return slc_fail(error, SLUICE_SCRIPT, stage, "an error that is no text (%s)", luaL_typename(L, -1));
}

/* ---- the watch ---- */

enum { WATCH_STEP = 10000 };

static void ask_watch(lua_State *L, lua_Debug *where)
{
    (void)where;
    const slc_script *script = slc_lua_script(L);
    if (script->watch.stop != NULL && script->watch.stop(script->watch.user))
        slc_lua_fail(L, SLUICE_CANCELLED, "interrupted");
}

void slc_lua_set_watch(lua_State *L)
{
    if (slc_lua_script(L)->watch.stop == NULL)
        lua_sethook(L, NULL, 0, 0);
    else
        lua_sethook(L, ask_watch, LUA_MASKCOUNT, WATCH_STEP);
}

void slc_script_watch(slc_script *script, slc_lua_stop stop, void *user)
{
    script->watch.stop = stop;
    script->watch.user = user;
}

void slc_script_watch_alike(slc_script *script, const slc_script *other)
{
    script->watch = other->watch;
}

/* ---- the call ---- */

typedef struct call {
    const char *stage, *module, *function;
    const char *code; /* instead of module and function */
    size_t length;
    slc_lua_arguments arguments;
    slc_lua_results results;
    void *context;
    sluice_error *error;
    sluice_status status;
} call;

static int run(lua_State *L)
{
    call *c = lua_touserdata(L, 1);
    lua_settop(L, 0);
    if (c->code != NULL) {
        slc_lua_load(L, c->code, c->length, c->function);
    } else {
        lua_getglobal(L, "require");
        lua_pushstring(L, c->module);
        lua_call(L, 1, 1);
        lua_getfield(L, -1, c->function);
        lua_remove(L, 1);
    }
    int count = c->arguments == NULL ? 0 : c->arguments(L, c->context);
    lua_call(L, count, LUA_MULTRET);
    if (c->results != NULL)
        c->results(L, lua_gettop(L), c->context);
    return 0;
}

static int enter(lua_State *L)
{
    call *c = lua_touserdata(L, 1);
    lua_pushcfunction(L, traceback);
    lua_pushcfunction(L, run);
    lua_pushlightuserdata(L, c);
    int status = lua_pcall(L, 1, 0, -3);
    if (status != 0)
        c->status = convert(L, status, c->stage, c->error);
    return 0;
}

static int collect(lua_State *L)
{
    lua_gc(L, LUA_GCCOLLECT, 0);
    return 0;
}

/* Lua 5.1 does not collect when it is refused memory. The next call is to begin without the waste; collecting asks for a little itself. */
static void collect_waste(slc_script *script, int top)
{
    size_t limit = script->limit;
    script->limit = SIZE_MAX;
    (void)lua_cpcall(script->L, collect, NULL);
    lua_settop(script->L, top);
    script->limit = limit;
}

void slc_script_collect(slc_script *script)
{
    collect_waste(script, lua_gettop(script->L));
}

static sluice_status call_protected(slc_script *script, call *c)
{
    lua_State *L = script->L;
    int top = lua_gettop(L), mask = lua_gethookmask(L), count = lua_gethookcount(L);
    lua_Hook before = lua_gethook(L);
    if (before == NULL)
        slc_lua_set_watch(L);
    int status = lua_cpcall(L, enter, c);
    lua_sethook(L, before, mask, count);
    if (status != 0)
        c->status = convert(L, status, c->stage, c->error);
    lua_settop(L, top);
    if (c->status == SLUICE_NO_MEMORY)
        collect_waste(script, top);
    return c->status;
}

sluice_status slc_script_call(slc_script *script, const char *stage, const char *module, const char *function,
                              slc_lua_arguments arguments, slc_lua_results results, void *context, sluice_error *error)
{
    call c = { .stage = stage, .module = module, .function = function, .arguments = arguments, .results = results,
               .context = context, .error = error, .status = SLUICE_OK };
    return call_protected(script, &c);
}

static void take_text(lua_State *L, int count, void *context)
{
    char **result = context;
    if (count < 1 || lua_isnil(L, 1))
        return;
    lua_getglobal(L, "tostring");
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    *result = slc_duplicate(lua_tostring(L, -1));
    if (*result == NULL)
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for a result");
}

sluice_status slc_script_evaluate(slc_script *script, const char *code, size_t length, const char *chunk_name, char **result,
                                  sluice_error *error)
{
    *result = NULL;
    call c = { .stage = "script", .function = chunk_name, .code = code, .length = length, .results = take_text, .context = result,
               .error = error, .status = SLUICE_OK };
    return call_protected(script, &c);
}
