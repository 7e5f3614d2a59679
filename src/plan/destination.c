/* destination.c: the destinations of a plan's parameters: what can be checked of them without live tensors. */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/overlap.h"
#include "plan/own.h"
#include "plan/text.h"

int slc_target_strip(const slc_param *param, const slc_target *target, int64_t shape[SLC_MAX_DIMS], int dim_of[SLC_MAX_DIMS])
{
    int ndim = 0;
    for (int d = 0; d < target->view.ndim && target->pad == SLC_PAD_CLEAR; d++)
        if (!target->view.range[d].select)
            shape[ndim++] = 0;
    for (int d = 0; d < param->ndim && target->pad != SLC_PAD_CLEAR; d++) {
        if (target->source[d].select)
            continue;
        shape[ndim] = target->source[d].count;
        if (dim_of != NULL)
            dim_of[ndim] = d;
        ndim++;
    }
    return ndim;
}

const slc_dtype *slc_target_dtype(const slc_param *param, const slc_target *target)
{
    return target->dtype == NULL ? param->dtype : target->dtype;
}

slc_cast slc_target_cast(const slc_param *param, const slc_target *target)
{
    if (target->scales)
        return slc_cast_find_scales(param->dtype);
    return slc_cast_find(param->dtype, slc_target_dtype(param, target));
}

/* ---- checks ---- */

static const char *keep(slc_plan *plan, const char *text)
{
    bool fresh;
    size_t number = slc_names_add(&plan->texts, text == NULL ? "" : text, &fresh);
    return number == SLC_NO_NAME ? NULL : plan->texts.name[number];
}

static sluice_status check_strip(const slc_param *param, const slc_target *given, slc_target *target, const char *place,
                                 sluice_error *error)
{
    for (int d = 0; d < param->ndim; d++) {
        slc_range wanted = given->pad == SLC_PAD_CLEAR ? SLC_RANGE_ALL : given->source[d];
        if (slc_range_resolve(wanted, param->shape[d], &target->source[d]) && target->source[d].count > 0)
            continue;
        char ranges[SLC_RANGES_TEXT];
        slc_ranges_text(param->ndim, given->source, ranges);
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: the strip %s %s in dim %d", place, ranges,
                        given->source[d].count == 0 ? "is empty" : "leaves the parameter", d);
    }
    return SLUICE_OK;
}

/* `ndim` is the strip's; -1 for a target that only clears, which shows what it likes. */
static sluice_status check_view(const slc_target *given, slc_target *target, int ndim, const char *place, sluice_error *error)
{
    const slc_view *view = &given->view;
    bool shown[SLC_MAX_DIMS] = { false };
    int left = 0;
    if (view->ndim < 0 || view->ndim > SLC_MAX_DIMS)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: the view of live '%s' has %d dims; 0 to %d are allowed", place,
                        given->live, view->ndim, SLC_MAX_DIMS);
    target->view.ndim = view->ndim;
    for (int d = 0; d < view->ndim; d++) {
        slc_range range = view->range[d];
        if (range.start < 0 || range.step < 1 || range.count < SLC_TO_END ||
            (range.select && range.count != SLC_TO_END && range.count != 1))
            return slc_fail(error, SLUICE_INVALID, "destination",
                            "%s: the view of live '%s' has in dim %d start %lld, step %lld, count %lld, which is no range", place,
                            given->live, d, (long long)range.start, (long long)range.step, (long long)range.count);
        if (range.select)
            range = (slc_range){ .start = range.start, .step = 1, .count = 1, .select = true };
        target->view.range[d] = range;
        if (range.select)
            continue;
        if (ndim < 0) {
            target->view.order[left] = (int8_t)left;
            left++;
            continue;
        }
        int strip = left < ndim ? view->order[left] : -1;
        if (strip < 0 || strip >= ndim || shown[strip])
            return slc_fail(error, SLUICE_INVALID, "destination",
                            "%s: the view of live '%s' must show each of the strip's %d dims once", place, given->live, ndim);
        shown[strip] = true;
        target->view.order[left++] = (int8_t)strip;
    }
    if (ndim >= 0 && left != ndim)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: the view of live '%s' shows %d dims of the strip's %d", place,
                        given->live, left, ndim);
    return SLUICE_OK;
}

