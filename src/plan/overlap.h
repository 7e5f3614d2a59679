/* overlap.h: whether rectangles of strided ranges share an element, exactly. */
#ifndef SLC_PLAN_OVERLAP_H
#define SLC_PLAN_OVERLAP_H

#include <stddef.h>

#include "plan/box.h"
#include "sluice.h"

/* One rectangle: resolved ranges, `ndim` of them, the same for all that are compared. */
typedef struct slc_rectangle {
    const slc_range *range;
    size_t tag; /* the caller's; pairs come out ordered by it */
} slc_rectangle;

/* Whether two that share an element may, told by their tags. */
typedef bool (*slc_overlap_allowed)(const void *context, size_t first, size_t second);

/*
 * Looks for two that share an element and are not `allowed` to (NULL: none are); *found, then *first < *second are their
 * tags, the pair with the smallest second and then the smallest first. Reorders `rectangle`. Costs a sort, and grows with the
 * pairs that meet in the dim that tells them apart best. NO_MEMORY.
 */
sluice_status slc_overlap_find(slc_rectangle *rectangle, size_t count, int ndim, slc_overlap_allowed allowed,
                               const void *context, bool *found, size_t *first, size_t *second, sluice_error *error);

#endif
