/*
 * reshards.h: the reshards of one transport m2n. Parameters of a batch are gathered in the order asked, which is the same on
 * every rank, and submitted at its end, or at a full parameter, which must be in its slot: one submission at a time on one
 * communicator and one stream, and no other before the GPU is through with it.
 */
#ifndef SLC_TRANSPORT_M2N_RESHARDS_H
#define SLC_TRANSPORT_M2N_RESHARDS_H

#include "transport/m2n/calls.h"
#include "transport/m2n/epoch.h"
#include "transport/m2n/rest.h"
#include "transport/nccl/internal.h"

/* Where a call writes on this worker. */
typedef struct slc_m2n_spot {
    size_t live; /* SIZE_MAX: nowhere */
    int64_t offset;
} slc_m2n_spot;

typedef struct slc_reshards {
    const slc_program *whole; /* the engine's; the transport's own is rest.program */
    slc_m2n_calls calls;
    slc_m2n_rest rest;
    slc_m2n_spot *spot; /* worker: by call */
    const void **known; /* trainer: see slc_wire_check_source */
    slc_m2n_member *member; /* NULL where there are no calls */
    slc_orders orders;  /* gathered */
    bool active;        /* in the batch under way: the member's stream is behind the host's */
    CUevent moved;
    CUdeviceptr trial;
} slc_reshards;

/* The lists, from the plan alone. UNSUPPORTED names what cannot be expressed and must not be mixed. */
sluice_status slc_reshards_make(const slc_transport_config *config, slc_reshards **reshards, sluice_error *error);
void slc_reshards_free(slc_reshards *reshards); /* NULL is allowed; the library's part is ended */

/* The library and what of the GPU is wanted; the device is entered, here and below. */
sluice_status slc_reshards_open(slc_transport *transport, sluice_error *error);
/* When the communicator is there: a few bytes from all trainers to all workers, so that what cannot work fails now. */
sluice_status slc_reshards_try(slc_transport *transport, slc_wait *wait, sluice_error *error);

/* A parameter that reshards move; a full one is in its slot on return. */
sluice_status slc_reshards_move(slc_transport *transport, uint32_t param, void *staging, slc_wait *wait, sluice_error *error);
/* The batch is over on this rank's GPU, or the wait for that. */
sluice_status slc_reshards_end(slc_transport *transport, slc_wait *wait, sluice_error *error);

/*
 * Device work ends within seconds. What it works on stays until the transport is closed, since kernels of other ranks, which hear
 * of the end a little later, may still reach into it; only where the kernels here do not end otherwise it is taken from them.
 */
void slc_reshards_abort(slc_transport *transport);
/* Device work ends, by force where the transport is broken; the library and the communicators are left. */
void slc_reshards_close(slc_transport *transport, bool broken);

#endif
