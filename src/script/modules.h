/* modules.h: the Lua texts that are compiled into the library (made by scripts/embed.cmake from lua/). */
#ifndef SLC_SCRIPT_MODULES_H
#define SLC_SCRIPT_MODULES_H

#include <stddef.h>

typedef struct slc_lua_module {
    const char *name; /* "sluice.init_info" */
    const char *path; /* "sluice/init_info.lua", the chunk name in messages */
    const char *text; /* terminated */
    size_t length;
} slc_lua_module;

extern const slc_lua_module slc_lua_modules[]; /* ends with a NULL name */

#endif
