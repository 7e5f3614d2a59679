/* view.h: live parameters, and the part of one that a target writes. */
#ifndef SLC_PLAN_VIEW_H
#define SLC_PLAN_VIEW_H

#include "base/convert.h"
#include "base/memory.h"
#include "base/names.h"
#include "plan/box.h"
#include "sluice.h"

#define SLC_MAX_NAME 4096                  /* bytes of a name, a reason or a place, without the terminator */
#define SLC_MAX_BYTES ((int64_t)1 << 62)   /* a tensor is smaller */

/*
 * A tensor in the serving model's memory. Strides count bytes. With data NULL it can be planned for (as memory of its
 * own), not moved into.
 */
typedef struct slc_live {
    const char *name;
    const slc_dtype *dtype;
    int ndim;
    int64_t shape[SLC_MAX_DIMS];
    int64_t stride[SLC_MAX_DIMS];
    unsigned char *data;
    const char *attributes; /* JSON object, or "{}" */
} slc_live;

/* The live tensors of one worker, in the order of registration. Initialise with {0}; owns copies of all texts. */
typedef struct slc_live_set {
    slc_live *item;
    size_t count, capacity;
    slc_names names; /* number = index in item */
    slc_arena arena;
} slc_live_set;

/* Adds a copy. INVALID: no name, a second of that name, shape or stride negative or too large, two elements on one byte. */
sluice_status slc_live_set_add(slc_live_set *set, const slc_live *live, sluice_error *error);
const slc_live *slc_live_set_find(const slc_live_set *set, const char *name); /* NULL where there is none */
void slc_live_set_clear(slc_live_set *set);

bool slc_live_contiguous(const slc_live *live); /* row-major; dims of one element do not matter */
int64_t slc_live_bytes(const slc_live *live); /* of its elements, not of the span it lies in */
/* [*low, *high): the addresses the tensor lies in. Empty tensor: equal. */
void slc_live_span(const slc_live *live, uintptr_t *low, uintptr_t *high);

/*
 * A view: one range for each live dim; ranges with `select` drop their dim. order[i] says which dim of the strip (what
 * the target brings, see plan.h) the i-th dim that is left shows, so that a permuted target is one permutation.
 */
typedef struct slc_view {
    int ndim; /* of the live tensor */
    slc_range range[SLC_MAX_DIMS];
    int8_t order[SLC_MAX_DIMS];
} slc_view;

/* The view on one rank's live tensor, in the strip's dims: where its first element lies, extents and byte strides. */
typedef struct slc_window {
    int ndim;
    int64_t offset; /* bytes from live->data */
    int64_t extent[SLC_MAX_DIMS];
    int64_t stride[SLC_MAX_DIMS];
} slc_window;

/*
 * `ndim` is the strip's. INVALID when a range leaves the tensor or the dims that are left are not the strip's; the message
 * starts with `where`.
 */
sluice_status slc_view_window(const slc_view *view, const slc_live *live, int ndim, const char *where, slc_window *window,
                              sluice_error *error);

#endif
