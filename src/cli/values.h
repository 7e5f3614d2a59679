/*
 * values.h: the bytes that a tensor holds in an update. Any stretch of any tensor can be made without the rest, so that
 * trainers fill only their shards and workers check only what they hold, and neither asks the other.
 *
 * Generated tensors: the 8-byte word w of a tensor is a mix of (name, update, w). A tensor with checkpoint bytes holds them
 * as they are in update 1 and combined (xor) with that generator in every later one, so that each update brings new values.
 */
#ifndef SLC_CLI_VALUES_H
#define SLC_CLI_VALUES_H

#include <stddef.h>
#include <stdint.h>

/* A byte of live memory that nobody wrote since it was allocated. */
#define SLC_POISON 0xDB

typedef struct slc_values {
    uint64_t seed;             /* of the name */
    const unsigned char *base; /* checkpoint bytes of the whole tensor, or NULL; borrowed, any alignment */
} slc_values;

/* `base` may be NULL: generated from the name alone. */
slc_values slc_values_of(const char *name, const void *base);

/* Writes bytes [offset, offset + count) of the whole row-major tensor, as they are in `update` (1, 2, ...). */
void slc_values_write(const slc_values *values, uint64_t update, uint64_t offset, void *out, size_t count);

#endif
