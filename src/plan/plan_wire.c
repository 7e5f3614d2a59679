/*
 * plan_wire.c: a plan's destinations as bytes. Layouts and texts come first, each once, in the order of their first use;
 * then the parameters in plan order refer to them by number. Numbers are LEB128, so that a usual target takes about twenty
 * bytes. Owns nothing beyond the call.
 *
 *   magic u32, parameters
 *   layouts, each: mesh, placements, each: kind u8, axis u8, then dim u8, parts, split u8 (, chunk), or coordinate
 *   texts, each: length, bytes
 *   parameters, each: mode u8 (with HAS_COMPANIONS), place, reason, then DIRECT: targets, each as put_target has it; ALIAS:
 *   parameter; with HAS_COMPANIONS: their count, parameters
 */
#include <string.h>

#include "base/error.h"
#include "plan/index.h"
#include "plan/own.h"

enum {
    MAGIC = 0x31646c73, /* "sld1" */
    RANGE_ALL = 0, /* from 0, every element to the end; else any of: */
    RANGE_COUNT = 1, /* start, step and count follow */
    RANGE_TO_END = 2, /* start and step follow */
    RANGE_SELECT = 3, /* the index follows */
    HAS_COMPANIONS = 8, /* beside the mode */
    CONVERTS = 8, /* beside the padding */
    SCALES = 16 /* beside that */
};

#define MOST_TARGETS ((size_t)1 << 20) /* of a plan that is received */

/* ---- writing ---- */

static void put_number(slc_buffer *buffer, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        slc_buffer_u8(buffer, (uint8_t)(value | 0x80));
    slc_buffer_u8(buffer, (uint8_t)value);
}

static void put_range(slc_buffer *buffer, slc_range range, int64_t extent)
{
    if (range.select) {
        slc_buffer_u8(buffer, RANGE_SELECT);
        put_number(buffer, (uint64_t)range.start);
    } else if (range.start == 0 && range.step == 1 && (range.count == SLC_TO_END || range.count == extent)) {
        slc_buffer_u8(buffer, RANGE_ALL);
    } else {
        slc_buffer_u8(buffer, range.count == SLC_TO_END ? RANGE_TO_END : RANGE_COUNT);
        put_number(buffer, (uint64_t)range.start);
        put_number(buffer, (uint64_t)range.step);
        if (range.count != SLC_TO_END)
            put_number(buffer, (uint64_t)range.count);
    }
}

static void put_layout(slc_buffer *buffer, const slc_plan *plan, const slc_layout *layout)
{
    put_number(buffer, slc_plan_mesh_index(plan, layout->mesh, true));
    slc_buffer_u8(buffer, (uint8_t)layout->nplacements);
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        slc_buffer_u8(buffer, (uint8_t)placement->kind);
        slc_buffer_u8(buffer, (uint8_t)placement->axis);
        if (placement->kind == SLC_PIN) {
            put_number(buffer, (uint64_t)placement->coordinate);
            continue;
        }
        slc_buffer_u8(buffer, (uint8_t)placement->dim);
        put_number(buffer, (uint64_t)placement->parts);
        slc_buffer_u8(buffer, (uint8_t)placement->split);
        if (placement->split == SLC_SPLIT_CHUNK)
            put_number(buffer, (uint64_t)placement->chunk);
    }
}

/* What destinations refer to, numbered in the order of first use. Texts and layouts of a plan are each stored once. */
typedef struct writer {
    const slc_plan *plan;
    slc_buffer *buffer;
    slc_address_index layouts, texts;
    bool words; /* reasons and places, too */
    bool failed;
} writer;

static void meet(writer *w, slc_address_index *index, const void *address)
{
    if (slc_address_find(index, address) == SLC_NOT_FOUND && !slc_address_add(index, address))
        w->failed = true;
}

static void put_reference(writer *w, const slc_address_index *index, const void *address)
{
    put_number(w->buffer, slc_address_find(index, address));
}

static void put_target(writer *w, const slc_param *param, const slc_target *target)
{
    put_reference(w, &w->texts, target->live);
    put_reference(w, &w->layouts, target->layout);
    slc_buffer_u8(w->buffer, (uint8_t)(target->pad | (target->dtype == NULL ? 0 : CONVERTS) | (target->scales ? SCALES : 0)));
    if (target->dtype != NULL)
        slc_buffer_u8(w->buffer, target->dtype->code);
    for (int d = 0; d < param->ndim; d++)
        put_range(w->buffer, target->source[d], param->shape[d]);
    slc_buffer_u8(w->buffer, (uint8_t)target->view.ndim);
    int left = 0;
    for (int d = 0; d < target->view.ndim; d++) {
        put_range(w->buffer, target->view.range[d], SLC_TO_END);
        left += !target->view.range[d].select;
    }
    for (int i = 0; i < left; i++)
        slc_buffer_u8(w->buffer, (uint8_t)target->view.order[i]);
}

