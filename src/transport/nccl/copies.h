/*
 * copies.h: strided copies as copy engines take them: cut into spans and boxes of rows, gathered, and launched together, in
 * one call of the driver each where it knows batches.
 */
#ifndef SLC_TRANSPORT_NCCL_COPIES_H
#define SLC_TRANSPORT_NCCL_COPIES_H

#include "plan/program.h"
#include "transport/nccl/load.h"

/*
 * One copy: `height` rows of `width` bytes in `depth` layers; a span has height and depth 1. Pitches are bytes from row to
 * row, layers rows from layer to layer.
 */
typedef struct slc_landing {
    bool staged; /* `to` counts from the start of a staging slot */
    bool by_kernel; /* not left to copy engines; see way.c */
    uint64_t to; /* as mapped here */
    int64_t from; /* from the start of this rank's shard */
    int64_t width, height, depth;
    int64_t from_pitch, to_pitch, from_layer, to_layer;
} slc_landing;

typedef sluice_status (*slc_take_landing)(void *context, const slc_landing *landing, sluice_error *error);
/*
 * As few landings as the strides allow: the two innermost dims are rows and layers, each step of the others is one more.
 * `first` is the run that begins it, with height and depth 1. Ends with the first `take` that is not OK.
 */
sluice_status slc_landing_cut(const slc_stride *dim, uint32_t ndim, const slc_landing *first, slc_take_landing take,
                              void *context, sluice_error *error);

/* Gathered for one launch. */
typedef struct slc_copies {
    size_t nspans, nboxes, capacity; /* room for `capacity` of each */
    CUdeviceptr *to, *from; /* spans */
    size_t *bytes;
    CUDA_MEMCPY3D_BATCH_OP *box;
} slc_copies;

/* Room for `capacity` spans and as many boxes. */
sluice_status slc_copies_make(slc_copies *copies, size_t capacity, sluice_error *error);
void slc_copies_clear(slc_copies *copies); /* a zeroed one is allowed */

/* How many are gathered. */
static inline size_t slc_copies_count(const slc_copies *copies) { return copies->nspans + copies->nboxes; }
/* `to` and `from` as the device knows them; those of the landing are not looked at. There must be room. */
void slc_copies_add(slc_copies *copies, const slc_landing *landing, CUdeviceptr to, CUdeviceptr from);
/* Moves what is gathered to a gathering of its own, just large enough; `from` begins anew, also where that fails. */
sluice_status slc_copies_take(slc_copies *from, slc_copies *to, sluice_error *error);
/* Launches all that is gathered, which stays; any number of times. */
CUresult slc_copies_issue(const slc_cuda *cuda, slc_copies *copies, CUstream stream);
/* Launches all that is gathered, in no order among themselves, and begins anew. */
CUresult slc_copies_launch(const slc_cuda *cuda, slc_copies *copies, CUstream stream);

#endif
