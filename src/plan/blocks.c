/*
 * blocks.c: conversions in blocks, as far as the layouts decide: which dims blocks are of, elements and scales side by side, and
 * that no shard of a trainer ends within a block. Owns nothing.
 */
#include <string.h>

#include "base/error.h"
#include "plan/own.h"
#include "plan/text.h"

bool slc_target_blocks(const slc_param *param, const slc_target *target, int dim[2])
{
    const slc_view *view = &target->view;
    if (target->pad == SLC_PAD_CLEAR || !slc_cast_in_blocks(slc_target_cast(param, target)))
        return false;
    int kept = 0;
    for (int d = 0; d < view->ndim; d++)
        kept += !view->range[d].select;
    if (kept < 2)
        return false;
    dim[0] = view->order[kept - 2];
    dim[1] = view->order[kept - 1];
    return true;
}

/* ---- one target ---- */

static sluice_status check_view(const slc_target *target, const char *place, sluice_error *error)
{
    const slc_view *view = &target->view;
    for (int i = 2; i > 0; i--) {
        int d = view->ndim - i;
        if (d < 0 || view->range[d].select || view->range[d].step != 1)
            return slc_fail(error, SLUICE_INVALID, "destination",
                            "%s: the view of live '%.300s' must show whole stretches of its last two dims, of which %d x %d elements share a scale",
                            place, target->live, SLC_BLOCK, SLC_BLOCK);
        if (!target->scales && view->range[d].start % SLC_BLOCK != 0)
            return slc_fail(error, SLUICE_INVALID, "destination",
                            "%s: the view of live '%.300s' begins at %lld of dim %d, within one of its blocks of %d, which share a scale", place,
                            target->live, (long long)view->range[d].start, d, SLC_BLOCK);
    }
    return SLUICE_OK;
}

static bool same_range(slc_range a, slc_range b)
{
    return a.start == b.start && a.step == b.step && a.count == b.count && a.select == b.select;
}

/* Whether `scales` brings what the elements of `target` are scaled by. */
static bool fits(const slc_param *param, const slc_target *target, const slc_target *scales)
{
    const slc_view *a = &target->view, *b = &scales->view;
    bool good = target->layout == scales->layout && target->pad == scales->pad && a->ndim == b->ndim;
    for (int d = 0; d < param->ndim; d++)
        good = good && same_range(target->source[d], scales->source[d]);
    for (int d = 0, kept = 0; good && d < a->ndim; d++) {
        slc_range range = a->range[d];
        if (d >= a->ndim - 2) {
            range.start /= SLC_BLOCK;
            range.count = range.count == SLC_TO_END ? SLC_TO_END : range.count / SLC_BLOCK + (range.count % SLC_BLOCK != 0);
        }
        good = same_range(range, b->range[d]) && (range.select || a->order[kept] == b->order[kept]);
        kept += !range.select;
    }
    return good;
}

/* ---- cuts ---- */

/* Elements [*low, *high) of dim `dim` that a layout's piece number `piece` of it has. */
static void piece_of(const slc_layout *layout, int ndim, const int64_t *shape, int dim, int64_t piece, int64_t *low, int64_t *high)
{
    int64_t at[SLC_MAX_DIMS] = { 0 };
    at[dim] = piece;
    slc_box box = slc_layout_shard_box(layout, ndim, shape, slc_layout_shard(layout, ndim, at));
    *low = box.low[dim];
    *high = box.high[dim];
}

/* Numbers [*first, *end) of the pieces of dim `dim` that meet its elements [low, high). */
static void reach_of(const slc_layout *layout, int ndim, const int64_t *shape, int dim, int64_t low, int64_t high, int64_t *first,
                     int64_t *end)
{
    slc_box query = slc_box_whole(ndim, shape), pieces;
    query.low[dim] = low;
    query.high[dim] = high;
    slc_layout_reach(layout, ndim, shape, &query, &pieces);
    *first = pieces.low[dim];
    *end = pieces.high[dim];
}