static sluice_status check_target(slc_plan *plan, const slc_param *param, const slc_target *given, slc_target *target,
                                  const char *place, sluice_error *error)
{
    *target = (slc_target){ .pad = given->pad };
    if (given->live == NULL || given->live[0] == '\0')
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: a target names no live tensor", place);
    if (strlen(given->live) > SLC_MAX_NAME)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: a target's live name has %zu bytes; %d are allowed", place,
                        strlen(given->live), SLC_MAX_NAME);
    if ((int)given->pad < SLC_PAD_NONE || given->pad > SLC_PAD_CLEAR)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: unknown padding (%d)", place, (int)given->pad);
    target->scales = given->scales && given->pad != SLC_PAD_CLEAR;
    if (given->dtype != NULL && (given->dtype != param->dtype || target->scales) && given->pad != SLC_PAD_CLEAR) {
        target->dtype = given->dtype;
        if (slc_target_cast(param, target) == SLC_CAST_NONE)
            return slc_fail(error, SLUICE_INVALID, "destination", "%s: is %s, which cannot be converted to %s; known are %s", place,
                            param->dtype->name, given->dtype->name, SLC_CASTS_KNOWN);
    }
    sluice_status status = check_strip(param, given, target, place, error);
    if (status != SLUICE_OK)
        return status;
    int64_t shape[SLC_MAX_DIMS];
    int ndim = given->pad == SLC_PAD_CLEAR ? -1 : slc_target_strip(param, target, shape, NULL);
    if ((status = check_view(given, target, ndim, place, error)) != SLUICE_OK)
        return status;
    ndim = slc_target_strip(param, target, shape, NULL);
    if (given->layout == NULL || slc_plan_mesh_index(plan, given->layout->mesh, true) == SIZE_MAX)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: the layout on live '%s' needs a mesh of the plan's workers",
                        place, given->live);
    for (int i = 0; i < given->layout->nplacements && i < SLC_MAX_AXES && given->pad == SLC_PAD_CLEAR; i++)
        if (given->layout->placement[i].kind != SLC_PIN)
            return slc_fail(error, SLUICE_INVALID, "destination", "%s: the target that clears live '%s' may have pins only",
                            place, given->live);
    if ((status = slc_layout_check_in("destination", given->layout, ndim, shape, place, error)) != SLUICE_OK)
        return status;
    target->layout = slc_plan_layout(plan, given->layout);
    target->live = target->layout == NULL ? NULL : keep(plan, given->live);
    return target->live == NULL ? slc_fail_memory(error, "destination", "a target", sizeof *target) : SLUICE_OK;
}

/* Whether two layouts are on workers of their own: pinned to different coordinates of one axis. */
static bool pinned_apart(const slc_layout *a, const slc_layout *b)
{
    for (int i = 0; i < a->nplacements && a->mesh == b->mesh; i++)
        for (int k = 0; k < b->nplacements; k++)
            if (a->placement[i].kind == SLC_PIN && b->placement[k].kind == SLC_PIN &&
                a->placement[i].axis == b->placement[k].axis && a->placement[i].coordinate != b->placement[k].coordinate)
                return true;
    return false;
}

/* Live names are interned: one that two targets share has one address. */
static bool may_share(const void *context, size_t first, size_t second)
{
    const slc_target *target = context;
    return target[first].live != target[second].live || pinned_apart(target[first].layout, target[second].layout);
}

static sluice_status check_apart(const slc_param *param, const slc_target *target, size_t count, const char *place,
                                 sluice_error *error)
{
    slc_rectangle few[8], *rectangle = count <= 8 ? few : slc_allocate_zeroed(count, sizeof *rectangle);
    if (rectangle == NULL)
        return slc_fail_memory(error, "destination", "strips", count * sizeof *rectangle);
    size_t filled = 0;
    for (size_t i = 0; i < count; i++)
        if (target[i].pad != SLC_PAD_CLEAR)
            rectangle[filled++] = (slc_rectangle){ .range = target[i].source, .tag = i };
    bool found;
    size_t first, second;
    sluice_status status = slc_overlap_find(rectangle, filled, param->ndim, may_share, target, &found, &first, &second, error);
    if (rectangle != few)
        slc_release(rectangle);
    if (status != SLUICE_OK || !found)
        return status;
    char a[SLC_RANGES_TEXT], b[SLC_RANGES_TEXT];
    slc_ranges_text(param->ndim, target[first].source, a);
    slc_ranges_text(param->ndim, target[second].source, b);
    return slc_fail(
        error, SLUICE_INVALID, "destination",
        "%s: targets %zu and %zu bring %s and %s of it into one live tensor, '%.300s'; there, strips must not overlap", place,
        first, second, a, b, target[first].live);
}

