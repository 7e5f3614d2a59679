/*
 * rehearse.c: does in this process what one worker's program says, for some parameters with generated values, and holds every
 * byte against where the plan's targets say that each element lands: the program, the strided copies of the host transport and
 * the targets must agree. For plans of which nobody can say what other workers hold. Owns all that it makes.
 */
#include "cli/rehearse.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/values.h"
#include "plan/landing.h"
#include "transport/host/strided.h"

static const char STAGE[] = "dry run";

typedef struct shard {
    int32_t rank;
    unsigned char *data;
} shard;

/* What is written of one live tensor, or of a staging slot: bytes [low, high) of it, and what must be there afterwards. */
typedef struct image {
    uint32_t buffer;
    int64_t low, high;
    unsigned char *got, *want;
} image;

typedef struct stage_of_one {
    const slc_plan *plan;
    const slc_live_set *live;
    const slc_param *param;
    const slc_segment *segment;
    int32_t rank;
    slc_values values;
    shard *shard;
    size_t nshards;
    image image;
} stage_of_one;

/* ---- sources ---- */

/* Goes to the next index of the dims before `ndim`; false after the last. */
static bool next_index(int ndim, const int64_t *count, int64_t *index)
{
    for (int d = ndim - 1; d >= 0; d--) {
        if (++index[d] < count[d])
            return true;
        index[d] = 0;
    }
    return false;
}

static void fill_shard(const stage_of_one *s, const slc_box *box, unsigned char *data)
{
    const slc_param *param = s->param;
    int64_t item = param->dtype->bytes, count[SLC_MAX_DIMS], index[SLC_MAX_DIMS] = { 0 };
    int rows = param->ndim == 0 ? 0 : param->ndim - 1;
    for (int d = 0; d < param->ndim; d++)
        count[d] = box->high[d] - box->low[d];
    int64_t run = item * (param->ndim == 0 ? 1 : count[rows]);
    do {
        int64_t at = 0;
        for (int d = 0; d < param->ndim; d++)
            at = at * param->shape[d] + box->low[d] + (d < rows ? index[d] : 0);
        slc_values_write(&s->values, 1, (uint64_t)(at * item), data, (size_t)run);
        data += run;
    } while (next_index(rows, count, index));
}

static sluice_status make_shard(stage_of_one *s, int32_t rank, sluice_error *error)
{
    for (size_t i = 0; i < s->nshards; i++)
        if (s->shard[i].rank == rank)
            return SLUICE_OK;
    slc_box box;
    int64_t bytes = slc_source_bytes(s->param, rank);
    if (bytes == 0 || !slc_layout_box(s->param->source, s->param->ndim, s->param->shape, rank, &box))
        return slc_fail(error, SLUICE_INTERNAL, STAGE, "'%s': rank %d is to send what it does not hold", s->param->name, (int)rank);
    unsigned char *data = slc_allocate((size_t)bytes);
    if (data == NULL)
        return slc_fail_memory(error, STAGE, "a shard", (size_t)bytes);
    fill_shard(s, &box, data);
    s->shard[s->nshards++] = (shard){ rank, data };
    return SLUICE_OK;
}

static const unsigned char *shard_of(const stage_of_one *s, int32_t rank)
{
    size_t i = 0;
    while (s->shard[i].rank != rank)
        i++;
    return s->shard[i].data;
}

/* ---- what the program writes ---- */

static void widen(image *at, int64_t low, int64_t high)
{
    bool first = at->low == at->high;
    at->low = first || low < at->low ? low : at->low;
    at->high = first || high > at->high ? high : at->high;
}

static int64_t end_of(int64_t from, int64_t run, uint32_t ndim, const slc_stride *dim)
{
    int64_t end = from + run;
    for (uint32_t d = 0; d < ndim; d++)
        end += (dim[d].count - 1) * dim[d].destination;
    return end;
}

