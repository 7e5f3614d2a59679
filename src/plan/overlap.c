/* overlap.c: a sweep over rectangles of ranges along one dim. Owns nothing beyond the call. */
#include "plan/overlap.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

typedef struct span {
    int64_t low, last;
    slc_rectangle rectangle;
} span;

static int64_t last_of(slc_range range)
{
    return range.start + (range.count - 1) * range.step;
}

static bool empty(const slc_range *range, int ndim)
{
    for (int d = 0; d < ndim; d++)
        if (range[d].count == 0)
            return true;
    return false;
}

static bool share(const slc_range *a, const slc_range *b, int ndim)
{
    for (int d = 0; d < ndim; d++)
        if (!slc_range_meets(a[d], b[d]))
            return false;
    return true;
}

/* The dim along which the rectangles are thinnest beside the room they take together: there a sweep meets the fewest pairs. */
static int best_dim(const slc_rectangle *rectangle, size_t count, int ndim)
{
    int best = 0;
    double thinnest = 0;
    for (int d = 0; d < ndim; d++) {
        int64_t low = INT64_MAX, high = 0;
        double sum = 0;
        for (size_t i = 0; i < count; i++) {
            slc_range range = rectangle[i].range[d];
            if (range.count == 0)
                continue;
            low = range.start < low ? range.start : low;
            high = last_of(range) + 1 > high ? last_of(range) + 1 : high;
            sum += (double)(last_of(range) + 1 - range.start);
        }
        double thickness = high > low ? sum / (double)(high - low) : 0;
        if (d == 0 || thickness < thinnest) {
            thinnest = thickness;
            best = d;
        }
    }
    return best;
}

static int by_low(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    return x->rectangle.tag < y->rectangle.tag ? -1 : x->rectangle.tag > y->rectangle.tag;
}

static void note(size_t a, size_t b, bool *found, size_t *first, size_t *second)
{
    size_t low = a < b ? a : b, high = a < b ? b : a;
    if (*found && (high > *second || (high == *second && low >= *first)))
        return;
    *found = true;
    *first = low;
    *second = high;
}

sluice_status slc_overlap_find(slc_rectangle *rectangle, size_t count, int ndim, slc_overlap_allowed allowed, const void *context,
                               bool *found, size_t *first, size_t *second, sluice_error *error)
{
    *found = false;
    if (count < 2)
        return SLUICE_OK;
    span *sorted = slc_allocate_zeroed(count, sizeof *sorted), **open = slc_allocate_zeroed(count, sizeof *open);
    size_t filled = 0, nopen = 0;
    if (sorted == NULL || open == NULL) {
        slc_release(sorted);
        slc_release(open);
        return slc_fail_memory(error, "destination", "the search for overlaps", count * sizeof *sorted);
    }
    int dim = best_dim(rectangle, count, ndim);
    for (size_t i = 0; i < count; i++) {
        if (empty(rectangle[i].range, ndim))
            continue;
        span *added = &sorted[filled++];
        added->rectangle = rectangle[i];
        added->low = ndim == 0 ? 0 : rectangle[i].range[dim].start;
        added->last = ndim == 0 ? 0 : last_of(rectangle[i].range[dim]);
    }
    qsort(sorted, filled, sizeof *sorted, by_low);
    for (size_t i = 0; i < filled; i++) {
        size_t kept = 0;
        for (size_t k = 0; k < nopen; k++) {
            if (open[k]->last < sorted[i].low)
                continue;
            open[kept++] = open[k];
            if (share(open[k]->rectangle.range, sorted[i].rectangle.range, ndim) &&
                (allowed == NULL || !allowed(context, open[k]->rectangle.tag, sorted[i].rectangle.tag)))
                note(open[k]->rectangle.tag, sorted[i].rectangle.tag, found, first, second);
        }
        open[kept++] = &sorted[i];
        nopen = kept;
    }
    slc_release(open);
    slc_release(sorted);
    return SLUICE_OK;
}
