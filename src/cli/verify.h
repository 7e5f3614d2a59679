/*
 * verify.h: whether every live byte of a worker is what the description says. The description (lua/sluice/models/) and the
 * values (values.h) are all that it trusts; no part of the planner, the rules or the transport takes part.
 */
#ifndef SLC_CLI_VERIFY_H
#define SLC_CLI_VERIFY_H

#include "cli/job.h"

/*
 * The description itself: in each live tensor the boxes of contents and zeros are disjoint and add up to the whole.
 * INVALID names the live tensor and how many bytes nothing speaks of, or the two boxes that meet.
 */
sluice_status slc_verify_description(const slc_job *job, sluice_error *error);

/*
 * Compares all live tensors with the values of `update`. *checked are the bytes compared, zeros included. A difference:
 * INTERNAL with the live tensor, its index, the parameter and its index, the bytes expected and found, whether they are
 * those of an earlier update or of memory never written, and how many live tensors differ. CANCELLED when *cancelled.
 */
sluice_status slc_verify(const slc_job *job, uint64_t update, const volatile bool *cancelled, uint64_t *checked, sluice_error *error);

#endif
