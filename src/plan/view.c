/* view.c: the live tensors of one worker, and views on them. A live set owns its texts, never the tensors' memory. */
#include "plan/view.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/text.h"

/* ---- what may be registered ---- */

static bool empty(const slc_live *live)
{
    for (int d = 0; d < live->ndim; d++)
        if (live->shape[d] == 0)
            return true;
    return false;
}

/* From the first byte of the tensor to behind its last; false when it does not fit. 0 for an empty tensor. */
static bool reach_of(const slc_live *live, int64_t *bytes)
{
    *bytes = 0;
    if (empty(live))
        return true;
    int64_t reach = live->dtype->bytes, volume = reach, part;
    for (int d = 0; d < live->ndim; d++)
        if (!slc_multiply(live->shape[d] - 1, live->stride[d], &part) || !slc_add(reach, part, &reach) ||
            !slc_multiply(volume, live->shape[d], &volume) || volume > SLC_MAX_BYTES)
            return false;
    *bytes = reach;
    return reach <= SLC_MAX_BYTES && (uint64_t)reach <= UINTPTR_MAX - (uintptr_t)live->data;
}

typedef struct knot {
    int ndim;
    int64_t count[SLC_MAX_DIMS], stride[SLC_MAX_DIMS],
        reach[SLC_MAX_DIMS + 1]; /* widest stride first; reach of the dims behind */
    int64_t item;
    int64_t steps; /* left before the search gives up */
} knot;

/* Whether index differences in dims [d, ndim), not all zero unless `moved`, bring two elements within one item of `apart`. */
static bool collides(knot *k, int d, int64_t apart, bool moved)
{
    if (d == k->ndim)
        return moved && apart < k->item && -apart < k->item;
    if (--k->steps < 0)
        return true;
    int64_t stride = k->stride[d], slack = k->reach[d + 1] + k->item - 1;
    for (int64_t difference = moved ? 1 - k->count[d] : 0; difference < k->count[d]; difference++) {
        int64_t there = apart + difference * stride;
        if (there > slack)
            break;
        if (there < -slack) {
            int64_t skip = (-slack - there - 1) / stride; /* strides are at least 1 here */
            difference += skip;
            continue;
        }
        if (collides(k, d + 1, there, moved || difference != 0))
            return true;
    }
    return false;
}

/* Whether two elements share a byte. Exact, save that a tangle of strides that takes too long to search counts as shared. */
static bool shares_bytes(const slc_live *live)
{
    knot k = { .item = live->dtype->bytes, .steps = 1 << 20 };
    if (empty(live))
        return false;
    for (int d = 0; d < live->ndim; d++) {
        if (live->shape[d] == 1)
            continue;
        int at = k.ndim++;
        for (; at > 0 && k.stride[at - 1] < live->stride[d]; at--) {
            k.stride[at] = k.stride[at - 1];
            k.count[at] = k.count[at - 1];
        }
        k.stride[at] = live->stride[d];
        k.count[at] = live->shape[d];
    }
    bool nested = true;
    for (int d = k.ndim - 1; d >= 0; d--) {
        nested = nested && k.stride[d] >= k.reach[d + 1] + k.item;
        k.reach[d] = k.reach[d + 1] + (k.count[d] - 1) * k.stride[d];
    }
    if (nested)
        return false;
    return k.stride[k.ndim - 1] == 0 || collides(&k, 0, 0, false);
}

static sluice_status check(const slc_live_set *set, const slc_live *live, sluice_error *error)
{
    if (live->name == NULL || live->name[0] == '\0')
        return slc_fail(error, SLUICE_INVALID, "register", "live[%zu] has no name", set->count);
    if (strlen(live->name) > SLC_MAX_NAME)
        return slc_fail(error, SLUICE_INVALID, "register", "live[%zu] has a name of %zu bytes; %d are allowed", set->count,
                        strlen(live->name), SLC_MAX_NAME);
    if (!slc_text_is_utf8(live->name))
        return slc_fail(error, SLUICE_INVALID, "register", "the name of live[%zu] (%.1000s) must be UTF-8", set->count, live->name);
    if (slc_live_set_find(set, live->name) != NULL)
        return slc_fail(error, SLUICE_INVALID, "register", "live '%s' is registered twice", live->name);
    if (live->dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, "register", "live '%s' has no dtype", live->name);
    if (live->ndim < 0 || live->ndim > SLC_MAX_DIMS)
        return slc_fail(error, SLUICE_INVALID, "register", "live '%s' has %d dims; 0 to %d are allowed", live->name, live->ndim,
                        SLC_MAX_DIMS);
    for (int d = 0; d < live->ndim; d++) {
        if (live->shape[d] < 0)
            return slc_fail(error, SLUICE_INVALID, "register", "live '%s' shape[%d] (%lld) must not be negative", live->name, d,
                            (long long)live->shape[d]);
        if (live->stride[d] < 0)
            return slc_fail(error, SLUICE_INVALID, "register", "live '%s' stride[%d] (%lld bytes) must not be negative", live->name,
                            d, (long long)live->stride[d]);
    }
    char shape[SLC_SHAPE_TEXT], stride[SLC_SHAPE_TEXT];
    int64_t bytes;
    slc_shape_text(live->ndim, live->shape, shape);
    slc_shape_text(live->ndim, live->stride, stride);
    if (!reach_of(live, &bytes))
        return slc_fail(error, SLUICE_INVALID, "register",
                        "live '%s' of shape %s and strides %s bytes does not fit the address space", live->name, shape, stride);
    if (shares_bytes(live))
        return slc_fail(error, SLUICE_INVALID, "register", "live '%s' of shape %s and strides %s bytes has elements that share bytes",
                        live->name, shape, stride);
    return SLUICE_OK;
}

