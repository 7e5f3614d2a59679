/* plan.c: building a plan: meshes, layouts, parameters in order. Owns all that a plan points to. Destinations: destination.c. */
#include "plan/plan.h"

#include <string.h>

#include "base/error.h"
#include "plan/own.h"
#include "plan/text.h"

const char *slc_mode_text(slc_mode mode)
{
    switch (mode) {
#define TEXT_CASE(name, text) \
    case SLC_MODE_##name: return text;
        SLC_MODE_LIST(TEXT_CASE)
#undef TEXT_CASE
    }
    return "unknown mode";
}

/* ---- life ---- */

slc_plan *slc_plan_create(int32_t trainers, int32_t workers)
{
    slc_plan *plan = slc_allocate_zeroed(1, sizeof *plan);
    if (plan == NULL)
        return NULL;
    plan->trainers = trainers;
    plan->workers = workers;
    plan->quantum = 1 << 20;
    return plan;
}

void slc_plan_destroy(slc_plan *plan)
{
    if (plan == NULL)
        return;
    slc_release(plan->mesh[0].item);
    slc_release(plan->mesh[1].item);
    slc_release(plan->layouts.layout);
    slc_release(plan->layouts.slot);
    slc_release(plan->param);
    slc_names_clear(&plan->names);
    slc_names_clear(&plan->texts);
    slc_arena_clear(&plan->arena);
    slc_release(plan);
}

int32_t slc_plan_trainers(const slc_plan *plan)
{
    return plan->trainers;
}

int32_t slc_plan_workers(const slc_plan *plan)
{
    return plan->workers;
}

int64_t slc_plan_quantum(const slc_plan *plan)
{
    return plan->quantum;
}

void slc_plan_set_quantum(slc_plan *plan, int64_t bytes)
{
    plan->quantum = bytes < 1 ? 1 : bytes;
}

/* ---- meshes ---- */

const slc_mesh *slc_plan_mesh_at(const slc_plan *plan, bool workers, size_t index)
{
    return index < plan->mesh[workers].count ? plan->mesh[workers].item[index] : NULL;
}

size_t slc_plan_mesh_index(const slc_plan *plan, const slc_mesh *mesh, bool workers)
{
    for (size_t i = 0; i < plan->mesh[workers].count; i++)
        if (plan->mesh[workers].item[i] == mesh)
            return i;
    return SIZE_MAX;
}

const slc_mesh *slc_plan_mesh(const slc_plan *plan, bool workers, const char *name)
{
    for (size_t i = 0; i < plan->mesh[workers].count; i++)
        if (strcmp(plan->mesh[workers].item[i]->name, name == NULL ? "" : name) == 0)
            return plan->mesh[workers].item[i];
    return NULL;
}

static const char *keep_text(slc_plan *plan, const char *text)
{
    const char *given = text == NULL ? "" : text;
    return slc_arena_text(&plan->arena, given, strlen(given));
}

static bool keep_mesh(slc_plan *plan, const slc_mesh *mesh, bool workers, const slc_mesh **added)
{
    slc_mesh_list *list = &plan->mesh[workers];
    if (!SLC_ROOM(list->item, list->capacity, list->count, 4))
        return false;
    slc_mesh *copy = slc_arena_take(&plan->arena, 1, sizeof *copy);
    if (copy == NULL)
        return false;
    *copy = *mesh;
    bool good = (copy->name = keep_text(plan, mesh->name)) != NULL;
    for (int i = 0; i < SLC_MAX_AXES; i++) {
        if (i >= mesh->naxes)
            copy->axis[i] = 0;
        good = good && (copy->axis_name[i] = keep_text(plan, i < mesh->naxes ? mesh->axis_name[i] : "")) != NULL;
    }
    if (good)
        *added = list->item[list->count++] = copy;
    return good;
}

sluice_status slc_plan_add_mesh(slc_plan *plan, const slc_mesh *mesh, const slc_mesh **added, sluice_error *error)
{
    *added = NULL;
    slc_mesh checked = *mesh;
    char where[160];
    size_t used = 0;
    bool workers = mesh->first == plan->trainers && mesh->first != 0;
    slc_text_append(where, sizeof where, &used, "%s mesh '%.100s'", workers ? "destination" : "source",
                    mesh->name == NULL ? "" : mesh->name);
    sluice_status status = slc_mesh_check(&checked, where, error);
    if (status != SLUICE_OK)
        return status;
    if (!workers && mesh->first != 0)
        return slc_fail(error, SLUICE_INVALID, "init", "%s begins at rank %d; it must begin at 0 (trainers) or %d (workers)",
                        where, (int)mesh->first, (int)plan->trainers);
    int32_t wanted = workers ? plan->workers : plan->trainers;
    if (checked.size != wanted)
        return slc_fail(error, SLUICE_INVALID, "init", "%s has %d ranks; there are %d %s", where, (int)checked.size, (int)wanted,
                        workers ? "workers" : "trainers");
    if (slc_plan_mesh(plan, workers, checked.name) != NULL)
        return slc_fail(error, SLUICE_INVALID, "init", "%s is there twice", where);
    return keep_mesh(plan, &checked, workers, added) ? SLUICE_OK : slc_fail_memory(error, "init", "a mesh", sizeof checked);
}

