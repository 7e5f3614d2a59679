/*
 * native.h: what lua/sluice/cli/ calls in C, as the module sluice.native. A function that can fail in operation returns nil,
 * a text and a status number; misuse raises.
 *
 *   native.c   run_rank(job, sink)          sink: what `report` gives, or a function that gets each line
 *   line.c     report(descriptor)           the socket of whoever started this rank, with a pulse
 *   plan.c     plan(job)                    one rank's plan without any network
 *   explain.c  explain(job, question)       an answer about it
 *   planned.c  open(job)                    a plan that is kept, for many questions
 *   attach.c   attach(path, word)           what an engine says at its door
 *   traffic.c  traffic(job, places)         what moves between all ranks
 *   edit.c     editor(session, path)        the console's line editor
 *   terminal.c rows interrupts release_signals shell private_file absolute
 *   doctor.c   facts(port) folder(path)     what this machine has
 *   process.c  spawn signals next_signal poll read let_go kill reap close listen memfd key
 *   native.c   version seal checkpoint monotonic peak is_terminal columns kind
 */
#ifndef SLC_CLI_NATIVE_H
#define SLC_CLI_NATIVE_H

#include "sluice.h"

#include <lauxlib.h>
#include <lua.h>

int slc_native_open(lua_State *L); /* pushes the table */

int slc_native_fail(lua_State *L, const sluice_error *error); /* pushes nil, text, status; returns 3 */
int slc_native_fail_errno(lua_State *L, const char *what);    /* the same from errno */

/* What the table lists of other files, as named above. */
int slc_native_plan(lua_State *L);
int slc_native_explain(lua_State *L);
int slc_native_plan_open(lua_State *L);
int slc_native_traffic(lua_State *L);
int slc_native_attach(lua_State *L);
int slc_native_facts(lua_State *L);
int slc_native_folder(lua_State *L);
int slc_native_editor(lua_State *L);
extern const luaL_Reg slc_native_process[], slc_native_terminal[];

struct slc_plan;
/* Pushes { { name, dtype, shape, bytes, source, mode, reason, where, destination, into }, ... } in transfer order. */
void slc_native_push_params(lua_State *L, const struct slc_plan *plan);
/*
 * The tables of plan/traffic.h as lists, with a matrix of bytes of at most `cells` rows (trainers) and columns (workers); the
 * argument at 2 is { ranks_a_gpu =, gpus_a_domain =, gpus_a_node =, cells = }. Returns 1, or pushes nil, text, status: 3.
 */
int slc_native_push_traffic(lua_State *L, const struct slc_plan *plan);
/* Pushes how both sides cut parameter `index` and what meets: see parts.c. */
void slc_native_push_parts(lua_State *L, const struct slc_plan *plan, size_t index);

#endif