static sluice_status set_targets(slc_plan *plan, slc_param *param, const slc_param *destination, slc_param *result,
                                 const char *place, sluice_error *error)
{
    size_t count = destination->ntargets;
    if (count == 0 || destination->target == NULL)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: a direct destination needs a target", place);
    if (count > SLC_MAX_TARGETS)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: %zu targets; %d are allowed", place, count, SLC_MAX_TARGETS);
    slc_target *target = slc_arena_take(&plan->arena, count, sizeof *target);
    if (target == NULL)
        return slc_fail_memory(error, "destination", "targets", count * sizeof *target);
    for (size_t i = 0; i < count; i++) {
        sluice_status status = check_target(plan, param, &destination->target[i], &target[i], place, error);
        if (status != SLUICE_OK)
            return status;
    }
    sluice_status status = slc_blocks_check_pairs(param, target, count, place, error);
    if (status != SLUICE_OK)
        return status;
    result->ntargets = count;
    result->target = target;
    return check_apart(param, target, count, place, error);
}

static bool moves(slc_mode mode)
{
    return mode == SLC_MODE_DIRECT || mode == SLC_MODE_FULL;
}

static sluice_status set_alias(const slc_plan *plan, size_t index, const slc_param *destination, slc_param *result,
                               const char *place, sluice_error *error)
{
    if (destination->alias_of == NULL || destination->alias_of[0] == '\0')
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: an alias names no other parameter", place);
    size_t other = slc_plan_find(plan, destination->alias_of);
    if (other == SIZE_MAX)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: is an alias of '%s', which is no parameter of the plan", place,
                        destination->alias_of);
    if (other == index)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: is an alias of itself", place);
    slc_mode mode = plan->param[other].mode;
    if (mode != SLC_MODE_UNRESOLVED && !moves(mode))
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: is an alias of '%s', which does not move itself (%s)", place,
                        destination->alias_of, slc_mode_text(mode));
    result->alias_of = plan->param[other].name;
    return SLUICE_OK;
}

/* ---- setting ---- */

static sluice_status check_texts(const slc_param *destination, const char *place, sluice_error *error)
{
    if (destination->reason != NULL && strlen(destination->reason) > SLC_MAX_NAME)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: its reason has %zu bytes; %d are allowed", place,
                        strlen(destination->reason), SLC_MAX_NAME);
    if (destination->where != NULL && strlen(destination->where) > SLC_MAX_NAME)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: the name of its place has %zu bytes; %d are allowed", place,
                        strlen(destination->where), SLC_MAX_NAME);
    const char *text[] = { destination->reason, destination->where };
    for (int i = 0; i < 2; i++) /* both are told as JSON */
        if (text[i] != NULL && !slc_text_is_utf8(text[i]))
            return slc_fail(error, SLUICE_INVALID, "destination", "%s: its %s (%.1000s) must be UTF-8", place,
                            i == 0 ? "reason" : "place", text[i]);
    return SLUICE_OK;
}

