/* flow.h: what one rank of a plan sends or receives in an update, without its live tensors. */
#ifndef SLC_CLI_FLOW_H
#define SLC_CLI_FLOW_H

#include "plan/plan.h"

struct lua_State;

/*
 * Pushes { bytes, pieces, peers = { { rank, bytes, pieces }, ... } in the order of ranks, parameters = { { name, bytes, pieces,
 * peers = how many }, ... } in the plan's order } and returns 1; or nil, a text and a status. Parameters without a
 * destination count as nothing.
 */
int slc_flow_push(struct lua_State *L, const slc_plan *plan, int32_t rank);

#endif
