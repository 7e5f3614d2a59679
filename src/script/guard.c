/*
 * guard.c: the budget under which rule code and what is typed at the console runs, and the way out of it for Sluice's own
 * functions that such code calls. Owns no state of its own.
 */
#include "script/call.h"

#include "base/clock.h"

#include <luajit.h>
#include <stdio.h>
#include <string.h>

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

/*
 * The message handler of rule code: an error that rose inside one of Sluice's own functions is told at the line that called it. Of
 * one that is no text the place is kept.
 */
static int locate(lua_State *L)
{
    slc_script *script = slc_lua_script(L);
    const char *message = lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : NULL;
    if (message == NULL && !script->budget.over)
        find_place(L, script->budget.where, sizeof script->budget.where);
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
    if (!script->budget.over && script->watch.stop != NULL && script->watch.stop(script->watch.user)) {
        script->budget.over = true;
        script->budget.why = "interrupted";
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
 * guard(function, instructions, bytes, ...) -> "ok", the first result | "error", text, or what else was raised and its place |
 * "budget", text
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
    lua_Hook before = lua_gethook(L);
    int mask = lua_gethookmask(L), count = lua_gethookcount(L);
    lua_sethook(L, count_down, LUA_MASKLINE | LUA_MASKCOUNT, HOOK_STEP);
    int status = lua_pcall(L, lua_gettop(L) - 2, 1, 1);
    lua_sethook(L, before, mask, count);
    script->budget.on = false;
    if (script->budget.over) {
        lua_pushstring(L, "budget");
        lua_pushfstring(L, "%s%s", script->budget.where[0] == '\0' ? script->budget.last : script->budget.where, script->budget.why);
        return 2;
    }
    if (status == LUA_ERRMEM)
        slc_lua_fail_memory(L);
    if (status == 0) {
        lua_pushstring(L, "ok");
        lua_insert(L, -2);
        return 2;
    }
    lua_pushstring(L, "error");
    if (lua_type(L, -2) == LUA_TSTRING || lua_istable(L, -2))
        lua_insert(L, -2);
    else
        lua_pushfstring(L, "%sit raised an error that is no text (%s)", script->budget.where, luaL_typename(L, -2));
    lua_pushstring(L, script->budget.where);
    return 3;
}

/*
 * unguarded(function, ...) -> its results; for a function of Sluice's own that guarded code called: nothing that it does counts
 * against the budget, and the time it takes is given back. Outside a guarded call it is a plain call.
 */
int slc_lua_unguarded(lua_State *L)
{
    slc_script *script = slc_lua_script(L);
    luaL_checktype(L, 1, LUA_TFUNCTION);
    bool on = script->budget.on;
    int64_t start = slc_now_ns();
    lua_Hook before = lua_gethook(L);
    int mask = lua_gethookmask(L), count = lua_gethookcount(L);
    script->budget.on = false;
    slc_lua_set_watch(L);
    int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    lua_sethook(L, before, mask, count);
    script->budget.on = on;
    script->budget.deadline_ns += slc_now_ns() - start;
    return status == 0 ? lua_gettop(L) : lua_error(L);
}
