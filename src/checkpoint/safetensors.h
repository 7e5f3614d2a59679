/*
 * safetensors.h: reads checkpoints: one .safetensors file, or a sharded one by its index (*.safetensors.index.json), or a
 * directory that holds either. Files are mapped read-only; nothing is trusted: header length, offsets, shapes, overlaps and
 * gaps, the index' file names and its list of tensors are checked before a tensor is given out. Reading costs memory in
 * proportion to the headers, never to the tensors.
 *
 * A file must not shrink while it is open: the kernel answers a read behind its new end with SIGBUS, and the library
 * installs no handler. Replace a checkpoint by renaming a new file over the old one.
 */
#ifndef SLC_CHECKPOINT_SAFETENSORS_H
#define SLC_CHECKPOINT_SAFETENSORS_H

#include "base/dtype.h"
#include "plan/box.h"
#include "sluice.h"

typedef struct slc_checkpoint slc_checkpoint;

/*
 * One tensor; all of it is valid until the checkpoint is closed. ndim may be 0 (one element). The format allows extents of 0:
 * such a tensor has 0 bytes and its data must not be read. The format counts F4 tensors in values of 4 bits; here, as in
 * torch, float4_e2m1fn_x2 counts bytes: the last extent is half of what the file says.
 */
typedef struct slc_checkpoint_tensor {
    const char *name;
    const slc_dtype *dtype;
    int ndim;
    int64_t shape[SLC_MAX_DIMS];
    const void *data; /* inside the mapping, row-major; any alignment */
    size_t bytes;
} slc_checkpoint_tensor;

/*
 * Opens `path`: a directory with model.safetensors, or else with exactly one *.safetensors.index.json; an index (a name that
 * ends in .index.json); or a safetensors file. *checkpoint is NULL on failure; release it with slc_checkpoint_close.
 * Errors: INVALID ("checkpoint: FILE: tensor "x": what was found, the rule"), SYSTEM (a file that cannot be read), NO_MEMORY.
 * Refused are also: a tensor in two files, a tensor that the index lists and its file lacks or the other way round, an
 * index that names a file outside its directory, keys that the format does not know, more than SLC_MAX_DIMS dims.
 */
sluice_status slc_checkpoint_open(const char *path, slc_checkpoint **checkpoint, sluice_error *error);
void slc_checkpoint_close(slc_checkpoint *checkpoint); /* NULL is allowed */
size_t slc_checkpoint_count(const slc_checkpoint *checkpoint);

/* In the order of names (bytes); NULL past the end. */
const slc_checkpoint_tensor *slc_checkpoint_at(const slc_checkpoint *checkpoint, size_t index);

/* NULL where there is none. */
const slc_checkpoint_tensor *slc_checkpoint_find(const slc_checkpoint *checkpoint, const char *name);

#endif
