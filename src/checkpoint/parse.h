/*
 * parse.h: the two JSON texts of a checkpoint, checked: the header of one safetensors file, and the index of a sharded one.
 * Private to src/checkpoint/. Opens no file.
 */
#ifndef SLC_CHECKPOINT_PARSE_H
#define SLC_CHECKPOINT_PARSE_H

#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"

#define STAGE "checkpoint"
#define slc_refuse(error, ...) slc_fail(error, SLUICE_INVALID, STAGE, __VA_ARGS__)
#define SLC_LARGEST_HEADER 100000000 /* bytes, as the format has it; also of an index */
#define SLC_SHOWN 160

/* A name from outside for a message: cut to fit, control characters replaced. Returns `out`. */
const char *slc_checkpoint_shown(const char *text, char out[SLC_SHOWN]);

/*
 * Appends the tensors (slc_checkpoint_tensor) of the file whose `size` bytes begin at `map` to the empty `list`, in the order
 * of their data; names live in `arena`. A name may stand there twice: who joins the lists sees it. `file` is the path, for
 * messages.
 */
sluice_status slc_checkpoint_header(const char *file, const void *map, size_t size, slc_arena *arena, slc_buffer *list,
                                    sluice_error *error);

/* One entry of an index: the tensor lies in the file of that plain name, in the index' directory. */
typedef struct slc_checkpoint_entry {
    const char *tensor, *file;
} slc_checkpoint_entry;

/* Appends the entries (slc_checkpoint_entry) of an index to the empty `list`, in the order of tensor names; no tensor twice. */
sluice_status slc_checkpoint_index(const char *file, const void *text, size_t length, slc_arena *arena, slc_buffer *list,
                                   sluice_error *error);

#endif
