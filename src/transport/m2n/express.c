/* express.c: from a layout of any form to m2n's two axes, and from a target to one reshard. Owns nothing. */
#include "transport/m2n/express.h"

#include "base/error.h"
#include "plan/text.h"

enum { REASON = 512 };

/* Why not: a text that grows no further once it says something. */
typedef struct refusal {
    char text[REASON];
    size_t used;
} refusal;

#define REFUSE(why, ...) (slc_text_append((why)->text, REASON, &(why)->used, __VA_ARGS__), false)

/* ---- a side ---- */

/* An axis of the layout as it matters: so many ranks that cut `dim` (the `order`-th placement), or hold the same. */
typedef struct axis {
    int32_t size;
    int dim, order;
} axis;

typedef struct axes {
    int count;
    axis item[2 * SLC_MAX_AXES];
} axes;

static void append(axes *list, axis next)
{
    axis *last = list->count > 0 ? &list->item[list->count - 1] : NULL;
    if (next.size == 1)
        return;
    if (last != NULL && last->dim == next.dim && (next.dim == SLC_M2N_WHOLE || last->order < next.order)) {
        last->size *= next.size;
        last->order = next.order;
    } else
        list->item[list->count++] = next;
}

static bool cuts_evenly(const slc_layout *layout, int ndim, const int64_t *shape, const char *side, refusal *why)
{
    int64_t left[SLC_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        left[d] = shape[d];
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *p = &layout->placement[i];
        if (p->kind != SLC_SHARD || p->parts == 1)
            continue;
        int64_t extent = left[p->dim];
        if (extent % p->parts != 0 || (p->split == SLC_SPLIT_CHUNK && p->chunk != extent / p->parts))
            return REFUSE(why, "its %s cuts dim %d unevenly (%lld in %d)", side, p->dim, (long long)extent, (int)p->parts);
        left[p->dim] = extent / p->parts;
    }
    return true;
}

static int placement_of(const slc_layout *layout, int mesh_axis)
{
    for (int i = 0; i < layout->nplacements; i++)
        if (layout->placement[i].axis == mesh_axis)
            return i;
    return -1;
}

/* The axes that matter, outermost first, and the first rank that holds the tensor. */
static bool list_axes(const slc_layout *layout, axes *list, int32_t *start, const char *side, refusal *why)
{
    const slc_mesh *mesh = layout->mesh;
    int32_t inside = mesh->size;
    *list = (axes){ .count = 0 };
    *start = mesh->first;
    for (int a = 0; a < mesh->naxes; a++) {
        int order = placement_of(layout, a);
        const slc_placement *p = order < 0 ? NULL : &layout->placement[order];
        int32_t size = mesh->axis[a];
        inside /= size;
        if (p != NULL && p->kind == SLC_PIN) {
            if (list->count > 0 && size > 1)
                return REFUSE(why, "its %s lies on ranks that do not follow each other (pinned along axis %d of its mesh)", side,
                              a);
            *start += p->coordinate * inside;
        } else if (p != NULL) {
            append(list, (axis){ .size = p->parts, .dim = p->dim, .order = order });
            append(list, (axis){ .size = size / p->parts, .dim = SLC_M2N_WHOLE });
        } else
            append(list, (axis){ .size = size, .dim = SLC_M2N_WHOLE });
    }
    return true;
}

static bool two_axes(const axes *list, slc_m2n_side *out, const char *side, refusal *why)
{
    int cuts = 0;
    for (int i = 0; i < list->count; i++)
        cuts += list->item[i].dim != SLC_M2N_WHOLE;
    if (cuts > 1)
        return REFUSE(why, "its %s is cut over %d mesh axes, where one may cut", side, cuts);
    if (list->count > 2)
        return REFUSE(why, "its %s wants %d mesh axes, where two are the most", side, list->count);
    bool first = list->count > 0 && list->item[0].dim != SLC_M2N_WHOLE; /* whether the first axis cuts */
    const axis whole = { .size = 1, .dim = SLC_M2N_WHOLE }, uncut = { .size = 1, .dim = 0 };
    axis a = list->count > 0 ? list->item[0] : whole, b = list->count > 1 ? list->item[1] : first ? whole : uncut;
    out->dims[0] = a.size;
    out->dims[1] = b.size;
    out->placement[0] = a.dim;
    out->placement[1] = b.dim;
    return true;
}

/* How many shards there are, and in *dim which dim is cut. */
static int32_t shards(const slc_m2n_side *side, int *dim)
{
    int cut = side->placement[0] == SLC_M2N_WHOLE ? 1 : 0;
    *dim = side->placement[cut];
    return side->dims[cut];
}

