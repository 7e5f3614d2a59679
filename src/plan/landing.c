/* landing.c: one target on one worker. Owns nothing. */
#include "plan/landing.h"

#include "base/error.h"
#include "plan/text.h"

static sluice_status check_extents(const slc_param *param, const slc_target *target, const slc_landing *landing, int32_t rank,
                                   sluice_error *error)
{
    bool good = true, equal = target->pad == SLC_PAD_NONE || (target->pad == SLC_PAD_EMPTY && !slc_box_empty(&landing->box));
    int64_t wanted[SLC_MAX_DIMS];
    for (int d = 0; d < landing->ndim; d++) {
        wanted[d] = slc_landing_held(landing, d);
        good = good && (equal ? landing->window.extent[d] == wanted[d] : landing->window.extent[d] >= wanted[d]);
    }
    if (good)
        return SLUICE_OK;
    char place[SLC_PLACE_TEXT], shown[SLC_SHAPE_TEXT], held[SLC_SHAPE_TEXT], box[SLC_RANGES_TEXT], ranges[SLC_RANGES_TEXT];
    slc_place_text(param, param->where, place);
    slc_shape_text(landing->ndim, landing->window.extent, shown);
    slc_shape_text(landing->ndim, wanted, held);
    slc_box_text(&landing->box, box);
    slc_ranges_text(target->view.ndim, target->view.range, ranges);
    return slc_fail(error, SLUICE_INVALID, "destination",
                    "%s: the view %s of live '%s' shows %s, but worker rank %d gets %s (the box %s)%s", place, ranges,
                    target->live, shown, (int)rank, held, box,
                    equal ? "; without padding the two must be equal" : "; the view must have room for it");
}

/* Blocks of the elements' live tensor: the view ends with one of them; and the scales' live tensor has a number for each. */
static sluice_status check_blocks(const slc_param *param, const slc_target *target, const slc_live_set *live, const slc_live *tensor,
                                  const slc_landing *landing, sluice_error *error)
{
    char place[SLC_PLACE_TEXT], shown[SLC_SHAPE_TEXT], held[SLC_SHAPE_TEXT];
    const slc_live *elements = target->scales ? slc_live_set_find(live, target[-1].live) : NULL;
    bool good = !target->scales || (elements != NULL && elements->ndim == tensor->ndim);
    for (int d = 0; d < tensor->ndim && elements != NULL && good; d++) {
        int64_t unit = d < tensor->ndim - 2 ? 1 : SLC_BLOCK, extent = elements->shape[d];
        good = tensor->shape[d] == extent / unit + (extent % unit != 0);
    }
    if (!good) {
        slc_place_text(param, param->where, place);
        slc_shape_text(tensor->ndim, tensor->shape, shown);
        slc_shape_text(elements == NULL ? 0 : elements->ndim, elements == NULL ? NULL : elements->shape, held);
        return slc_fail(error, SLUICE_INVALID, "destination",
                        "%s: live '%.200s' %s must have one number for each block of %d x %d of live '%.200s' %s", place, tensor->name, shown,
                        SLC_BLOCK, SLC_BLOCK, target[-1].live, held);
    }
    for (int d = tensor->ndim - 2; d < tensor->ndim && !target->scales; d++) {
        int64_t end = landing->range[d].start + landing->range[d].count;
        if (end % SLC_BLOCK == 0 || end == tensor->shape[d])
            continue;
        slc_place_text(param, param->where, place);
        return slc_fail(error, SLUICE_INVALID, "destination",
                        "%s: its part of live '%.200s' ends at %lld of dim %d, within one of the blocks of %d, which share a scale", place,
                        tensor->name, (long long)end, d, SLC_BLOCK);
    }
    return SLUICE_OK;
}

/* One more dim of the live tensor, whole. */
static void widen(slc_view *view, slc_landing *landing)
{
    view->range[view->ndim++] = SLC_RANGE_ALL;
    view->order[landing->ndim] = (int8_t)landing->ndim;
    landing->shape[landing->ndim] = 0;
    landing->box.high[landing->ndim] = landing->box.low[landing->ndim] = 0;
    landing->box.ndim = ++landing->ndim;
}

