/*
 * explainer.h: inside the script layer: what explain.c and explain_workers.c share. The functions are called by Lua: they
 * read its stack and may raise.
 */
#ifndef SLC_SCRIPT_EXPLAINER_H
#define SLC_SCRIPT_EXPLAINER_H

#include "plan/route.h"
#include "script/explain.h"
#include "script/resolver.h"

typedef struct slc_explainer {
    slc_resolver resolver; /* first: its functions read it through the same pointer */
    const slc_question *question;
    slc_mesh row; /* every worker in one row, */
    slc_layout everyone; /* where full parameters go */
    slc_schedule *schedule; /* of each target of parameter number `scheduled` */
    size_t scheduled, capacity;
    slc_piece_list pieces;
    char *answer;
} slc_explainer;

slc_explainer *slc_explainer_of(lua_State *L); /* of a function's upvalue */

size_t slc_explain_index(lua_State *L, int at); /* a number from 1 at that argument, less 1 */
const slc_param *slc_explain_param(lua_State *L); /* argument 1 is its number from 1 */
uint32_t slc_explain_routes(const slc_param *param); /* how many: its targets, or one where it is full */
/* Argument 2 is a target's number from 1. No schedule yet. */
const slc_param *slc_explain_route(lua_State *L, slc_route *route);

/* Each sets one key of the table on top; an empty text sets nothing. */
void slc_explain_set_text(lua_State *L, const char *key, const char *text);
void slc_explain_set_number(lua_State *L, const char *key, int64_t number);
void slc_explain_set_ranges(lua_State *L, const char *key, int ndim, const slc_range *range);
/* `source`: what of the parameter a box of the strip is. `live`: where it lies in the live tensor, from the view's beginning. */
void slc_explain_set_source(lua_State *L, const slc_route *route, const slc_box *box);
void slc_explain_set_live(lua_State *L, const slc_target *target, const slc_route *route, const slc_box *box);

extern const luaL_Reg slc_explain_workers[]; /* explain_workers.c: shard slice coordinates feeders pieces */

#endif
