/*
 * state.h: the Lua state of an engine, and the one protected call into it. Lua runs while planning, never while bytes move.
 * Library modules (lua/sluice/) are compiled into the library as text; rule files are read from disk and run in a sandbox.
 */
#ifndef SLC_SCRIPT_STATE_H
#define SLC_SCRIPT_STATE_H

#include "base/log.h"
#include "sluice.h"

typedef struct slc_script slc_script;

/* A new state; *script is NULL on failure (NO_MEMORY). `log` may be NULL and must outlive the state. */
sluice_status slc_script_create(const slc_log *log, slc_script **script, sluice_error *error);
void slc_script_destroy(slc_script *script); /* NULL is allowed */
void slc_script_collect(slc_script *script); /* frees what nothing in it refers to any more */

#endif