static void perform(stage_of_one *s)
{
    image *at = &s->image;
    for (uint32_t i = 0; i < s->segment->nfills; i++) {
        const slc_fill *fill = &s->segment->fill[i];
        if (fill->buffer == at->buffer)
            slc_strided_clear(at->got + (fill->destination - at->low), fill->run, fill->ndim, fill->dim);
    }
    for (uint32_t i = 0; i < s->segment->ncopies; i++) {
        const slc_copy *copy = &s->segment->copy[i];
        if (copy->buffer == at->buffer)
            slc_strided_move(at->got + (copy->destination - at->low), shard_of(s, copy->peer) + copy->source, copy);
    }
}

/* ---- what the targets say ---- */

/* Whether the target lands in the tensor at hand on this worker, with anything. */
static bool lands(const stage_of_one *s, const slc_target *target, slc_landing *landing)
{
    if (slc_target_land(s->param, target, s->live, s->rank, landing, NULL) != SLUICE_OK || !landing->holds ||
        landing->live != s->image.buffer)
        return false;
    for (int d = 0; d < landing->ndim; d++)
        if (landing->window.extent[d] == 0)
            return false;
    return true;
}

static int64_t window_end(const slc_landing *landing)
{
    int64_t end = landing->window.offset + landing->item;
    for (int d = 0; d < landing->ndim; d++)
        end += (landing->window.extent[d] - 1) * landing->window.stride[d];
    return end;
}

static void want_zeros(const stage_of_one *s, const slc_landing *landing)
{
    int64_t index[SLC_MAX_DIMS] = { 0 };
    do {
        int64_t at = landing->window.offset - s->image.low;
        for (int d = 0; d < landing->ndim; d++)
            at += index[d] * landing->window.stride[d];
        memset(s->image.want + at, 0, (size_t)landing->item);
    } while (next_index(landing->ndim, landing->window.extent, index));
}

/* A target's strip on this worker. An index is of elements in its box, or of what lands in its window. */
typedef struct strip {
    const slc_target *target;
    const slc_landing *landing;
    slc_cast cast;
    int ndim, dim_of[SLC_MAX_DIMS];
} strip;

/* Writes the values of one element before any conversion. */
static void write_element(const stage_of_one *s, const strip *of, const int64_t *index, unsigned char *to)
{
    const slc_param *param = s->param;
    int64_t from[SLC_MAX_DIMS], whole = 0, item = param->dtype->bytes;
    for (int d = 0; d < param->ndim; d++)
        from[d] = of->target->source[d].start;
    for (int d = 0; d < of->ndim; d++)
        from[of->dim_of[d]] += (of->landing->box.low[d] + index[d]) * of->target->source[of->dim_of[d]].step;
    for (int d = 0; d < param->ndim; d++)
        whole = whole * param->shape[d] + from[d];
    slc_values_write(&s->values, 1, (uint64_t)(whole * item), to, (size_t)item);
}

static unsigned char *wanted(const stage_of_one *s, const strip *of, const int64_t *index)
{
    int64_t at = of->landing->window.offset - s->image.low;
    for (int d = 0; d < of->ndim; d++)
        at += index[d] * of->landing->window.stride[d];
    return s->image.want + at;
}

static void want_element(const stage_of_one *s, const strip *of, const int64_t *index)
{
    unsigned char one[sizeof(double) * 2];
    if (of->cast == SLC_CAST_NONE) {
        write_element(s, of, index, wanted(s, of, index));
        return;
    }
    write_element(s, of, index, one);
    slc_cast_row(of->cast, wanted(s, of, index), slc_cast_to(of->cast), one, slc_cast_from(of->cast), 1);
}