static void put_param(writer *w, const slc_param *param)
{
    slc_buffer_u8(w->buffer, (uint8_t)(param->mode | (param->ncompanions > 0 ? HAS_COMPANIONS : 0)));
    if (w->words) {
        put_reference(w, &w->texts, param->where);
        put_reference(w, &w->texts, param->reason);
    }
    if (param->mode == SLC_MODE_DIRECT) {
        put_number(w->buffer, param->ntargets);
        for (size_t i = 0; i < param->ntargets; i++)
            put_target(w, param, &param->target[i]);
    } else if (param->mode == SLC_MODE_ALIAS) {
        put_number(w->buffer, slc_plan_find(w->plan, param->alias_of));
    }
    if (param->ncompanions > 0)
        put_number(w->buffer, param->ncompanions);
    for (size_t i = 0; i < param->ncompanions; i++)
        put_number(w->buffer, param->companion[i]);
}

static void collect(writer *w)
{
    for (size_t i = 0; i < w->plan->count && !w->failed; i++) {
        const slc_param *param = &w->plan->param[i];
        if (w->words) {
            meet(w, &w->texts, param->where);
            meet(w, &w->texts, param->reason);
        }
        for (size_t t = 0; t < param->ntargets; t++) {
            meet(w, &w->texts, param->target[t].live);
            meet(w, &w->layouts, param->target[t].layout);
        }
    }
}

static sluice_status encode(const slc_plan *plan, bool words, slc_buffer *buffer, sluice_error *error)
{
    sluice_status status = slc_plan_complete(plan, error);
    if (status != SLUICE_OK)
        return status;
    writer w = { .plan = plan, .buffer = buffer, .words = words };
    collect(&w);
    slc_buffer_u32(buffer, MAGIC);
    put_number(buffer, plan->count);
    put_number(buffer, w.layouts.count);
    for (size_t i = 0; i < w.layouts.count; i++)
        put_layout(buffer, plan, w.layouts.address[i]);
    put_number(buffer, w.texts.count);
    for (size_t i = 0; i < w.texts.count; i++) {
        const char *text = w.texts.address[i];
        put_number(buffer, strlen(text));
        slc_buffer_append(buffer, text, strlen(text));
    }
    for (size_t i = 0; i < plan->count && !w.failed; i++)
        put_param(&w, &plan->param[i]);
    slc_address_clear(&w.layouts);
    slc_address_clear(&w.texts);
    if (w.failed || buffer->failed)
        return slc_fail_memory(error, "destination", "the destinations of a plan", buffer->length);
    return SLUICE_OK;
}

sluice_status slc_plan_encode_destinations(const slc_plan *plan, slc_buffer *buffer, sluice_error *error)
{
    return encode(plan, true, buffer, error);
}

sluice_status slc_plan_digest_destinations(const slc_plan *plan, char digest[SLC_DIGEST_TEXT], sluice_error *error)
{
    slc_buffer bytes = { 0 };
    sluice_status status = encode(plan, false, &bytes, error);
    if (status == SLUICE_OK)
        status = slc_digest(bytes.data, bytes.length, digest, error);
    slc_buffer_clear(&bytes);
    return status;
}

/* ---- reading ---- */

typedef struct reader {
    slc_plan *plan;
    slc_reader in;
    const slc_layout **layout;
    const char **text;
    slc_target *target; /* of the parameter under way */
    size_t nlayouts, ntexts, capacity, targets;
    slc_arena arena;
} reader;

static uint64_t get_number(reader *r)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = slc_read_u8(&r->in);
        if (shift == 63 && byte > 1)
            break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0)
            return value;
    }
    r->in.failed = true;
    return 0;
}

/* A number in [0, most]; beyond that the reading has failed. */
static int64_t get_within(reader *r, int64_t most)
{
    uint64_t value = get_number(r);
    if (value > (uint64_t)most) {
        r->in.failed = true;
        return 0;
    }
    return (int64_t)value;
}

/* A count of things that take at least a byte each, so that it cannot ask for more memory than the message has bytes for. */
static size_t get_count(reader *r)
{
    return (size_t)get_within(r, (int64_t)slc_reader_left(&r->in));
}

static slc_range get_range(reader *r, int64_t whole)
{
    slc_range range = { .step = 1, .count = whole };
    switch (slc_read_u8(&r->in)) {
    case RANGE_ALL: break;
    case RANGE_SELECT:
        range.start = get_within(r, SLC_MAX_BYTES);
        range.count = 1;
        range.select = true;
        break;
    case RANGE_TO_END:
        range.start = get_within(r, SLC_MAX_BYTES);
        range.step = get_within(r, SLC_MAX_BYTES);
        range.count = SLC_TO_END;
        break;
    case RANGE_COUNT:
        range.start = get_within(r, SLC_MAX_BYTES);
        range.step = get_within(r, SLC_MAX_BYTES);
        range.count = get_within(r, SLC_MAX_BYTES);
        break;
    default: r->in.failed = true;
    }
    return range;
}

