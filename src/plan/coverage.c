/* coverage.c: the checks that make a rule safe on one worker, and what the plan leaves unwritten. Owns nothing. */
#include "plan/coverage.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/names.h"
#include "plan/overlap.h"
#include "plan/text.h"
#include "plan/write.h"

typedef struct checker {
    const slc_plan *plan;
    const slc_live_set *live;
    int32_t rank;
    slc_write_list writes;
    slc_clash clash;
    slc_byte_count count;
} checker;

/* ---- views and dtypes: checks 1 and 2 ---- */

static sluice_status append(slc_write_list *list, const slc_write *write, sluice_error *error)
{
    if (!SLC_ROOM(list->item, list->capacity, list->count, 64))
        return slc_fail_memory(error, "destination", "the writes of a plan", (list->count + 1) * sizeof *list->item);
    list->item[list->count++] = *write;
    return SLUICE_OK;
}

static sluice_status check_target(checker *c, size_t index, uint32_t target, slc_coverage *coverage, sluice_error *error)
{
    const slc_param *param = slc_plan_at(c->plan, index);
    slc_landing landing;
    sluice_status status = slc_target_land(param, &param->target[target], c->live, c->rank, &landing, error);
    if (status != SLUICE_OK || !landing.holds)
        return status;
    slc_write write = { .param = (uint32_t)index, .target = target, .live = landing.live, .bytes = landing.item };
    for (int d = 0; d < landing.ndim; d++)
        write.bytes *= landing.window.extent[d];
    if (write.bytes == 0)
        return SLUICE_OK;
    memcpy(write.range, landing.range, sizeof write.range);
    int64_t box = landing.clears ? 0 : landing.item;
    for (int d = 0; d < landing.ndim; d++)
        box *= landing.clears ? 0 : slc_landing_held(&landing, d);
    coverage->written_bytes += box;
    coverage->padded_bytes += write.bytes - box;
    return append(&c->writes, &write, error);
}

static sluice_status check_targets(checker *c, slc_coverage *coverage, sluice_error *error)
{
    for (size_t i = 0; i < slc_plan_count(c->plan); i++) {
        const slc_param *param = slc_plan_at(c->plan, i);
        for (uint32_t target = 0; param->mode == SLC_MODE_DIRECT && target < param->ntargets; target++) {
            sluice_status status = check_target(c, i, target, coverage, error);
            if (status != SLUICE_OK)
                return status;
        }
    }
    return SLUICE_OK;
}

/* ---- no byte twice: check 3 ---- */

static int by_live(const void *a, const void *b)
{
    const slc_write *const *x = a, *const *y = b;
    if ((*x)->live != (*y)->live)
        return (*x)->live < (*y)->live ? -1 : 1;
    return *x < *y ? -1 : *x > *y;
}

static sluice_status compare_views(checker *c, sluice_error *error)
{
    size_t count = c->writes.count;
    const slc_write **sorted = slc_allocate_zeroed(count, sizeof *sorted);
    slc_rectangle *rectangle = slc_allocate_zeroed(count, sizeof *rectangle);
    sluice_status status = SLUICE_OK;
    if (sorted == NULL || rectangle == NULL) {
        status = slc_fail_memory(error, "destination", "the writes of a plan", count * sizeof *rectangle);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        sorted[i] = &c->writes.item[i];
    if (count > 1)
        qsort(sorted, count, sizeof *sorted, by_live);
    for (size_t from = 0, to; from < count && status == SLUICE_OK; from = to) {
        for (to = from; to < count && sorted[to]->live == sorted[from]->live; to++)
            rectangle[to - from] = (slc_rectangle){ .range = sorted[to]->range, .tag = (size_t)(sorted[to] - c->writes.item) };
        bool found;
        size_t first, second;
        status = slc_overlap_find(rectangle, to - from, c->live->item[sorted[from]->live].ndim, NULL, NULL, &found, &first,
                                  &second, error);
        if (status == SLUICE_OK && found)
            slc_clash_note(&c->clash, first, second);
    }
out:
    slc_release(sorted);
    slc_release(rectangle);
    return status;
}

static void side_text(const checker *c, const slc_write *write, char *text, size_t size)
{
    const slc_param *param = slc_plan_at(c->plan, write->param);
    const slc_live *live = &c->live->item[write->live];
    char place[SLC_PLACE_TEXT], ranges[SLC_RANGES_TEXT], shape[SLC_SHAPE_TEXT];
    size_t used = 0;
    slc_place_text(param, param->where, place);
    slc_ranges_text(live->ndim, write->range, ranges);
    slc_shape_text(live->ndim, live->shape, shape);
    slc_text_append(text, size, &used, "%s writes %s of live '%.200s' %s", place, ranges, live->name, shape);
}

static sluice_status fail_clash(const checker *c, sluice_error *error)
{
    char first[1900], second[1900];
    side_text(c, &c->writes.item[c->clash.second], second, sizeof second);
    side_text(c, &c->writes.item[c->clash.first], first, sizeof first);
    return slc_fail(error, SLUICE_INVALID, "destination", "%s, where on worker rank %d bytes are written already: %s", second,
                    (int)c->rank, first);
}

/* ---- modules: check 4 ---- */

/* The name up to its last dot; "" where there is none. */
static void module_of(const char *name, char module[SLC_MAX_NAME + 1])
{
    const char *dot = strrchr(name, '.');
    size_t length = dot == NULL ? 0 : (size_t)(dot - name);
    memcpy(module, name, length);
    module[length] = '\0';
}

/* The full parameters' modules; `param` has for each the first parameter of it. */
typedef struct module_list {
    slc_names names;
    size_t *param, capacity;
} module_list;

static bool add_module(module_list *list, const char *module, size_t param)
{
    bool added;
    size_t number = slc_names_add(&list->names, module, &added);
    if (number == SLC_NO_NAME)
        return false;
    if (!added)
        return true;
    if (!SLC_ROOM(list->param, list->capacity, number, 64))
        return false;
    list->param[number] = param;
    return true;
}

static sluice_status check_modules(const slc_plan *plan, sluice_error *error)
{
    module_list full = { 0 };
    char module[SLC_MAX_NAME + 1], place[SLC_PLACE_TEXT], other[SLC_PLACE_TEXT];
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < slc_plan_count(plan) && status == SLUICE_OK; i++) {
        const slc_param *param = slc_plan_at(plan, i);
        if (param->mode != SLC_MODE_FULL)
            continue;
        module_of(param->name, module);
        if (!add_module(&full, module, i))
            status = slc_fail_memory(error, "destination", "the modules of a plan", sizeof *full.param);
    }
    for (size_t i = 0; i < slc_plan_count(plan) && status == SLUICE_OK && full.names.count > 0; i++) {
        const slc_param *param = slc_plan_at(plan, i);
        for (size_t t = 0; param->mode == SLC_MODE_DIRECT && t < param->ntargets && status == SLUICE_OK; t++) {
            module_of(param->target[t].live, module);
            size_t number = slc_names_find(&full.names, module);
            if (number == SLC_NO_NAME)
                continue;
            const slc_param *cause = slc_plan_at(plan, full.param[number]);
            slc_place_text(param, param->where, place);
            slc_place_text(cause, cause->where, other);
            status = slc_fail(
                error, SLUICE_INVALID, "destination",
                "%s: is direct into live '%.200s', but of its module '%.200s' %s is full (%.300s); a module is finalised as one",
                place, param->target[t].live, module, other, cause->reason);
        }
    }
    slc_names_clear(&full.names);
    slc_release(full.param);
    return status;
}

