/*
 * rest.h: a program without what reshards move: what is left is transport nccl's, padding to be cleared among it. Owns lists
 * of its own; copies and fills stay the whole program's.
 */
#ifndef SLC_TRANSPORT_M2N_REST_H
#define SLC_TRANSPORT_M2N_REST_H

#include "plan/program.h"
#include "transport/m2n/calls.h"

/* Initialise with {0}. */
typedef struct slc_m2n_rest {
    slc_program program; /* segments by plan index, peers only those that it still exchanges with */
    size_t *inner;       /* by peer of the whole program: which it is in this one, or SIZE_MAX */
    bool *reshards;      /* by peer of the whole program: whether reshards exchange with it */
} slc_m2n_rest;

/* NO_MEMORY. Ended by slc_m2n_rest_clear. */
sluice_status slc_m2n_rest_make(const slc_program *whole, const slc_m2n_calls *calls, slc_m2n_rest *rest, sluice_error *error);
void slc_m2n_rest_clear(slc_m2n_rest *rest); /* a cleared one may be cleared again */

/* Whether reshards move parameter `index`. */
static inline bool slc_m2n_carries(const slc_m2n_calls *calls, size_t index) { return calls->first[index] < calls->first[index + 1]; }

#endif
