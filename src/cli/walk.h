/*
 * walk.h: goes through a box that lies in two row-major tensors at once, in stretches that are contiguous in the first.
 * The verifier, the fill of trainer shards and the example of a host's load_weights use it. It is on purpose no part of
 * src/plan and shares nothing with it: what checks a planner must not be the planner.
 */
#ifndef SLC_CLI_WALK_H
#define SLC_CLI_WALK_H

#include "cli/job.h"

/*
 * One stretch: `units` pieces of `unit` bytes each, side by side in the source from byte `source` on; in the live tensor
 * piece i starts at live + i * step. Where both sides are contiguous there is one piece.
 */
typedef struct slc_stretch {
    int64_t source, live;
    int64_t unit, units, step;
} slc_stretch;

typedef struct slc_walk {
    int ndim; /* outer dims that are left after merging */
    int64_t count[SLC_JOB_DIMS], at[SLC_JOB_DIMS], source[SLC_JOB_DIMS], live[SLC_JOB_DIMS];
    slc_stretch stretch;
    bool done;
} slc_walk;

/* Over the box of `content` between a parameter of `param_ndim` dims and a live tensor; `element` in bytes. */
void slc_walk_begin(slc_walk *walk, const slc_content *content, int param_ndim, const int64_t *param_shape, int live_ndim,
                    const int64_t *live_shape, int64_t element);
bool slc_walk_next(slc_walk *walk, slc_stretch *stretch); /* false at the end */

#endif
