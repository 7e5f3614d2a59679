/* rehearse.h: a worker's program tried in this process, with generated values and no live memory of anybody's. */
#ifndef SLC_CLI_REHEARSE_H
#define SLC_CLI_REHEARSE_H

#include "plan/program.h"

/*
 * Moves parameter `index` of a plan that is complete and checked into memory of its own, as `program`, a worker's, says, and
 * verifies every byte from the first to the last that is written of each tensor. *bytes grows by these. INTERNAL where one differs.
 */
sluice_status slc_rehearse(const slc_plan *plan, const slc_live_set *live, const slc_program *program, size_t index, uint64_t *bytes,
                           sluice_error *error);

#endif
