/*
 * json.h: JSON from outside into Lua values, strictly as RFC 8259 writes it. Strings are valid UTF-8, nesting is bounded, and
 * nothing is allocated outside of Lua. null becomes a light userdata NULL; of a key given twice the last value counts, as in
 * Python.
 */
#ifndef SLC_SCRIPT_JSON_H
#define SLC_SCRIPT_JSON_H

#include "script/call.h"

#define SLC_JSON_DEPTH 32

/*
 * Pushes, for good text: the value, and then two strings or two nils: the path and the text of the first value that no
 * schema made of integers and filled objects can hold: a number with a fraction or an exponent, -0, a number beyond 2^53 in size,
 * an empty object ("{}", which in Lua looks like an empty list). For bad text: nil and one message. Runs inside a protected call.
 */
int slc_json_decode(lua_State *L, const char *text, size_t length);

#endif
