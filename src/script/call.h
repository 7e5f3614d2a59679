/*
 * call.h: inside the script layer, and for src/cli: the one protected call into Lua, how C functions that Lua calls raise
 * errors, and the budgets under which rule code runs. No file but call.c and guard.c calls lua_pcall or lua_cpcall.
 *
 * A state is used by one thread at a time. Every lua_* call that may allocate or raise happens inside slc_script_call, so
 * that there is always a protected frame above it.
 */
#ifndef SLC_SCRIPT_CALL_H
#define SLC_SCRIPT_CALL_H

#include "script/state.h"

#include <lauxlib.h>
#include <lua.h>

/* Pushes the arguments, returns how many. Runs inside the protected call, as `results` does: it may raise. */
typedef int (*slc_lua_arguments)(lua_State *L, void *context);
/* Reads `count` results, the first at stack index 1. */
typedef void (*slc_lua_results)(lua_State *L, int count, void *context);

/*
 * Calls function `function` of library module `module`. A Lua error becomes *error: a table {status=, text=} that a module
 * raised keeps its text, an error that C raised (slc_lua_raise) comes back whole, any other is SCRIPT with a traceback.
 * `stage` is the stage of the message. `arguments` and `results` may be NULL.
 */
sluice_status slc_script_call(slc_script *script, const char *stage, const char *module, const char *function,
                              slc_lua_arguments arguments, slc_lua_results results, void *context, sluice_error *error);

/*
 * Runs `code` as trusted Lua (the console and specs; never a rule file). *result, released with slc_release, is the text of
 * its first result, or NULL for nil.
 */
sluice_status slc_script_evaluate(slc_script *script, const char *code, size_t length, const char *chunk_name, char **result,
                                  sluice_error *error);

/* For C functions that Lua calls. Neither returns: one raises a whole sluice_error, one a status and a text. */
int slc_lua_raise(lua_State *L, const sluice_error *error) __attribute__((noreturn));
int slc_lua_fail(lua_State *L, sluice_status status, const char *format, ...) __attribute__((noreturn, format(printf, 3, 4)));

/* The number at `index`, which must be an integer in [low, high]; raises where it is not. At most 2^53 in size. */
int64_t slc_lua_integer(lua_State *L, int index, int64_t low, int64_t high);

void slc_lua_load(lua_State *L, const char *text, size_t length, const char *chunk_name); /* pushes the chunk, or raises */

slc_script *slc_lua_script(lua_State *L); /* the script a state belongs to */

/*
 * From now on `stop` is asked every few thousand instructions of whatever runs in this state, but not of the caller's own code
 * around a guarded call; where it says true, what runs ends (CANCELLED). NULL for none. `user` must outlive the state.
 */
typedef bool (*slc_lua_stop)(void *user);
/* Sets that question. */
void slc_script_watch(slc_script *script, slc_lua_stop stop, void *user);
void slc_script_watch_alike(slc_script *script, const slc_script *other); /* the same question as the other's */

/* Adds functions, ended by a NULL name, to the table on top; each has `context` as its upvalue. */
void slc_lua_add(lua_State *L, const luaL_Reg *functions, void *context);

/* ---- for the files of this layer ---- */

struct slc_script {
    lua_State *L;
    const slc_log *log;
    size_t used, limit; /* bytes that the state holds and may hold */
    unsigned char *cradle; /* where lua_newstate takes memory from, see state.c */
    size_t cradle_used;
    bool reads_secret; /* what it lets go of is wiped, where it is long enough to be the id of a communicator */
    struct {
        bool on, over;
        int64_t instructions; /* left; the hook takes from it */
        int64_t bytes;        /* that may still be asked for, whether or not they are given back */
        int64_t deadline_ns;  /* the last net: no single step can be long, but many long ones can */
        const char *why;      /* which bound was hit */
        char where[128];      /* "file:line: " of the rule code that hit it, or "" */
        char last[128];       /* of a line of rule code that began lately: all there is where no frame of it is left */
        int lines;            /* that are still looked at one by one for that */
    } budget;
    struct {
        slc_lua_stop stop;
        void *user;
    } watch;
    sluice_error raised; /* what slc_lua_raise carries over a Lua frame */
    char *host;          /* the host's description, JSON; NULL for none */
    size_t host_length;
};

/* core.c: a buffer (memory.h) that Lua owns, so that an error on the way leaks nothing; it stays on the stack. */
struct slc_buffer *slc_lua_buffer(lua_State *L);
/* Raises NO_MEMORY. */
void slc_lua_fail_memory(lua_State *L) __attribute__((noreturn));
/* Puts the watch's hook in place, or none; what was there before goes. */
void slc_lua_set_watch(lua_State *L);
/* Puts the module sluice.core (core.c) on the stack. */
int slc_lua_open_core(lua_State *L);
/* core.guard and core.unguarded: see guard.c. */
int slc_lua_guard(lua_State *L);
int slc_lua_unguarded(lua_State *L);
struct slc_layout;
/*
 * Reads a layout's placements from a list of lists of five numbers: axis, dim or -1 for a pin, parts (or the pin's
 * coordinate), split, chunk. Raises when there are too many; whether they fit mesh and tensor is not checked here.
 */
int slc_lua_read_placements(lua_State *L, int index, struct slc_layout *layout);

#endif
