/*
 * admission.h: rank 0's side of the rendezvous: it listens, hears who comes, keeps the ranks of its world and turns all
 * others away, until everyone is there or nobody is left to wait for. Private to control.
 */
#ifndef SLC_CONTROL_ADMISSION_H
#define SLC_CONTROL_ADMISSION_H

#include "control/claim.h"
#include "control/rendezvous.h"

/* *group is NULL on failure; every rank that came has then been told why. */
sluice_status slc_admission_run(const slc_rendezvous_options *options, const slc_claim *own, slc_group **group, sluice_error *error);

#endif