/* ---- the set ---- */

sluice_status slc_live_set_add(slc_live_set *set, const slc_live *live, sluice_error *error)
{
    sluice_status status = check(set, live, error);
    if (status != SLUICE_OK)
        return status;
    const char *given = live->attributes == NULL ? "{}" : live->attributes;
    const char *attributes = SLC_ROOM(set->item, set->capacity, set->count, 16) ? slc_arena_text(&set->arena, given, strlen(given)) : NULL;
    bool added;
    size_t number = attributes == NULL ? SLC_NO_NAME : slc_names_add(&set->names, live->name, &added);
    if (number == SLC_NO_NAME)
        return slc_fail_memory(error, "register", "a live tensor", sizeof *live + strlen(live->name) + strlen(given));
    slc_live *copy = &set->item[set->count++];
    *copy = *live;
    copy->name = set->names.name[number];
    copy->attributes = attributes;
    for (int d = live->ndim; d < SLC_MAX_DIMS; d++)
        copy->shape[d] = copy->stride[d] = 0;
    return SLUICE_OK;
}

const slc_live *slc_live_set_find(const slc_live_set *set, const char *name)
{
    size_t at = slc_names_find(&set->names, name);
    return at == SLC_NO_NAME ? NULL : &set->item[at];
}

void slc_live_set_clear(slc_live_set *set)
{
    slc_release(set->item);
    slc_names_clear(&set->names);
    slc_arena_clear(&set->arena);
    *set = (slc_live_set){ 0 };
}

/* ---- one tensor ---- */

bool slc_live_contiguous(const slc_live *live)
{
    int64_t expected = live->dtype->bytes;
    if (empty(live))
        return true;
    for (int d = live->ndim - 1; d >= 0; d--) {
        if (live->shape[d] != 1 && live->stride[d] != expected)
            return false;
        expected *= live->shape[d];
    }
    return true;
}

int64_t slc_live_bytes(const slc_live *live)
{
    int64_t bytes = live->dtype->bytes;
    for (int d = 0; d < live->ndim; d++)
        bytes *= live->shape[d];
    return bytes;
}

void slc_live_span(const slc_live *live, uintptr_t *low, uintptr_t *high)
{
    int64_t bytes;
    reach_of(live, &bytes);
    *low = (uintptr_t)live->data;
    *high = *low + (uintptr_t)bytes;
}

/* ---- views ---- */

static sluice_status fail_view(const slc_view *view, const slc_live *live, const char *where, sluice_error *error,
                               const char *rule)
{
    char ranges[SLC_RANGES_TEXT], shape[SLC_SHAPE_TEXT];
    slc_ranges_text(view->ndim, view->range, ranges);
    slc_shape_text(live->ndim, live->shape, shape);
    return slc_fail(error, SLUICE_INVALID, "destination", "%s: the view %s of live '%s' of shape %s %s", where, ranges,
                    live->name, shape, rule);
}

sluice_status slc_view_window(const slc_view *view, const slc_live *live, int ndim, const char *where, slc_window *window,
                              sluice_error *error)
{
    *window = (slc_window){ .ndim = ndim };
    char rule[160];
    if (view->ndim != live->ndim) {
        snprintf(rule, sizeof rule, "has %d dims for %d (index(dim, i) in `at` adds one, in `from` drops one)", view->ndim, live->ndim);
        return fail_view(view, live, where, error, rule);
    }
    bool shown[SLC_MAX_DIMS] = { false };
    int left = 0;
    for (int d = 0; d < live->ndim; d++) {
        slc_range range;
        if (!slc_range_resolve(view->range[d], live->shape[d], &range)) {
            snprintf(rule, sizeof rule, "leaves it in dim %d", d);
            return fail_view(view, live, where, error, rule);
        }
        window->offset += range.start * live->stride[d];
        if (range.select)
            continue;
        int strip = left < ndim ? view->order[left++] : ndim;
        if (strip < 0 || strip >= ndim || shown[strip]) {
            snprintf(rule, sizeof rule, "must show each of the strip's %d dims once", ndim);
            return fail_view(view, live, where, error, rule);
        }
        shown[strip] = true;
        window->extent[strip] = range.count;
        window->stride[strip] = range.step * live->stride[d];
    }
    if (left != ndim) {
        snprintf(rule, sizeof rule, "shows %d dims of the strip's %d", left, ndim);
        return fail_view(view, live, where, error, rule);
    }
    return SLUICE_OK;
}
