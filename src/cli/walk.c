/* walk.c: merging of dims and stepping; owns nothing. */
#include "cli/walk.h"

static void row_major(int ndim, const int64_t *shape, int64_t element, int64_t *stride)
{
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = element;
        element *= shape[i];
    }
}

/* Appends a dim, outermost first; drops those of one step and joins it to the one before where both sides allow. */
static void push(slc_walk *walk, int64_t count, int64_t source, int64_t live)
{
    if (count == 1)
        return;
    int last = walk->ndim - 1;
    if (last >= 0 && walk->source[last] == count * source && walk->live[last] == count * live) {
        walk->count[last] *= count;
        walk->source[last] = source;
        walk->live[last] = live;
        return;
    }
    walk->count[walk->ndim] = count;
    walk->source[walk->ndim] = source;
    walk->live[walk->ndim] = live;
    walk->ndim++;
}

void slc_walk_begin(slc_walk *walk, const slc_content *content, int param_ndim, const int64_t *param_shape, int live_ndim,
                    const int64_t *live_shape, int64_t element)
{
    int64_t source[SLC_JOB_DIMS], live[SLC_JOB_DIMS];
    row_major(param_ndim, param_shape, element, source);
    row_major(live_ndim, live_shape, element, live);
    *walk = (slc_walk){ .stretch = { .unit = element, .units = 1 } };
    for (int i = 0; i < live_ndim; i++)
        walk->stretch.live += content->at[i] * live[i];
    for (int i = 0; i < param_ndim; i++) {
        walk->stretch.source += content->from[i] * source[i];
        walk->done = walk->done || content->extent[i] == 0;
        push(walk, content->extent[i], source[i], content->dim[i] < 0 ? 0 : live[content->dim[i]]);
    }
    int last = walk->ndim - 1;
    if (last >= 0 && walk->source[last] == element) {
        walk->ndim--;
        if (walk->live[last] == element)
            walk->stretch.unit = element * walk->count[last];
        else {
            walk->stretch.units = walk->count[last];
            walk->stretch.step = walk->live[last];
        }
    }
}

bool slc_walk_next(slc_walk *walk, slc_stretch *stretch)
{
    if (walk->done)
        return false;
    *stretch = walk->stretch;
    for (int i = walk->ndim - 1; i >= 0; i--) {
        walk->stretch.source += walk->source[i];
        walk->stretch.live += walk->live[i];
        if (++walk->at[i] < walk->count[i])
            return true;
        walk->at[i] = 0;
        walk->stretch.source -= walk->source[i] * walk->count[i];
        walk->stretch.live -= walk->live[i] * walk->count[i];
    }
    walk->done = true;
    return true;
}
