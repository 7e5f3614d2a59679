/*
 * line.h: the socket on which a rank tells `sluice run` what it does, and its pulse: a line at least every second for as long
 * as the process runs, so that one that is stopped is told from one that works for long. Owns the thread, not the socket.
 */
#ifndef SLC_CLI_LINE_H
#define SLC_CLI_LINE_H

#include "cli/report.h"

#include <lua.h>

/* report(descriptor) -> userdata, whose pulse beats until it is collected | nil, text, status */
int slc_line_new(lua_State *L);

/* Fills *report in to write there; false where the value at `index` is none of slc_line_new. */
bool slc_line_report(lua_State *L, int index, slc_report *report);

#endif
