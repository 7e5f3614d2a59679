/* box.h: half-open rectangles of a tensor, and strided ranges along one dim. Pure arithmetic. */
#ifndef SLC_PLAN_BOX_H
#define SLC_PLAN_BOX_H

#include <stdbool.h>
#include <stdint.h>

#define SLC_MAX_DIMS 8 /* of a tensor; a tensor may have 0: one element */

/* [low, high) in every dim; empty when any dim is. With ndim 0 it holds the one element. */
typedef struct slc_box {
    int ndim;
    int64_t low[SLC_MAX_DIMS], high[SLC_MAX_DIMS];
} slc_box;

/* The whole tensor. */
slc_box slc_box_whole(int ndim, const int64_t *shape);
bool slc_box_empty(const slc_box *box); /* whether some dim is */
int64_t slc_box_volume(const slc_box *box); /* elements; 0 when empty. The tensor's own volume must fit, as slc_plan_add checks */
slc_box slc_box_intersect(const slc_box *a, const slc_box *b); /* same ndim */

/*
 * The indices start, start + step, ... (count of them, step at least 1) of one dim. SLC_TO_END as count means: as many as
 * the dim holds from `start`. With `select` the range is one index (count 1) and the dim disappears from what is seen.
 */
#define SLC_TO_END (-1)

typedef struct slc_range {
    int64_t start, step, count;
    bool select;
} slc_range;

#define SLC_RANGE_ALL ((slc_range){ .start = 0, .step = 1, .count = SLC_TO_END, .select = false })

/* The range with its count filled in for a dim of `extent`; false when it does not lie inside. */
bool slc_range_resolve(slc_range range, int64_t extent, slc_range *resolved);

/* Positions [*low, *high) within a resolved range whose indices lie in [from, to). Empty: *low == *high. */
void slc_range_clip(slc_range range, int64_t from, int64_t to, int64_t *low, int64_t *high);

/* Whether two resolved ranges share an index, in closed form. */
bool slc_range_meets(slc_range a, slc_range b);

#endif