/* Within the worker's elements [low, high) of strip dim `dim`; *cut is where in the parameter a shard ends within a block. */
static bool is_cut(const slc_param *param, const slc_target *target, int dim, int64_t low, int64_t high, int64_t *cut)
{
    slc_range range = target->source[dim];
    int64_t first, end, from, to, begin, behind;
    reach_of(param->source, param->ndim, param->shape, dim, range.start + low * range.step, range.start + (high - 1) * range.step + 1,
             &first, &end);
    for (int64_t piece = first; piece < end; piece++) {
        piece_of(param->source, param->ndim, param->shape, dim, piece, &from, &to);
        slc_range_clip(range, from, to, &begin, &behind);
        *cut = from;
        if (begin < behind && begin > low && begin < high && (begin - low) % SLC_BLOCK != 0)
            return true;
    }
    return false;
}

sluice_status slc_blocks_check(const slc_param *param, const slc_target *target, const char *place, sluice_error *error)
{
    int64_t shape[SLC_MAX_DIMS], first, end, low, high, cut;
    int dim_of[SLC_MAX_DIMS], block[2];
    if (!slc_target_blocks(param, target, block))
        return SLUICE_OK;
    int ndim = slc_target_strip(param, target, shape, dim_of);
    for (int i = 0; i < 2; i++) {
        int dim = dim_of[block[i]];
        reach_of(target->layout, ndim, shape, block[i], 0, shape[block[i]], &first, &end);
        for (int64_t piece = first; piece < end; piece++) {
            piece_of(target->layout, ndim, shape, block[i], piece, &low, &high);
            if (low >= high || !is_cut(param, target, dim, low, high, &cut))
                continue;
            return slc_fail(error, SLUICE_INVALID, "destination",
                            "%s: cannot be converted in blocks of %d x %d: a trainer's shard ends at %lld of dim %d, within a block of the"
                            " worker that gets elements %lld to %lld of it; shards must end a multiple of %d behind the worker's first element",
                            place, SLC_BLOCK, SLC_BLOCK, (long long)cut, dim,
                            (long long)(target->source[dim].start + low * target->source[dim].step),
                            (long long)(target->source[dim].start + (high - 1) * target->source[dim].step + 1), SLC_BLOCK);
        }
    }
    return SLUICE_OK;
}

/* ---- all targets of a parameter ---- */

sluice_status slc_blocks_check_pairs(const slc_param *param, const slc_target *target, size_t count, const char *place,
                                     sluice_error *error)
{
    for (size_t i = 0; i < count; i++) {
        bool blocks = target[i].pad != SLC_PAD_CLEAR && slc_cast_in_blocks(slc_target_cast(param, &target[i]));
        if (!blocks)
            continue;
        if (target[i].scales || i + 1 == count || !target[i + 1].scales || target[i + 1].dtype != slc_dtype_find("float32"))
            return slc_fail(error, SLUICE_INVALID, "destination", "%s: target %zu becomes %s; in blocks, float32 scales follow elements", place, i,
                            slc_target_dtype(param, &target[i])->name);
        sluice_status status = check_view(&target[i], place, error);
        if (status == SLUICE_OK)
            status = check_view(&target[i + 1], place, error);
        if (status == SLUICE_OK && !fits(param, &target[i], &target[i + 1]))
            status = slc_fail(error, SLUICE_INVALID, "destination",
                              "%s: the scales in live '%.300s' must land as their elements do in '%.300s', counted in blocks of %d x %d",
                              place, target[i + 1].live, target[i].live, SLC_BLOCK, SLC_BLOCK);
        if (status == SLUICE_OK)
            status = slc_blocks_check(param, &target[i], place, error);
        if (status != SLUICE_OK)
            return status;
        i++;
    }
    return SLUICE_OK;
}
