/* resolver.h: inside the script layer: the functions through which Lua sees a plan and writes destinations into it. */
#ifndef SLC_SCRIPT_RESOLVER_H
#define SLC_SCRIPT_RESOLVER_H

#include "script/call.h"
#include "script/resolve.h"

/* Its owner releases `template`. Functions may be added that get a struct which begins with this one. */
typedef struct slc_resolver {
    slc_script *script;
    slc_plan *plan;
    const slc_live_set *live;
    const char *rules;
    slc_arena *arena;
    slc_resolution *resolution;
    slc_target *template; /* by number, less one; `live` unset */
    int ntemplates, capacity;
    size_t targets; /* of all parameters */
} slc_resolver;

/* Pushes a table of functions, which hold `resolver`: they are for one protected call. */
void slc_resolver_push(lua_State *L, slc_resolver *resolver);

/* Pushes the meshes of one side of a plan: { { name =, axes = { { name, size }, ... } }, ... }. For src/cli, too. */
void slc_lua_push_meshes(lua_State *L, const slc_plan *plan, bool workers);

#endif
