/*
 * express.h: what of a plan nccl_m2n can say, and how. It knows one kind of move: a tensor of 1 to 3 dims from one contiguous
 * interval of ranks to another, on each side cut evenly along at most one dim over a mesh of two axes, whole shards without
 * gaps in memory. A layout of more axes is brought to that form where it gives every rank the same box: neighbours that
 * replicate, or that cut one dim in the mesh's own order, are one axis, leading pins narrow the interval, a layout that cuts
 * nothing is (size, 1). Pure arithmetic from the plan alone, the same on every rank; no library is asked.
 */
#ifndef SLC_TRANSPORT_M2N_EXPRESS_H
#define SLC_TRANSPORT_M2N_EXPRESS_H

#include "plan/plan.h"

#define SLC_M2N_DIMS 3 /* of a tensor */
#define SLC_M2N_SOURCES 16 /* source shards that meet in one destination shard */
#define SLC_M2N_TARGETS 64 /* destination shards that one source shard meets */
#define SLC_M2N_WHOLE (-1) /* as `placement`: the axis replicates */

/* One side: ranks [start, start + dims[0] * dims[1]), row-major. Exactly one axis cuts, if only over one rank. */
typedef struct slc_m2n_side {
    int32_t start;
    int32_t dims[2];
    int placement[2]; /* the dim that the axis cuts, or SLC_M2N_WHOLE */
    int64_t held[SLC_M2N_DIMS]; /* what every rank of the side holds, in elements */
} slc_m2n_side;

/* One reshard: a target of a direct parameter, or a full parameter (target 0) to every worker. */
typedef struct slc_m2n_call {
    uint32_t param, target;
    int ndim;
    int64_t item; /* bytes of an element; its dtype does not matter */
    int64_t offset; /* bytes from the start of a trainer's shard to what is taken */
    slc_m2n_side source, destination;
} slc_m2n_call;

/*
 * Whether a target of parameter `index`, which is direct, or the parameter itself, which is full, can be one reshard, of which
 * no rank holds more than `staging` bytes. UNSUPPORTED otherwise: the message says the rule's place, the parameter and the
 * reason, under the stage "runtime".
 */
sluice_status slc_m2n_express(const slc_plan *plan, size_t index, uint32_t target, uint64_t staging, slc_m2n_call *call,
                              sluice_error *error);

/*
 * The most bytes that a rank may hold on either side of one reshard, as the environment says: its largest staging buffer,
 * unless NCCL_RESHARD_COPY_ALGORITHM chooses one that moves a tensor in chunks. Never 2^32 or more, of which the library is
 * known to hang without a word.
 */
uint64_t slc_m2n_staging(void);

#endif