/* The block that begins at this element; rows and columns of blocks are the strip's dims `plane`. */
static void want_block(const stage_of_one *s, const strip *of, const int plane[2], const int64_t *first, const int64_t *count)
{
    unsigned char block[SLC_BLOCK * SLC_BLOCK * sizeof(float)], landed[SLC_BLOCK];
    const int64_t item = slc_cast_from(of->cast), unit = slc_grid_unit(of->cast), size = slc_cast_to(of->cast);
    slc_grid grid = { .step = { SLC_BLOCK * item, item } };
    slc_grid_scales known = { .row = -1 };
    int64_t index[SLC_MAX_DIMS];
    memcpy(index, first, sizeof index);
    for (int i = 0; i < 2; i++)
        grid.extent[i] = count[plane[i]] - first[plane[i]] < SLC_BLOCK ? count[plane[i]] - first[plane[i]] : SLC_BLOCK;
    for (int64_t r = 0; r < grid.extent[0]; r++)
        for (int64_t c = 0; c < grid.extent[1]; c++) {
            index[plane[0]] = first[plane[0]] + r;
            index[plane[1]] = first[plane[1]] + c;
            write_element(s, of, index, block + r * grid.step[0] + c * item);
        }
    for (int64_t r = 0; r < (unit > 1 ? 1 : grid.extent[0]); r++) {
        int64_t many = unit > 1 ? 1 : grid.extent[1];
        slc_grid_row(of->cast, &grid, block, r, 0, many, landed, size, &known);
        index[plane[0]] = first[plane[0]] / unit + r;
        for (int64_t c = 0; c < many; c++) {
            index[plane[1]] = first[plane[1]] / unit + c;
            memcpy(wanted(s, of, index), landed + c * size, (size_t)size);
        }
    }
}

static void want_elements(const stage_of_one *s, const slc_target *target, const slc_landing *landing)
{
    int64_t shape[SLC_MAX_DIMS], count[SLC_MAX_DIMS], steps[SLC_MAX_DIMS], index[SLC_MAX_DIMS] = { 0 };
    int plane[2];
    strip of = { .target = target, .landing = landing, .cast = slc_target_cast(s->param, target) };
    of.ndim = slc_target_strip(s->param, target, shape, of.dim_of);
    bool blocks = slc_target_blocks(s->param, target, plane);
    for (int d = 0; d < of.ndim; d++)
        steps[d] = count[d] = landing->box.high[d] - landing->box.low[d];
    for (int i = 0; i < 2 && blocks; i++)
        steps[plane[i]] = (count[plane[i]] + SLC_BLOCK - 1) / SLC_BLOCK;
    do {
        int64_t first[SLC_MAX_DIMS];
        memcpy(first, index, sizeof first);
        for (int i = 0; i < 2 && blocks; i++)
            first[plane[i]] *= SLC_BLOCK;
        if (blocks)
            want_block(s, &of, plane, first, count);
        else
            want_element(s, &of, first);
    } while (next_index(of.ndim, steps, index));
}

static void expect(const stage_of_one *s)
{
    slc_landing landing;
    if (s->image.buffer == SLC_STAGING) {
        slc_values_write(&s->values, 1, 0, s->image.want, (size_t)s->param->bytes);
        return;
    }
    for (size_t t = 0; t < s->param->ntargets; t++)
        if (s->param->target[t].pad != SLC_PAD_NONE && lands(s, &s->param->target[t], &landing) &&
            (s->param->target[t].pad != SLC_PAD_EMPTY || slc_box_empty(&landing.box)))
            want_zeros(s, &landing);
    for (size_t t = 0; t < s->param->ntargets; t++)
        if (lands(s, &s->param->target[t], &landing) && !landing.clears && !slc_box_empty(&landing.box))
            want_elements(s, &s->param->target[t], &landing);
}

/* ---- one tensor of one parameter ---- */