/* ---- layouts ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0xbf58476d1ce4e5b9U;
    return hash ^ hash >> 29;
}

/* Equal layouts hash the same; the mesh' address, which nobody outside knows, goes in first. */
static size_t layout_hash(const slc_layout *layout)
{
    uint64_t hash = mix(0x9e3779b97f4a7c15U, (uint64_t)(uintptr_t)layout->mesh);
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *p = &layout->placement[i];
        hash = mix(hash, (uint64_t)p->kind << 32 | (uint32_t)p->axis);
        hash = mix(hash, p->kind == SLC_PIN ? (uint64_t)p->coordinate : (uint64_t)p->dim << 32 | (uint32_t)p->parts);
        hash = mix(hash, p->kind == SLC_PIN || p->split != SLC_SPLIT_CHUNK ? (uint64_t)p->split * (p->kind == SLC_SHARD)
                                                                           : (uint64_t)p->chunk);
    }
    return (size_t)(hash ^ hash >> 32);
}

/* The slot of an equal layout, or the free one where it belongs. */
static size_t seek(const slc_layout_table *table, const slc_layout *layout)
{
    size_t at = layout_hash(layout) & (table->slots - 1);
    while (table->slot[at] != 0 && !slc_layout_equal(table->layout[table->slot[at] - 1], layout))
        at = (at + 1) & (table->slots - 1);
    return at;
}

static bool grow_layouts(slc_layout_table *table)
{
    size_t capacity = table->capacity == 0 ? 32 : table->capacity * 2;
    if (capacity >= UINT32_MAX)
        return false;
    const slc_layout **layout = slc_reallocate(table->layout, capacity * sizeof *layout);
    if (layout == NULL)
        return false;
    table->layout = layout;
    uint32_t *slot = slc_allocate_zeroed(capacity * 2, sizeof *slot);
    if (slot == NULL)
        return false;
    slc_release(table->slot);
    table->slot = slot;
    table->capacity = capacity;
    table->slots = capacity * 2;
    for (size_t i = 0; i < table->count; i++)
        slot[seek(table, layout[i])] = (uint32_t)i + 1;
    return true;
}

const slc_layout *slc_plan_layout(slc_plan *plan, const slc_layout *layout)
{
    slc_layout_table *table = &plan->layouts;
    if (layout->nplacements < 0 || layout->nplacements > SLC_MAX_AXES ||
        (table->count == table->capacity && !grow_layouts(table)))
        return NULL;
    size_t at = seek(table, layout);
    if (table->slot[at] != 0)
        return table->layout[table->slot[at] - 1];
    slc_layout *copy = slc_arena_take(&plan->arena, 1, sizeof *copy);
    if (copy == NULL)
        return NULL;
    copy->mesh = layout->mesh;
    copy->nplacements = layout->nplacements;
    for (int i = 0; i < layout->nplacements; i++)
        copy->placement[i] = layout->placement[i];
    table->layout[table->count++] = copy;
    table->slot[at] = (uint32_t)table->count;
    return copy;
}

/* ---- parameters ---- */

static sluice_status check_param(const slc_plan *plan, const slc_param *param, int64_t *bytes, sluice_error *error)
{
    if (param->name == NULL || param->name[0] == '\0')
        return slc_fail(error, SLUICE_INVALID, "init", "params[%zu].name ('') must not be empty", plan->count);
    if (strlen(param->name) > SLC_MAX_NAME)
        return slc_fail(error, SLUICE_INVALID, "init", "params[%zu].name has %zu bytes; %d are allowed", plan->count,
                        strlen(param->name), SLC_MAX_NAME);
    size_t other = slc_plan_find(plan, param->name);
    if (other != SIZE_MAX)
        return slc_fail(error, SLUICE_INVALID, "init", "params[%zu].name ('%s') is the name of params[%zu], too", plan->count,
                        param->name, other);
    if (param->dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, "init", "params[%zu] ('%s') has no dtype", plan->count, param->name);
    if (param->ndim < 0 || param->ndim > SLC_MAX_DIMS)
        return slc_fail(error, SLUICE_INVALID, "init", "params[%zu].shape ('%s') has %d dims; 0 to %d are allowed", plan->count,
                        param->name, param->ndim, SLC_MAX_DIMS);
    *bytes = param->dtype->bytes;
    for (int d = 0; d < param->ndim; d++) {
        if (param->shape[d] < 1)
            return slc_fail(error, SLUICE_INVALID, "init", "params[%zu].shape[%d] (%lld) must be at least 1", plan->count, d,
                            (long long)param->shape[d]);
        if (!slc_multiply(*bytes, param->shape[d], bytes) || *bytes >= SLC_MAX_BYTES)
            return slc_fail(error, SLUICE_INVALID, "init", "params[%zu] ('%s') has 2^62 bytes or more", plan->count, param->name);
    }
    if (plan->bytes + *bytes >= SLC_MAX_BYTES)
        return slc_fail(error, SLUICE_INVALID, "init", "params[%zu] ('%s') and those before it have 2^62 bytes or more", plan->count,
                        param->name);
    char where[SLC_PLACE_TEXT];
    size_t used = 0;
    slc_text_append(where, sizeof where, &used, "params[%zu] ('%.1000s')", plan->count, param->name);
    if (param->source == NULL || slc_plan_mesh_index(plan, param->source->mesh, false) == SIZE_MAX)
        return slc_fail(error, SLUICE_INVALID, "init", "%s: its source layout needs a mesh of the plan's trainers", where);
    return slc_layout_check(param->source, param->ndim, param->shape, where, error);
}