static void get_layout(reader *r, slc_layout *layout)
{
    const slc_mesh *mesh = slc_plan_mesh_at(r->plan, true, (size_t)get_number(r));
    *layout = (slc_layout){ .mesh = mesh, .nplacements = slc_read_u8(&r->in) };
    if (mesh == NULL || layout->nplacements > mesh->naxes)
        r->in.failed = true;
    for (int i = 0; i < layout->nplacements && !r->in.failed; i++) {
        slc_placement *placement = &layout->placement[i];
        uint8_t kind = slc_read_u8(&r->in);
        placement->axis = slc_read_u8(&r->in);
        if (placement->axis >= mesh->naxes || (kind != SLC_SHARD && kind != SLC_PIN)) {
            r->in.failed = true;
        } else if (kind == SLC_PIN) {
            placement->kind = SLC_PIN;
            placement->coordinate = (int32_t)get_within(r, mesh->axis[placement->axis] - 1);
        } else {
            placement->kind = SLC_SHARD;
            placement->dim = slc_read_u8(&r->in);
            placement->parts = (int32_t)get_within(r, mesh->axis[placement->axis]);
            uint8_t split = slc_read_u8(&r->in);
            placement->split = split == SLC_SPLIT_CHUNK      ? SLC_SPLIT_CHUNK
                               : split == SLC_SPLIT_BALANCED ? SLC_SPLIT_BALANCED
                                                             : SLC_SPLIT_CEIL;
            r->in.failed = r->in.failed || split > SLC_SPLIT_CHUNK;
            placement->chunk = placement->split == SLC_SPLIT_CHUNK ? get_within(r, SLC_MAX_BYTES) : 0;
        }
    }
}

static sluice_status fail_bytes(const reader *r, const char *what, sluice_error *error)
{
    return slc_fail(error, SLUICE_INVALID, "destination", "the destinations received are malformed: %s, before byte %zu of %zu",
                    what, r->in.offset, r->in.length);
}

static sluice_status get_tables(reader *r, sluice_error *error)
{
    if (slc_read_u32(&r->in) != MAGIC)
        return fail_bytes(r, "they do not begin as destinations do", error);
    if (get_number(r) != r->plan->count)
        return fail_bytes(r, "they are for another number of parameters", error);
    r->nlayouts = get_count(r);
    r->layout = slc_arena_take(&r->arena, r->nlayouts, sizeof *r->layout);
    for (size_t i = 0; i < r->nlayouts && r->layout != NULL; i++) {
        slc_layout layout;
        get_layout(r, &layout);
        if (r->in.failed)
            return fail_bytes(r, "a layout", error);
        if ((r->layout[i] = slc_plan_layout(r->plan, &layout)) == NULL)
            return slc_fail_memory(error, "destination", "a layout", sizeof layout);
    }
    r->ntexts = get_count(r);
    r->text = slc_arena_take(&r->arena, r->ntexts, sizeof *r->text);
    if (r->layout == NULL || r->text == NULL)
        return slc_fail_memory(error, "destination", "the tables of destinations", (r->ntexts + r->nlayouts) * sizeof *r->text);
    for (size_t i = 0; i < r->ntexts; i++) {
        size_t length = (size_t)get_within(r, SLC_MAX_NAME);
        const unsigned char *bytes = slc_read_bytes(&r->in, length);
        if (bytes == NULL || memchr(bytes, 0, length) != NULL)
            return fail_bytes(r, "a text", error);
        if ((r->text[i] = slc_arena_text(&r->arena, (const char *)bytes, length)) == NULL)
            return slc_fail_memory(error, "destination", "a text", length);
    }
    return r->in.failed ? fail_bytes(r, "a table", error) : SLUICE_OK;
}

static const char *get_text(reader *r)
{
    uint64_t number = get_number(r);
    if (number < r->ntexts)
        return r->text[number];
    r->in.failed = true;
    return "";
}

