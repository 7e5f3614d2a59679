/*
 * write.h: writes one safetensors file. What is written can be read by slc_checkpoint_open and by any other reader of the
 * format: tensors lie without gaps, each at a multiple of its element size.
 */
#ifndef SLC_CHECKPOINT_WRITE_H
#define SLC_CHECKPOINT_WRITE_H

#include "checkpoint/safetensors.h"

/*
 * Writes `count` tensors to `path`: into PATH.part first, which then takes the place of whatever is at `path`, so that nobody
 * ever reads half a file; after a failure there is neither. The tensors need not be in any order; `data` may be NULL where
 * `bytes` is 0. Memory follows the header, never the tensors. *written (may be NULL) is the size of the file.
 * Errors: INVALID (a name twice, or no UTF-8; bytes that are not shape times dtype; a header above the format's limit),
 * SYSTEM ("checkpoint: PATH.part cannot be written: No space left on device"), NO_MEMORY, CANCELLED when *cancelled (may be NULL).
 */
sluice_status slc_checkpoint_write(const char *path, const slc_checkpoint_tensor *tensors, size_t count,
                                   const volatile bool *cancelled, uint64_t *written, sluice_error *error);

#endif