static void measure(stage_of_one *s)
{
    image *at = &s->image;
    slc_landing landing;
    for (uint32_t i = 0; i < s->segment->ncopies; i++) {
        const slc_copy *copy = &s->segment->copy[i];
        if (copy->buffer == at->buffer)
            widen(at, copy->destination, end_of(copy->destination, copy->run, copy->ndim, copy->dim));
    }
    for (uint32_t i = 0; i < s->segment->nfills; i++) {
        const slc_fill *fill = &s->segment->fill[i];
        if (fill->buffer == at->buffer)
            widen(at, fill->destination, end_of(fill->destination, fill->run, fill->ndim, fill->dim));
    }
    if (at->buffer == SLC_STAGING)
        widen(at, 0, s->param->bytes);
    for (size_t t = 0; at->buffer != SLC_STAGING && t < s->param->ntargets; t++)
        if (lands(s, &s->param->target[t], &landing))
            widen(at, landing.window.offset, window_end(&landing));
}

static sluice_status compare(const stage_of_one *s, sluice_error *error)
{
    const image *at = &s->image;
    size_t length = (size_t)(at->high - at->low), i = 0;
    if (memcmp(at->got, at->want, length) == 0)
        return SLUICE_OK;
    while (at->got[i] == at->want[i])
        i++;
    return slc_fail(error, SLUICE_INTERNAL, STAGE, "'%s': byte %lld of %s'%s' is 0x%02x, and must be 0x%02x", s->param->name,
                    (long long)at->low + (long long)i, at->buffer == SLC_STAGING ? "" : "live ",
                    at->buffer == SLC_STAGING ? "its staging slot" : s->live->item[at->buffer].name, at->got[i], at->want[i]);
}

static sluice_status rehearse_image(stage_of_one *s, uint32_t buffer, uint64_t *bytes, sluice_error *error)
{
    s->image = (image){ .buffer = buffer };
    measure(s);
    image *at = &s->image;
    size_t length = (size_t)(at->high - at->low);
    if (length == 0)
        return SLUICE_OK;
    at->got = slc_allocate(length);
    at->want = slc_allocate(length);
    sluice_status status = SLUICE_OK;
    if (at->got == NULL || at->want == NULL)
        status = slc_fail_memory(error, STAGE, "a live tensor, twice", 2 * length);
    else {
        memset(at->got, SLC_POISON, length);
        memset(at->want, SLC_POISON, length);
        perform(s);
        expect(s);
        status = compare(s, error);
        *bytes += length;
    }
    slc_release(at->got);
    slc_release(at->want);
    return status;
}

sluice_status slc_rehearse(const slc_plan *plan, const slc_live_set *live, const slc_program *program, size_t index, uint64_t *bytes,
                           sluice_error *error)
{
    stage_of_one s = { .plan = plan, .live = live, .param = slc_plan_at(plan, index), .segment = &program->segment[index],
                       .rank = program->rank };
    s.values = slc_values_of(s.param->name, NULL);
    s.shard = slc_allocate_zeroed((size_t)s.segment->ncopies + 1, sizeof *s.shard);
    sluice_status status = s.shard == NULL ? slc_fail_memory(error, STAGE, "a list of shards", s.segment->ncopies) : SLUICE_OK;
    for (uint32_t i = 0; i < s.segment->ncopies && status == SLUICE_OK; i++)
        status = make_shard(&s, s.segment->copy[i].peer, error);
    if (s.param->mode == SLC_MODE_FULL && status == SLUICE_OK)
        status = rehearse_image(&s, SLC_STAGING, bytes, error);
    for (size_t t = 0; s.param->mode == SLC_MODE_DIRECT && t < s.param->ntargets && status == SLUICE_OK; t++) {
        const slc_live *tensor = slc_live_set_find(live, s.param->target[t].live);
        bool done = tensor == NULL;
        for (size_t before = 0; before < t && !done; before++)
            done = strcmp(s.param->target[before].live, s.param->target[t].live) == 0;
        if (!done)
            status = rehearse_image(&s, (uint32_t)(tensor - live->item), bytes, error);
    }
    for (size_t i = 0; i < s.nshards; i++)
        slc_release(s.shard[i].data);
    slc_release(s.shard);
    return status;
}