static bool make_side(const slc_layout *layout, int ndim, const int64_t *shape, slc_m2n_side *out, const char *side, refusal *why)
{
    axes list;
    return list_axes(layout, &list, &out->start, side, why) && two_axes(&list, out, side, why) &&
           cuts_evenly(layout, ndim, shape, side, why);
}

/* ---- memory without gaps ---- */

/*
 * Whether taking `count[d]` of `extent[d]` in every dim, from the outermost in, leaves no gap: single indices, then one stretch, then whole
 * dims.
 */
static bool gapless(int ndim, const int64_t *count, const int64_t *extent, const int64_t *step)
{
    int d = 0;
    while (d < ndim && count[d] == 1)
        d++;
    if (d < ndim && step[d] != 1)
        return false;
    for (d++; d < ndim; d++)
        if (count[d] != extent[d])
            return false;
    return true;
}

/* What a trainer's shard must be for the strip to lie in it in one piece; its offset and, by strip dim, its extents. */
static bool take(const slc_param *param, const slc_range *range, const slc_m2n_side *whole, int64_t *offset, refusal *why)
{
    int cut;
    int32_t parts = shards(whole, &cut);
    int64_t count[SLC_MAX_DIMS], extent[SLC_MAX_DIMS], step[SLC_MAX_DIMS], stride = param->dtype->bytes;
    *offset = 0;
    for (int d = param->ndim - 1; d >= 0; d--) {
        bool all = !range[d].select && range[d].count == param->shape[d];
        if (!all && parts > 1 && d == cut)
            return REFUSE(why, "it takes a part of dim %d, which its source cuts", d);
        extent[d] = d == cut ? param->shape[d] / parts : param->shape[d];
        count[d] = all ? extent[d] : range[d].count;
        step[d] = range[d].step;
        *offset += range[d].start * stride;
        stride *= extent[d];
    }
    return gapless(param->ndim, count, extent, step) ||
           REFUSE(why, "what it takes does not lie in one piece in the trainers' shards");
}

static bool is_whole(slc_range range)
{
    return range.start == 0 && range.step == 1 && range.count == SLC_TO_END && !range.select;
}

/* Padding where the outermost dim is cut lies behind what is written, and not within it. */
static bool pads_behind(const slc_layout *layout)
{
    bool outermost = false;
    for (int i = 0; i < layout->nplacements; i++)
        if (layout->placement[i].kind == SLC_SHARD && layout->placement[i].dim != 0)
            return false;
        else
            outermost = outermost || layout->placement[i].kind == SLC_SHARD;
    return outermost;
}

/* The same of a live tensor, whose extents the plan does not know: of any size, single indices, one stretch, then whole dims. */
static bool lands(const slc_target *target, refusal *why)
{
    const slc_view *view = &target->view;
    int left = 0, d = 0;
    for (int i = 0; i < view->ndim; i++) {
        if (view->range[i].select)
            continue;
        if (view->order[left] != left)
            return REFUSE(why, "live '%.200s' shows its dims in another order", target->live);
        left++;
    }
    while (d < view->ndim && view->range[d].count == 1)
        d++;
    bool good = d >= view->ndim || view->range[d].step == 1;
    for (d++; d < view->ndim; d++)
        good = good && is_whole(view->range[d]);
    if (target->pad == SLC_PAD_ZERO && !pads_behind(target->layout))
        return REFUSE(why, "live '%.200s' is padded", target->live);
    return good || REFUSE(why, "what it writes of live '%.200s' does not lie in one piece", target->live);
}

/* ---- a reshard ---- */

static int32_t common(int32_t a, int32_t b)
{
    return b == 0 ? a : common(b, a % b);
}

/* The most of `theirs` even pieces of a dim that one of `mine` meets. */
static int32_t most_met(int32_t mine, int32_t theirs)
{
    int32_t g = common(mine, theirs), p = theirs / g, q = mine / g;
    return 1 + (p + q - 2) / q;
}

static bool within_limits(const slc_m2n_side *source, const slc_m2n_side *destination, refusal *why)
{
    int from, to;
    int32_t sources = shards(source, &from), targets = shards(destination, &to), into = sources, out = targets;
    if (from == to && sources > 1 && targets > 1) {
        into = most_met(targets, sources);
        out = most_met(sources, targets);
    }
    if (into > SLC_M2N_SOURCES)
        return REFUSE(why, "%d source shards meet in one destination shard, where %d are the most", (int)into, SLC_M2N_SOURCES);
    if (out > SLC_M2N_TARGETS)
        return REFUSE(why, "%d destination shards meet one source shard, where %d are the most", (int)out, SLC_M2N_TARGETS);
    return true;
}

