/*
 * given.h: structs that a host gives, built with any version of sluice.h. Their first member is their size in bytes, as the
 * host's compiler knew it; later versions only add members at the end, whose 0 means what was before there was such a member.
 */
#ifndef SLC_BASE_GIVEN_H
#define SLC_BASE_GIVEN_H

#include "sluice.h"

/*
 * Copies what the host's struct at `from` (NULL: INVALID) has in common with *to, a struct of `size` bytes that holds the
 * initial values. INVALID where its size is below `least`, cuts a member, or is larger and something that is not 0 stands
 * in the part that this library does not know. `name` is the struct's in messages, `type` its type.
 */
sluice_status slc_given_read(const void *from, void *to, size_t size, size_t least, const char *stage, const char *name, const char *type,
                             sluice_error *error);

/* Whether a call may write into the host's error: there is none, or its size is at least this library's. */
bool slc_given_error(const sluice_error *error);

#endif
