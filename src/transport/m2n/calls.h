/* calls.h: a whole plan as reshards, in plan order, and what of it is left to another transport. Owns its lists. */
#ifndef SLC_TRANSPORT_M2N_CALLS_H
#define SLC_TRANSPORT_M2N_CALLS_H

#include "transport/m2n/express.h"

/* Initialise with {0}. */
typedef struct slc_m2n_calls {
    size_t count;
    slc_m2n_call *call;
    size_t *first; /* by parameter: where its calls begin; one more entry than there are parameters */
    size_t elsewhere; /* parameters that move and have no call: transport nccl carries them whole */
} slc_m2n_calls;

/*
 * Every reshard of a complete plan, the same list on every rank: one a full parameter, one a target of a direct one that brings
 * bytes; `staging` as in slc_m2n_express. A parameter with a target that m2n cannot move is left out whole where `mix` allows it,
 * else UNSUPPORTED: the message is the first such parameter's, and says how many more there are. NO_MEMORY. Ended by slc_m2n_calls_clear.
 */
sluice_status slc_m2n_calls_make(const slc_plan *plan, bool mix, uint64_t staging, slc_m2n_calls *calls, sluice_error *error);
void slc_m2n_calls_clear(slc_m2n_calls *calls); /* a cleared one may be cleared again */

/* Whether parameter `index`, which moves, is left to transport nccl. */
bool slc_m2n_elsewhere(const slc_plan *plan, const slc_m2n_calls *calls, size_t index);

/*
 * Where a direct call writes on worker `rank`: the live tensor and the bytes from its data; *live is SIZE_MAX on a worker that
 * takes no part. UNSUPPORTED where the tensor's strides leave gaps in what is written, which only the worker can know; the
 * message names the parameter and the live tensor. What slc_coverage_check refuses is refused here, too.
 */
sluice_status slc_m2n_land(const slc_plan *plan, const slc_m2n_call *call, const slc_live_set *set, int32_t rank, size_t *live,
                           int64_t *offset, sluice_error *error);

#endif
