/*
 * safetensors.h: reads checkpoints: one .safetensors file, or a sharded one by its index (*.safetensors.index.json), or a
 * directory that holds either. Files are mapped; nothing is trusted: header length, offsets, shapes and overlaps are
 * checked before a tensor is given out.
 */
#ifndef SLC_CHECKPOINT_SAFETENSORS_H
#define SLC_CHECKPOINT_SAFETENSORS_H

#include "base/dtype.h"
#include "plan/box.h"
#include "sluice.h"

typedef struct slc_checkpoint slc_checkpoint;

typedef struct slc_checkpoint_tensor {
    const char *name;
    const slc_dtype *dtype;
    int ndim;
    int64_t shape[SLC_MAX_DIMS];
    const void *data; /* inside the mapping, row-major; any alignment */
    size_t bytes;
} slc_checkpoint_tensor;

sluice_status slc_checkpoint_open(const char *path, slc_checkpoint **checkpoint, sluice_error *error);
void slc_checkpoint_close(slc_checkpoint *checkpoint);
size_t slc_checkpoint_count(const slc_checkpoint *checkpoint);
const slc_checkpoint_tensor *slc_checkpoint_at(const slc_checkpoint *checkpoint, size_t index); /* in the order of names */
const slc_checkpoint_tensor *slc_checkpoint_find(const slc_checkpoint *checkpoint, const char *name);

#endif