sluice_status slc_plan_set(slc_plan *plan, size_t index, const slc_param *destination, sluice_error *error)
{
    if (index >= plan->count)
        return slc_fail(error, SLUICE_INVALID, "destination", "parameter %zu of a plan of %zu", index, plan->count);
    slc_param *param = &plan->param[index], result = *param;
    char place[SLC_PLACE_TEXT];
    slc_place_text(param, destination->where, place);
    sluice_status status = check_texts(destination, place, error);
    if (status != SLUICE_OK)
        return status;
    result.mode = destination->mode;
    result.ntargets = 0;
    result.target = NULL;
    result.alias_of = NULL;
    result.ncompanions = 0;
    result.companion = NULL;
    switch (destination->mode) {
    case SLC_MODE_DIRECT: status = set_targets(plan, param, destination, &result, place, error); break;
    case SLC_MODE_ALIAS: status = set_alias(plan, index, destination, &result, place, error); break;
    case SLC_MODE_SKIP: break;
    case SLC_MODE_FULL:
        if (!param->allow_full)
            status = slc_fail(
                error, SLUICE_INVALID, "destination", "%s: is full (%s), which its allow_full_fallback (false) forbids", place,
                destination->reason == NULL || destination->reason[0] == '\0' ? "no reason given" : destination->reason);
        break;
    case SLC_MODE_UNRESOLVED:
    default:
        status = slc_fail(error, SLUICE_INVALID, "destination", "%s: mode %d is no destination", place, (int)destination->mode);
    }
    if (status != SLUICE_OK)
        return status;
    result.reason = keep(plan, destination->reason);
    result.where = keep(plan, destination->where);
    if (result.reason == NULL || result.where == NULL)
        return slc_fail_memory(error, "destination", "a reason", SLC_MAX_NAME);
    *param = result;
    return SLUICE_OK;
}

sluice_status slc_plan_set_companions(slc_plan *plan, size_t index, const uint32_t *companion, size_t count, sluice_error *error)
{
    if (index >= plan->count)
        return slc_fail(error, SLUICE_INVALID, "destination", "parameter %zu of a plan of %zu", index, plan->count);
    slc_param *param = &plan->param[index];
    char place[SLC_PLACE_TEXT];
    slc_place_text(param, param->where, place);
    if (count > SLC_MAX_COMPANIONS)
        return slc_fail(error, SLUICE_INVALID, "destination", "%s: %zu companions; %d are allowed", place, count,
                        SLC_MAX_COMPANIONS);
    for (size_t i = 0; i < count; i++)
        if (companion[i] >= plan->count || companion[i] == index)
            return slc_fail(error, SLUICE_INVALID, "destination",
                            "%s: its companion (%u) must be another parameter of the plan's %zu", place, (unsigned)companion[i],
                            plan->count);
    uint32_t *copy = slc_arena_take(&plan->arena, count, sizeof *copy);
    if (copy == NULL)
        return slc_fail_memory(error, "destination", "companions", count * sizeof *copy);
    memcpy(copy, companion, count * sizeof *copy);
    param->companion = copy;
    param->ncompanions = count;
    return SLUICE_OK;
}

sluice_status slc_plan_complete(const slc_plan *plan, sluice_error *error)
{
    char place[SLC_PLACE_TEXT];
    for (size_t i = 0; i < plan->count; i++) {
        const slc_param *param = &plan->param[i];
        if (param->mode == SLC_MODE_UNRESOLVED) {
            slc_place_text(param, param->where, place);
            return slc_fail(error, SLUICE_INVALID, "destination", "%s: has no destination", place);
        }
        if (param->mode != SLC_MODE_ALIAS)
            continue;
        slc_mode mode = plan->param[slc_plan_find(plan, param->alias_of)].mode;
        if (!moves(mode)) {
            slc_place_text(param, param->where, place);
            return slc_fail(error, SLUICE_INVALID, "destination", "%s: is an alias of '%s', which does not move itself (%s)",
                            place, param->alias_of, slc_mode_text(mode));
        }
    }
    return SLUICE_OK;
}

/* ---- side by side ---- */

static bool same_ranges(int ndim, const slc_range *a, const slc_range *b)
{
    for (int i = 0; i < ndim; i++)
        if (a[i].start != b[i].start || a[i].select != b[i].select ||
            (!a[i].select && (a[i].step != b[i].step || a[i].count != b[i].count)))
            return false;
    return true;
}

