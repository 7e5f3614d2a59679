/*
 * call.c: the protected call, the conversion of Lua errors into sluice_error, and the budget of rule code. Owns no state of
 * its own; knows nothing of plans.
 */
#include "script/call.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <luajit.h>
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

static void fail_memory(lua_State *L)
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
        fail_memory(L);
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
    int top = lua_gettop(L);
    int status = lua_cpcall(L, enter, c);
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

/* ---- budgets ---- */

enum { HOOK_STEP = 1000, LINES_SEEN = 100000 };

static const int64_t LONGEST_NS = 20 * (int64_t)1000000000;

static void over_budget(lua_State *L, lua_Debug *where)
{
    (void)where;
    luaL_error(L, "%s", slc_lua_script(L)->budget.why);
}

/* Whether a source or a message's place is a file of Sluice's own, which a rule's author never wrote. */
static bool is_own(const char *path)
{
    return strncmp(path, "sluice/", 7) == 0 && strncmp(path, "sluice/rules/", 13) != 0;
}

/* "file:line: " of the innermost frame that is rule code; behind a tail call of the file itself, its last line. */
static void find_place(lua_State *L, char *text, size_t size)
{
    lua_Debug frame;
    for (int level = 0; lua_getstack(L, level, &frame); level++) {
        if (!lua_getinfo(L, "Sl", &frame) || frame.currentline < 1 || frame.source[0] != '@' || is_own(frame.source + 1))
            continue;
        snprintf(text, size, "%s:%d: ", frame.short_src, frame.currentline);
        return;
    }
    if (text != slc_lua_script(L)->budget.last)
        snprintf(text, size, "%s", slc_lua_script(L)->budget.last);
}

/* The bytes of a message's "file:line: ", 0 where it has none. */
static size_t place_length(const char *message)
{
    const char *end = strstr(message, ": "), *digit = end;
    while (digit != NULL && digit > message && digit[-1] >= '0' && digit[-1] <= '9')
        digit--;
    return digit != NULL && digit < end && digit > message && digit[-1] == ':' ? (size_t)(end - message) + 2 : 0;
}

/* The message handler of rule code: an error that rose inside one of Sluice's own functions is told at the line that called it. */
static int locate(lua_State *L)
{
    const char *message = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : NULL;
    size_t place = message == NULL ? 0 : place_length(message);
    if (message == NULL || (place > 0 && !is_own(message)))
        return 1;
    char where[128];
    find_place(L, where, sizeof where);
    if (where[0] != '\0')
        lua_pushfstring(L, "%s%s", where, message + place);
    return 1;
}

static void note_line(slc_script *script, lua_State *L, lua_Debug *frame)
{
    if (lua_getinfo(L, "S", frame) && frame->source[0] == '@' && !is_own(frame->source + 1))
        snprintf(script->budget.last, sizeof script->budget.last, "%s:%d: ", frame->short_src, frame->currentline);
}

static void count_down(lua_State *L, lua_Debug *where)
{
    slc_script *script = slc_lua_script(L);
    if (where->event == LUA_HOOKLINE) {
        note_line(script, L, where);
        if (--script->budget.lines == 0)
            lua_sethook(L, count_down, LUA_MASKCOUNT, HOOK_STEP);
        return;
    }
    if (script->budget.lines == 0)
        find_place(L, script->budget.last, sizeof script->budget.last);
    script->budget.instructions -= HOOK_STEP;
    if (!script->budget.over && script->budget.instructions < 0) {
        script->budget.over = true;
        script->budget.why = "it ran too many instructions";
    }
    if (!script->budget.over && slc_now_ns() > script->budget.deadline_ns) {
        script->budget.over = true;
        script->budget.why = "it ran too long";
    }
    if (!script->budget.over)
        return;
    find_place(L, script->budget.where, sizeof script->budget.where);
    /* From here on every line raises again, so that no pcall of the rule file's own can go on for long. */
    lua_sethook(L, over_budget, LUA_MASKLINE | LUA_MASKCOUNT, 1);
    over_budget(L, where);
}

/*
 * guard(function, instructions, bytes, ...) -> "ok", the first result | "error", text | "budget", text
 * Runs a function of a rule file: compiled traces skip hooks, so it is interpreted, with every function in it.
 */
int slc_lua_guard(lua_State *L)
{
    slc_script *script = slc_lua_script(L);
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_Number instructions = luaL_checknumber(L, 2), bytes = luaL_checknumber(L, 3);
    if (script->budget.on)
        return luaL_error(L, "a guarded function is running already");
    if (!luaJIT_setmode(L, 1, LUAJIT_MODE_ALLFUNC | LUAJIT_MODE_OFF))
        return luaL_error(L, "the JIT compiler cannot be kept off this function");
    lua_remove(L, 3);
    lua_remove(L, 2);
    lua_pushcfunction(L, locate);
    lua_insert(L, 1);
    script->budget.on = true;
    script->budget.over = false;
    script->budget.instructions = (int64_t)instructions;
    script->budget.bytes = (int64_t)bytes;
    script->budget.deadline_ns = slc_now_ns() + LONGEST_NS;
    script->budget.why = "";
    script->budget.where[0] = script->budget.last[0] = '\0';
    script->budget.lines = LINES_SEEN;
    lua_sethook(L, count_down, LUA_MASKLINE | LUA_MASKCOUNT, HOOK_STEP);
    int status = lua_pcall(L, lua_gettop(L) - 2, 1, 1);
    lua_sethook(L, NULL, 0, 0);
    script->budget.on = false;
    if (script->budget.over) {
        lua_pushstring(L, "budget");
        lua_pushfstring(L, "%s%s", script->budget.where[0] == '\0' ? script->budget.last : script->budget.where, script->budget.why);
        return 2;
    }
    if (status == LUA_ERRMEM)
        fail_memory(L);
    if (status == 0) {
        lua_pushstring(L, "ok");
        lua_insert(L, -2);
        return 2;
    }
    lua_pushstring(L, "error");
    if (lua_type(L, -2) == LUA_TSTRING || lua_istable(L, -2))
        lua_insert(L, -2);
    else
        lua_pushfstring(L, "it raised an error that is no text (%s)", luaL_typename(L, -2));
    return 2;
}
