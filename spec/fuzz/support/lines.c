/*
 * lines.c: makes each line of Sluice's own Lua a counter of libFuzzer's, so that inputs which get further in Lua count as
 * new. Stands in front of lua_sethook: every hook that the library sets runs as before, beside the counting, and is what the
 * library gets when it asks for its hook.
 */
#include <dlfcn.h>
#include <lua.h>
#include <stdint.h>
#include <string.h>

enum { COUNTERS = 1 << 15 };

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counter[COUNTERS];

static lua_Hook wanted;
static int wanted_mask;

static void count(lua_State *L, lua_Debug *at)
{
    static const char OWN[] = "@sluice/";
    if (lua_getinfo(L, "S", at) == 0 || strncmp(at->source, OWN, sizeof OWN - 1) != 0)
        return;
    uint32_t hash = (uint32_t)at->currentline;
    for (const char *c = at->source; *c != '\0'; c++)
        hash = hash * 31 + (uint8_t)*c;
    uint8_t *hits = &counter[hash % COUNTERS];
    *hits = (uint8_t)(*hits + (*hits < UINT8_MAX));
}

static void on_event(lua_State *L, lua_Debug *at)
{
    if (at->event == LUA_HOOKLINE) {
        count(L, at);
        if ((wanted_mask & LUA_MASKLINE) == 0)
            return;
    }
    if (wanted != NULL)
        wanted(L, at);
}

int lua_sethook(lua_State *L, lua_Hook hook, int mask, int step)
{
    static int (*set)(lua_State *, lua_Hook, int, int);
    if (set == NULL) {
        void *found = dlsym(RTLD_NEXT, "lua_sethook");
        memcpy(&set, &found, sizeof set);
    }
    wanted = hook;
    wanted_mask = hook == NULL ? 0 : mask;
    return set(L, on_event, wanted_mask | LUA_MASKLINE, step);
}

lua_Hook lua_gethook(lua_State *L)
{
    (void)L;
    return wanted;
}

int lua_gethookmask(lua_State *L)
{
    (void)L;
    return wanted_mask;
}