static bool same_target(const slc_plan *plan, const slc_plan *other, int ndim, const slc_target *a, const slc_target *b)
{
    slc_layout layout = *b->layout;
    layout.mesh = a->layout->mesh;
    if (a->pad != b->pad || a->dtype != b->dtype || a->scales != b->scales || strcmp(a->live, b->live) != 0 ||
        !slc_layout_equal(a->layout, &layout) ||
        slc_plan_mesh_index(plan, a->layout->mesh, true) != slc_plan_mesh_index(other, b->layout->mesh, true))
        return false;
    if (a->view.ndim != b->view.ndim || !same_ranges(ndim, a->source, b->source) ||
        !same_ranges(a->view.ndim, a->view.range, b->view.range))
        return false;
    for (int i = 0, kept = 0; i < a->view.ndim; i++)
        if (!a->view.range[i].select) {
            if (a->view.order[kept] != b->view.order[kept])
                return false;
            kept++;
        }
    return true;
}

bool slc_plan_same_destination(const slc_plan *plan, const slc_plan *other, size_t index)
{
    const slc_param *a = slc_plan_at(plan, index), *b = slc_plan_at(other, index);
    if (a == NULL || b == NULL || a->mode != b->mode || a->ntargets != b->ntargets || a->ncompanions != b->ncompanions)
        return a == b;
    for (size_t i = 0; i < a->ncompanions; i++)
        if (a->companion[i] != b->companion[i])
            return false;
    for (size_t i = 0; i < a->ntargets; i++)
        if (!same_target(plan, other, a->ndim, &a->target[i], &b->target[i]))
            return false;
    return a->mode != SLC_MODE_ALIAS || strcmp(a->alias_of, b->alias_of) == 0;
}

/* ---- as text ---- */

static void describe_target(const slc_param *param, const slc_target *target, char *text, size_t size, size_t *used)
{
    char ranges[SLC_RANGES_TEXT];
    slc_ranges_text(param->ndim, target->source, ranges);
    slc_text_append(text, size, used, "%s -> '%.300s'", target->pad == SLC_PAD_CLEAR ? "zeros" : ranges, target->live);
    slc_ranges_text(target->view.ndim, target->view.range, ranges);
    slc_text_append(text, size, used, " %s", ranges);
    int64_t shape[SLC_MAX_DIMS];
    int ndim = slc_target_strip(param, target, shape, NULL);
    bool permuted = false;
    for (int i = 0; i < ndim; i++)
        permuted = permuted || target->view.order[i] != i;
    for (int i = 0; i < ndim && permuted; i++)
        slc_text_append(text, size, used, "%s%d", i == 0 ? " permuted " : ",", target->view.order[i]);
    slc_text_append(text, size, used, " ");
    slc_layout_text(target->layout, text, size, used);
    if (target->dtype != NULL)
        slc_text_append(text, size, used, target->scales ? " as scales" : " as %s", target->dtype->name);
    if (target->pad == SLC_PAD_ZERO)
        slc_text_append(text, size, used, " padded with zeros");
    if (target->pad == SLC_PAD_EMPTY)
        slc_text_append(text, size, used, " else zeros");
}

void slc_plan_destination_text(const slc_plan *plan, size_t index, char *text, size_t size)
{
    size_t used = 0;
    if (size == 0)
        return;
    text[0] = '\0';
    if (index >= plan->count)
        return;
    const slc_param *param = &plan->param[index];
    slc_text_append(text, size, &used, "%s", slc_mode_text(param->mode));
    for (size_t i = 0; i < param->ntargets; i++) {
        slc_text_append(text, size, &used, "%s", i == 0 ? " " : "; ");
        describe_target(param, &param->target[i], text, size, &used);
    }
    if (param->alias_of != NULL)
        slc_text_append(text, size, &used, " of '%s'", param->alias_of);
    slc_text_tame(text); /* a name that was cut may end within a character */
}

void slc_plan_describe(const slc_plan *plan, size_t index, char *text, size_t size)
{
    slc_plan_destination_text(plan, index, text, size);
    if (size == 0 || index >= plan->count)
        return;
    const slc_param *param = &plan->param[index];
    size_t used = strlen(text);
    if (param->reason[0] != '\0')
        slc_text_append(text, size, &used, ", because: %s", param->reason);
    if (param->where[0] != '\0')
        slc_text_append(text, size, &used, " (%s)", param->where);
    slc_text_tame(text);
}
