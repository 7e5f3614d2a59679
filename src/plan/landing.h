/* landing.h: where one target lands on one worker, checked against the worker's live tensors. */
#ifndef SLC_PLAN_LANDING_H
#define SLC_PLAN_LANDING_H

#include "plan/plan.h"

typedef struct slc_landing {
    bool holds;                     /* the layout gives this worker a box (it may be empty) that has a live tensor */
    int ndim;                       /* of the strip */
    int64_t shape[SLC_MAX_DIMS];    /* of the strip */
    slc_box box;                    /* this worker's, in the strip */
    size_t live;                    /* index in the live set */
    slc_window window;              /* in the strip's dims; extents at least the box', larger only with padding */
    slc_range range[SLC_MAX_DIMS];  /* the view's, resolved, in the live tensor's dims */
    int64_t item;                   /* bytes of an element */
    int64_t unit[SLC_MAX_DIMS];     /* elements of the strip for one of the window; 1 but for scales */
    bool clears;                    /* the target only clears the window (SLC_PAD_CLEAR) */
} slc_landing;

/* How many of the window's elements along dim `dim` the box fills. */
static inline int64_t slc_landing_held(const slc_landing *landing, int dim)
{
    int64_t extent = landing->box.high[dim] - landing->box.low[dim], unit = landing->unit[dim];
    return extent / unit + (extent % unit != 0);
}

/*
 * Checks 1 and 2 of coverage.h. A worker whose box is empty, or that would only clear, needs no live tensor. INVALID: no live tensor of that name,
 * another dtype, a view that leaves it, a window that is not the box (nor larger with padding).
 */
sluice_status slc_target_land(const slc_param *param, const slc_target *target, const slc_live_set *live, int32_t rank,
                              slc_landing *landing, sluice_error *error);

#endif