/* ---- the whole ---- */

static sluice_status list_uncovered(const checker *c, slc_arena *arena, slc_coverage *coverage, sluice_error *error)
{
    size_t count = 0;
    for (size_t i = 0; i < c->live->count; i++)
        count += c->count.unwritten[i] > 0;
    slc_uncovered *uncovered = count == 0 ? NULL : slc_arena_take(arena, count, sizeof *uncovered);
    if (count > 0 && uncovered == NULL)
        return slc_fail_memory(error, "destination", "the list of unwritten tensors", count * sizeof *uncovered);
    for (size_t i = 0, n = 0; i < c->live->count; i++)
        if (c->count.unwritten[i] > 0)
            uncovered[n++] = (slc_uncovered){ .live = i, .bytes = c->count.unwritten[i] };
    coverage->nuncovered = count;
    coverage->uncovered = uncovered;
    coverage->live_bytes = c->count.live_bytes;
    return SLUICE_OK;
}

static sluice_status check_bytes(checker *c, sluice_error *error)
{
    sluice_status status = compare_views(c, error);
    if (status != SLUICE_OK)
        return status;
    /* Before anything is known of shared memory, and with no byte written twice through one tensor. */
    for (size_t i = 0; i < c->live->count; i++) {
        c->count.unwritten[i] = slc_live_bytes(&c->live->item[i]);
        c->count.live_bytes += c->count.unwritten[i];
    }
    for (size_t i = 0; i < c->writes.count && !c->clash.found; i++)
        c->count.unwritten[c->writes.item[i].live] -= c->writes.item[i].bytes;
    status = slc_shared_memory_check(&c->writes, c->live, &c->clash, &c->count, error);
    if (status == SLUICE_OK && c->clash.found)
        status = fail_clash(c, error);
    return status;
}

sluice_status slc_coverage_check(const slc_plan *plan, const slc_live_set *live, int32_t rank, bool whole_modules,
                                 slc_arena *arena, slc_coverage *coverage, sluice_error *error)
{
    *coverage = (slc_coverage){ 0 };
    slc_coverage result = { 0 };
    checker c = { .plan = plan, .live = live, .rank = rank };
    sluice_status status = slc_plan_complete(plan, error);
    if (status != SLUICE_OK)
        return status;
    c.count.unwritten = slc_allocate_zeroed(live->count, sizeof *c.count.unwritten);
    if (c.count.unwritten == NULL)
        return slc_fail_memory(error, "destination", "the coverage of live tensors", live->count * sizeof *c.count.unwritten);
    status = check_targets(&c, &result, error);
    if (status == SLUICE_OK)
        status = check_bytes(&c, error);
    if (status == SLUICE_OK && whole_modules)
        status = check_modules(plan, error);
    if (status == SLUICE_OK)
        status = list_uncovered(&c, arena, &result, error);
    if (status == SLUICE_OK)
        *coverage = result;
    slc_release(c.count.unwritten);
    slc_release(c.writes.item);
    return status;
}