static bool reserve(slc_plan *plan)
{
    return plan->count < UINT32_MAX / 2 && SLC_ROOM(plan->param, plan->capacity, plan->count, 64);
}

sluice_status slc_plan_add(slc_plan *plan, const slc_param *param, sluice_error *error)
{
    int64_t bytes;
    sluice_status status = check_param(plan, param, &bytes, error);
    if (status != SLUICE_OK)
        return status;
    const slc_layout *source = reserve(plan) ? slc_plan_layout(plan, param->source) : NULL;
    bool fresh;
    size_t number = source == NULL ? SLC_NO_NAME : slc_names_add(&plan->names, param->name, &fresh);
    if (number == SLC_NO_NAME)
        return slc_fail_memory(error, "init", "a parameter", sizeof *param + strlen(param->name));
    slc_param *added = &plan->param[plan->count++];
    plan->bytes += bytes;
    *added = (slc_param){ .name = plan->names.name[number],
                          .dtype = param->dtype,
                          .ndim = param->ndim,
                          .bytes = bytes,
                          .source = source,
                          .allow_full = param->allow_full,
                          .mode = SLC_MODE_UNRESOLVED,
                          .reason = "",
                          .where = "" };
    for (int d = 0; d < param->ndim; d++)
        added->shape[d] = param->shape[d];
    return SLUICE_OK;
}

/* The meshes of both sides, in their order; the source layouts are found by a mesh's index. */
static sluice_status copy_into(const slc_plan *plan, slc_plan *copy, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    const slc_mesh *added;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < plan->mesh[side].count && status == SLUICE_OK; i++)
            status = slc_plan_add_mesh(copy, plan->mesh[side].item[i], &added, error);
    for (size_t i = 0; i < plan->count && status == SLUICE_OK; i++) {
        slc_param param = plan->param[i];
        slc_layout source = *param.source;
        source.mesh = slc_plan_mesh_at(copy, false, slc_plan_mesh_index(plan, source.mesh, false));
        param.source = &source;
        status = slc_plan_add(copy, &param, error);
    }
    return status;
}

sluice_status slc_plan_copy(const slc_plan *plan, slc_plan **copy, sluice_error *error)
{
    *copy = NULL;
    slc_plan *made = slc_plan_create(plan->trainers, plan->workers);
    if (made == NULL)
        return slc_fail_memory(error, "init", "a plan", sizeof *made);
    slc_plan_set_quantum(made, plan->quantum);
    sluice_status status = copy_into(plan, made, error);
    if (status == SLUICE_OK)
        *copy = made;
    else
        slc_plan_destroy(made);
    return status;
}

size_t slc_plan_count(const slc_plan *plan)
{
    return plan->count;
}

const slc_param *slc_plan_at(const slc_plan *plan, size_t index)
{
    return index < plan->count ? &plan->param[index] : NULL;
}

size_t slc_plan_find(const slc_plan *plan, const char *name)
{
    size_t number = name == NULL ? SLC_NO_NAME : slc_names_find(&plan->names, name);
    return number == SLC_NO_NAME ? SIZE_MAX : number;
}

slc_plan_totals slc_plan_count_totals(const slc_plan *plan)
{
    slc_plan_totals totals = { 0 };
    for (size_t i = 0; i < plan->count; i++) {
        int64_t bytes = plan->param[i].bytes;
        switch (plan->param[i].mode) {
        case SLC_MODE_UNRESOLVED: break;
        case SLC_MODE_DIRECT:
            totals.direct++;
            totals.direct_bytes += bytes;
            break;
        case SLC_MODE_FULL:
            totals.full++;
            totals.full_bytes += bytes;
            totals.largest_full_bytes = bytes > totals.largest_full_bytes ? bytes : totals.largest_full_bytes;
            break;
        case SLC_MODE_ALIAS:
            totals.alias++;
            totals.alias_bytes += bytes;
            break;
        case SLC_MODE_SKIP:
            totals.skip++;
            totals.skip_bytes += bytes;
            break;
        }
    }
    return totals;
}