/* A single number lands in a single number, whatever dims either has: a scale may be [1] for the trainer and [] where it is live. */
static bool is_single(const slc_view *view, const slc_live *tensor, const slc_landing *landing)
{
    bool single = view->ndim != tensor->ndim && view->ndim == landing->ndim;
    for (int d = 0; d < tensor->ndim; d++)
        single = single && tensor->shape[d] == 1;
    for (int d = 0; d < view->ndim; d++) {
        slc_range range = view->range[d];
        single = single && !range.select && range.start == 0 && range.step == 1 && range.count < 0;
    }
    return single;
}

static void land_single(const slc_live *tensor, slc_landing *landing)
{
    landing->window = (slc_window){ .ndim = landing->ndim };
    for (int d = 0; d < landing->ndim; d++) {
        landing->window.extent[d] = 1;
        landing->window.stride[d] = tensor->dtype->bytes;
    }
    for (int d = 0; d < tensor->ndim; d++)
        slc_range_resolve(SLC_RANGE_ALL, 1, &landing->range[d]);
}

sluice_status slc_target_land(const slc_param *param, const slc_target *target, const slc_live_set *live, int32_t rank,
                              slc_landing *landing, sluice_error *error)
{
    *landing = (slc_landing){ .holds = false };
    landing->ndim = slc_target_strip(param, target, landing->shape, NULL);
    for (int d = 0; d < SLC_MAX_DIMS; d++)
        landing->unit[d] = 1;
    int block[2];
    bool blocks = slc_target_blocks(param, target, block);
    for (int i = 0; i < 2 && target->scales && blocks; i++)
        landing->unit[block[i]] = SLC_BLOCK;
    if (!slc_layout_box(target->layout, landing->ndim, landing->shape, rank, &landing->box))
        return SLUICE_OK;
    char place[SLC_PLACE_TEXT];
    const slc_live *tensor = slc_live_set_find(live, target->live);
    landing->clears = target->pad == SLC_PAD_CLEAR;
    if (tensor == NULL && (slc_box_empty(&landing->box) || landing->clears))
        return SLUICE_OK;
    if (tensor == NULL) {
        char shape[SLC_RANGES_TEXT];
        slc_place_text(param, param->where, place);
        slc_box_text(&landing->box, shape);
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: worker rank %d has no live '%s' for its box %s", place,
                        (int)rank, target->live, shape);
    }
    const slc_dtype *dtype = slc_target_dtype(param, target);
    if (tensor->dtype != dtype && !landing->clears) {
        char shape[SLC_SHAPE_TEXT];
        slc_place_text(param, param->where, place);
        slc_shape_text(tensor->ndim, tensor->shape, shape);
        return slc_fail(error, SLUICE_INVALID, "destination",
                        "%s: %s %s, but live '%s' %s is %s; a direct destination has the same dtype%s", place,
                        dtype == param->dtype ? "is" : "becomes", dtype->name, tensor->name, shape, tensor->dtype->name,
                        dtype == param->dtype && slc_cast_find(dtype, tensor->dtype) != SLC_CAST_NONE
                            ? ", unless its rule says convert"
                            : "");
    }
    slc_view view = target->view;
    for (int d = view.ndim; landing->clears && d < tensor->ndim; d++)
        widen(&view, landing);
    bool single = !blocks && !landing->clears && is_single(&view, tensor, landing);
    if (single)
        land_single(tensor, landing);
    /* The text of a place costs more than all the rest: it is made only when it is needed. */
    else if (slc_view_window(&view, tensor, landing->ndim, "", &landing->window, NULL) != SLUICE_OK) {
        slc_place_text(param, param->where, place);
        return slc_view_window(&view, tensor, landing->ndim, place, &landing->window, error);
    }
    for (int d = 0; d < tensor->ndim && !single; d++)
        slc_range_resolve(view.range[d], tensor->shape[d], &landing->range[d]);
    landing->live = (size_t)(tensor - live->item);
    landing->item = tensor->dtype->bytes;
    landing->holds = true;
    if (landing->clears)
        return SLUICE_OK;
    sluice_status status = blocks ? check_blocks(param, target, live, tensor, landing, error) : SLUICE_OK;
    return status == SLUICE_OK ? check_extents(param, target, landing, rank, error) : status;
}