static void set_held(slc_m2n_side *side, int ndim, const int64_t *shape)
{
    int cut;
    int32_t parts = shards(side, &cut);
    for (int d = 0; d < ndim; d++)
        side->held[d] = d == cut ? shape[d] / parts : shape[d];
}

/* The tensor's dims: as they are where there are 1 to 3, the same bytes as one dim where both sides hold it whole. */
static bool set_shape(slc_m2n_call *call, int ndim, const int64_t *shape, refusal *why)
{
    int cut;
    int64_t volume = 1;
    for (int d = 0; d < ndim; d++)
        volume *= shape[d];
    bool fits = ndim >= 1 && ndim <= SLC_M2N_DIMS;
    if (!fits && (shards(&call->source, &cut) > 1 || shards(&call->destination, &cut) > 1))
        return REFUSE(why, "it has %d dims, where %d are the most of what a side cuts", ndim, SLC_M2N_DIMS);
    call->ndim = fits ? ndim : 1;
    set_held(&call->source, call->ndim, fits ? shape : &volume);
    set_held(&call->destination, call->ndim, fits ? shape : &volume);
    return true;
}

/* The source's cut, told in the strip's dims. */
static void rename_cut(slc_m2n_side *side, int ndim, const int *dim_of)
{
    int cut;
    if (shards(side, &cut) == 1)
        return;
    for (int d = 0; d < ndim; d++)
        if (dim_of[d] == cut)
            side->placement[side->placement[0] == SLC_M2N_WHOLE ? 1 : 0] = d;
}

/* What either side's ranks hold must go into a buffer of the library's. */
static bool fits_staging(const slc_m2n_call *call, uint64_t staging, refusal *why)
{
    const slc_m2n_side *sides[] = { &call->source, &call->destination };
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = (uint64_t)call->item;
        for (int d = 0; d < call->ndim; d++)
            bytes *= (uint64_t)sides[i]->held[d];
        if (bytes > staging)
            return REFUSE(why, "a rank's part of its %s has %llu bytes, where %llu are the most (NCCL_RESHARD_PACK_BUFFSIZES)",
                          i == 0 ? "source" : "destination", (unsigned long long)bytes, (unsigned long long)staging);
    }
    return true;
}

static bool express_direct(const slc_param *param, const slc_target *target, slc_m2n_call *call, refusal *why)
{
    int64_t strip[SLC_MAX_DIMS];
    int dim_of[SLC_MAX_DIMS];
    int ndim = slc_target_strip(param, target, strip, dim_of);
    if (slc_target_cast(param, target) != SLC_CAST_NONE)
        return REFUSE(why, "it is converted on the way");
    if (!make_side(param->source, param->ndim, param->shape, &call->source, "source", why) ||
        !make_side(target->layout, ndim, strip, &call->destination, "destination", why) ||
        !take(param, target->source, &call->source, &call->offset, why) || !lands(target, why))
        return false;
    rename_cut(&call->source, ndim, dim_of);
    return within_limits(&call->source, &call->destination, why) && set_shape(call, ndim, strip, why);
}

static bool express_full(const slc_plan *plan, const slc_param *param, slc_m2n_call *call, refusal *why)
{
    if (!make_side(param->source, param->ndim, param->shape, &call->source, "source", why))
        return false;
    call->destination = (slc_m2n_side){ .start = slc_plan_trainers(plan),
                                        .dims = { slc_plan_workers(plan), 1 },
                                        .placement = { SLC_M2N_WHOLE, 0 } };
    return within_limits(&call->source, &call->destination, why) && set_shape(call, param->ndim, param->shape, why);
}

sluice_status slc_m2n_express(const slc_plan *plan, size_t index, uint32_t target, uint64_t staging, slc_m2n_call *call,
                              sluice_error *error)
{
    const slc_param *param = slc_plan_at(plan, index);
    refusal why = { .used = 0 };
    *call = (slc_m2n_call){ .param = (uint32_t)index, .target = target, .item = param->dtype->bytes };
    bool good = param->mode == SLC_MODE_FULL ? express_full(plan, param, call, &why)
                                             : express_direct(param, &param->target[target], call, &why);
    good = good && fits_staging(call, staging, &why);
    if (good)
        return SLUICE_OK;
    char place[SLC_PLACE_TEXT];
    slc_place_text(param, param->where, place);
    *call = (slc_m2n_call){ .param = (uint32_t)index, .target = target };
    return slc_fail(error, SLUICE_UNSUPPORTED, "runtime", "%s: transport m2n cannot move it: %s", place, why.text);
}
