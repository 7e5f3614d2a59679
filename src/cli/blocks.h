/*
 * blocks.h: what a box of a live tensor holds whose parameter is converted in blocks (base/cast.h), block by block. For the
 * verifier and the example of a host's load_weights; like walk.h no part of src/plan, and sharing nothing with it.
 */
#ifndef SLC_CLI_BLOCKS_H
#define SLC_CLI_BLOCKS_H

#include "cli/job.h"

/* Bytes [offset, offset + count) of the whole parameter. */
typedef void (*slc_blocks_read)(void *context, uint64_t offset, unsigned char *out, size_t count);
/* What must lie at byte `live` of the live tensor; the first of it comes from byte `source` of the parameter. */
typedef void (*slc_blocks_visit)(void *context, uint64_t source, int64_t live, const unsigned char *bytes, size_t count);

/* Visits all of the box, whose conversion is `cast`, elements or scales. */
void slc_blocks_go(const slc_job_param *param, const slc_served *served, const slc_content *content, slc_cast cast,
                   slc_blocks_read read, slc_blocks_visit visit, void *context);

#endif
