/*
 * apart.h: a call into a foreign library that may not come back, made on a thread of its own, so that one that hangs costs its
 * thread and no more. What the call works on belongs to it from the start until it is taken back, and never to a transport
 * that may be gone by the time it returns.
 */
#ifndef SLC_TRANSPORT_APART_H
#define SLC_TRANSPORT_APART_H

#include "sluice.h"

#include <stdbool.h>

typedef struct slc_apart slc_apart;

/* Runs `run` on a new thread. On failure nothing ran, and `context` is still the caller's. */
sluice_status slc_apart_start(void (*run)(void *context), void (*release)(void *context), void *context, slc_apart **apart,
                              sluice_error *error);

/* Whether it has come back. */
bool slc_apart_over(const slc_apart *apart);

/*
 * Ends it: where it has come back, or does within `seconds`, true, and the context is the caller's again; else false, and the
 * thread releases the context itself if it ever returns.
 */
bool slc_apart_end(slc_apart *apart, double seconds);

#endif
