/*
 * mirror.h: one block of tensors where the transport wants them: in this process' memory, or on a GPU, with a copy here in
 * which values are written and checked. Without a GPU both are the same bytes.
 */
#ifndef SLC_CLI_MIRROR_H
#define SLC_CLI_MIRROR_H

#include <stddef.h>

#include "cli/job.h"
#include "transport/nccl/plugin.h"

/* Initialise with {0}. */
typedef struct slc_mirror {
    unsigned char *here;  /* to be read and written */
    unsigned char *there; /* to be registered */
    size_t bytes;
    const slc_gpu_ops *ops; /* NULL without a GPU */
    slc_gpu *gpu;
    unsigned char *borrowed; /* of the tensor borrowed last */
    size_t borrowed_bytes;
} slc_mirror;

/*
 * Makes the block. With transport nccl it lies on the GPU of this rank. Ranks fill the GPUs that this process sees in world
 * order, as `sluice simulate` has it: one each, or where there are fewer GPUs as many on each as it takes. Where a launcher sets
 * LOCAL_RANK, that counts, around the GPUs. `here` may come from elsewhere: then it is borrowed.
 */
sluice_status slc_mirror_make(slc_mirror *mirror, const slc_job *job, unsigned char *here, size_t bytes, sluice_error *error);

/* What is `here` goes there, or what is there comes here; `at` points into `here`. Nothing to do without a GPU. */
sluice_status slc_mirror_send(const slc_mirror *mirror, const unsigned char *at, size_t bytes, sluice_error *error);
sluice_status slc_mirror_fetch(const slc_mirror *mirror, unsigned char *at, size_t bytes, sluice_error *error);

/* A tensor that the library hands out: *data is where its bytes can be read here, until the next call. */
sluice_status slc_mirror_borrow(slc_mirror *mirror, const void *tensor, size_t bytes, const unsigned char **data, sluice_error *error);

/* Where what is at `at` here is registered. */
static inline unsigned char *slc_mirror_there(const slc_mirror *mirror, const unsigned char *at)
{
    return mirror->there + (at - mirror->here);
}

/* Releases the GPU's block. */
void slc_mirror_clear(slc_mirror *mirror);

#endif
