/* save.h: what a worker holds, written as one safetensors file: DIR/worker-N.safetensors, N counted among the workers. */
#ifndef SLC_CLI_SAVE_H
#define SLC_CLI_SAVE_H

#include "cli/job.h"

/*
 * Before anything moves: the folder job->save is there (it is made; what it lies in must exist) and can be written to.
 * Nothing where job->save is NULL. INVALID or SYSTEM names the folder.
 */
sluice_status slc_save_prepare(const slc_job *job, sluice_error *error);

/* Writes all live tensors as they are. *bytes is the size of the file. Errors as slc_checkpoint_write has them. */
sluice_status slc_save(const slc_job *job, const volatile bool *cancelled, uint64_t *bytes, sluice_error *error);

#endif