static void get_target(reader *r, const slc_param *param, slc_target *target)
{
    *target = (slc_target){ .live = get_text(r) };
    uint64_t layout = get_number(r);
    if (layout < r->nlayouts)
        target->layout = r->layout[layout];
    else
        r->in.failed = true;
    int64_t coded = get_within(r, SCALES + CONVERTS + SLC_PAD_CLEAR);
    target->pad = (slc_pad)(coded & (CONVERTS - 1));
    target->scales = (coded & SCALES) != 0;
    if ((coded & CONVERTS) != 0) {
        target->dtype = slc_dtype_by_code(slc_read_u8(&r->in));
        if (target->dtype == NULL || (target->dtype == param->dtype && !target->scales))
            r->in.failed = true; /* there is one way to say the same */
    }
    if (target->pad > SLC_PAD_CLEAR)
        r->in.failed = true;
    for (int d = 0; d < param->ndim && !r->in.failed; d++)
        target->source[d] = get_range(r, param->shape[d]);
    target->view.ndim = (int)get_within(r, SLC_MAX_DIMS);
    int left = 0;
    for (int d = 0; d < target->view.ndim && !r->in.failed; d++) {
        target->view.range[d] = get_range(r, SLC_TO_END);
        left += !target->view.range[d].select;
    }
    for (int i = 0; i < left && !r->in.failed; i++)
        target->view.order[i] = (int8_t)get_within(r, SLC_MAX_DIMS - 1);
}

static sluice_status get_targets(reader *r, const slc_param *param, slc_param *destination, sluice_error *error)
{
    size_t count = (size_t)get_within(r, SLC_MAX_TARGETS);
    if (r->in.failed || (r->targets += count) > MOST_TARGETS)
        return fail_bytes(r, "too many targets", error);
    if (count > r->capacity) {
        slc_target *target = slc_reallocate(r->target, count * sizeof *target);
        if (target == NULL)
            return slc_fail_memory(error, "destination", "targets", count * sizeof *target);
        r->target = target;
        r->capacity = count;
    }
    for (size_t i = 0; i < count && !r->in.failed; i++)
        get_target(r, param, &r->target[i]);
    destination->ntargets = count;
    destination->target = r->target;
    return SLUICE_OK;
}

static size_t get_companions(reader *r, uint32_t companion[SLC_MAX_COMPANIONS])
{
    size_t count = (size_t)get_within(r, SLC_MAX_COMPANIONS);
    for (size_t i = 0; i < count; i++)
        companion[i] = (uint32_t)get_within(r, UINT32_MAX);
    if (count == 0)
        r->in.failed = true; /* there is one way to say none */
    return count;
}

static sluice_status get_params(reader *r, sluice_error *error)
{
    for (size_t i = 0; i < r->plan->count; i++) {
        slc_param destination = { .mode = SLC_MODE_UNRESOLVED };
        int64_t coded = get_within(r, HAS_COMPANIONS + SLC_MODE_SKIP), mode = coded & (HAS_COMPANIONS - 1);
        destination.where = get_text(r);
        destination.reason = get_text(r);
        sluice_status status = SLUICE_OK;
        if (mode == SLC_MODE_DIRECT) {
            destination.mode = SLC_MODE_DIRECT;
            status = get_targets(r, &r->plan->param[i], &destination, error);
        } else if (mode == SLC_MODE_ALIAS) {
            destination.mode = SLC_MODE_ALIAS;
            const slc_param *other = slc_plan_at(r->plan, (size_t)get_number(r));
            destination.alias_of = other == NULL ? "" : other->name;
        } else if (mode != SLC_MODE_UNRESOLVED) {
            destination.mode = mode == SLC_MODE_FULL ? SLC_MODE_FULL : SLC_MODE_SKIP;
        }
        if (mode > SLC_MODE_SKIP)
            r->in.failed = true;
        uint32_t companion[SLC_MAX_COMPANIONS];
        size_t ncompanions = (coded & HAS_COMPANIONS) == 0 ? 0 : get_companions(r, companion);
        if (status == SLUICE_OK && r->in.failed)
            status = fail_bytes(r, "a destination", error);
        if (status == SLUICE_OK)
            status = slc_plan_set(r->plan, i, &destination, error);
        if (status == SLUICE_OK && ncompanions > 0)
            status = slc_plan_set_companions(r->plan, i, companion, ncompanions, error);
        if (status != SLUICE_OK)
            return status;
    }
    if (slc_reader_left(&r->in) > 0)
        return fail_bytes(r, "there is more behind the last one", error);
    return slc_plan_complete(r->plan, error);
}

static void unset(slc_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        slc_param *param = &plan->param[i];
        param->mode = SLC_MODE_UNRESOLVED;
        param->ntargets = 0;
        param->target = NULL;
        param->alias_of = NULL;
        param->ncompanions = 0;
        param->companion = NULL;
        param->reason = param->where = "";
    }
}

sluice_status slc_plan_decode_destinations(slc_plan *plan, const void *data, size_t length, sluice_error *error)
{
    reader r = { .plan = plan, .in = { .data = data, .length = length } };
    unset(plan);
    sluice_status status = get_tables(&r, error);
    if (status == SLUICE_OK)
        status = get_params(&r, error);
    if (status != SLUICE_OK)
        unset(plan);
    slc_release(r.target);
    slc_arena_clear(&r.arena);
    return status;
}
