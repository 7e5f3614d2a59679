/*
 * canonical.h: JSON in the one form that is hashed: keys sorted, no spaces, ASCII only, as Python's json.dumps(value,
 * sort_keys=True, separators=(",", ":")) writes it.
 */
#ifndef SLC_SCRIPT_CANONICAL_H
#define SLC_SCRIPT_CANONICAL_H

#include "base/memory.h"
#include "script/call.h"

/*
 * Appends the value at `index`, as slc_json_decode makes them: integers, booleans, valid UTF-8, null, lists, objects with
 * string keys; an empty table is a list. False, with the reason in *problem, for anything else (a fraction, a function),
 * for values nested deeper than SLC_JSON_DEPTH and when there is no memory. Raises nothing.
 */
bool slc_canonical(lua_State *L, int index, slc_buffer *buffer, const char **problem);

#endif
