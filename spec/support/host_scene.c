/* host_scene.c: see host_scene.h. */
#include "host_scene.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void die(const char *what)
{
    fprintf(stderr, "host_driver: %s: %s\n", what, strerror(errno));
    exit(3);
}

void *need(void *memory)
{
    if (memory == NULL)
        die("memory");
    return memory;
}

/* ---- scenes ---- */

tensor *add(scene *s, int ndim, const int64_t *shape, int64_t element, int cut_source, int cut_live)
{
    s->tensor = need(realloc(s->tensor, (s->count + 1) * sizeof *s->tensor));
    tensor *t = &s->tensor[s->count++];
    *t = (tensor){ .ndim = ndim, .element = element, .cut_source = cut_source, .cut_live = cut_live };
    for (int i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        t->order[i] = i;
    }
    return t;
}

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    return mix((*state)++) % below;
}

static void add_random(scene *s, uint64_t *state)
{
    int64_t shape[MAX_DIMS], volume = 1;
    int ndim = (int)draw(state, MAX_DIMS + 1);
    for (int i = 0; i < ndim; i++) {
        shape[i] = 1 + (int64_t)draw(state, draw(state, 4) == 0 ? 300 : 24);
        if (volume * shape[i] > 100000)
            shape[i] = 1 + shape[i] % 3;
        volume *= shape[i];
    }
    tensor *t = add(s, ndim, shape, (int64_t)1 << draw(state, 4), ndim == 0 ? -1 : (int)draw(state, (uint64_t)ndim + 1) - 1,
                    ndim == 0 ? -1 : (int)draw(state, (uint64_t)ndim + 1) - 1);
    for (int i = ndim - 1; i > 0; i--) {
        int j = (int)draw(state, (uint64_t)i + 1), keep = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = keep;
    }
    t->full = draw(state, 8) == 0;
    t->pad = ndim > 0 && !t->full && draw(state, 3) == 0 ? 1 + (int64_t)draw(state, 5) : 0;
    t->fill = draw(state, 2) == 0;
    t->where = draw(state, 2) == 0 ? IN_HEAP : IN_REGION;
}

scene make_scene(const char *name, uint64_t seed)
{
    scene s = { .trainers = 2, .workers = 2 };
    if (strcmp(name, "contiguous") == 0) {
        add(&s, 2, SHAPE(1024, 4096), 2, 0, 0);
        add(&s, 1, SHAPE(9 << 20), 2, -1, -1); /* longer than one call */
    } else if (strcmp(name, "strided") == 0) {
        add(&s, 2, SHAPE(512, 4096), 2, 0, 1);
        add(&s, 2, SHAPE(700, 2050), 4, 1, 0)->pad = 6;
    } else if (strcmp(name, "permuted") == 0) {
        tensor *t = add(&s, 2, SHAPE(1000, 600), 2, 0, 1);
        t->order[0] = 1, t->order[1] = 0;
        t = add(&s, 3, SHAPE(7, 300, 90), 4, 1, 2);
        t->order[0] = 2, t->order[1] = 0, t->order[2] = 1;
        t = add(&s, 2, SHAPE(3, 200000), 1, -1, 1);
        t->order[0] = 1, t->order[1] = 0;
    } else if (strcmp(name, "tiny_rows") == 0) {
        for (int64_t run = 1; run < 600; run = run * 5 / 3 + 1)
            add(&s, 2, SHAPE(400, 2 * run), 1, 0, 1);
        add(&s, 3, SHAPE(40, 50, 6), 2, 0, 2);
        add(&s, 2, SHAPE(300, 4096), 2, 0, -1)->cut_live = 1;
        add(&s, 2, SHAPE(5000, 2), 2, 0, 1);
        add(&s, 3, SHAPE(30, 64, 4000), 1, 0, 1)->pad = 3;
    } else if (strcmp(name, "empty") == 0) {
        s.trainers = 3, s.workers = 4;
        add(&s, 1, SHAPE(2), 4, 0, 0); /* fewer elements than ranks */
        add(&s, 2, SHAPE(1, 5), 2, 0, 0);
        add(&s, 0, SHAPE(0), 4, -1, -1);
    } else if (strcmp(name, "many") == 0) {
        for (int i = 0; i < 5000; i++)
            add(&s, 1, SHAPE(512), 2, 0, 0);
    } else if (strcmp(name, "padding") == 0) {
        for (int i = 0; i < 4; i++) {
            tensor *t = add(&s, 2, SHAPE(100, 30 + 300 * i), 2, i % 2, 1);
            t->pad = 5 + i;
            t->fill = i % 2 == 0;
        }
    } else if (strcmp(name, "staging") == 0) {
        for (int i = 0; i < 6; i++)
            add(&s, 2, SHAPE(64, 700), 4, i % 2, -1)->full = i != 3;
        add(&s, 1, SHAPE(9 << 20), 1, 0, -1)->full = true;
    } else if (strcmp(name, "fan_in") == 0) {
        s.trainers = 5, s.workers = 1;
        add(&s, 2, SHAPE(333, 1024), 2, 0, -1);
        add(&s, 2, SHAPE(64, 1003), 2, 1, -1);
    } else if (strcmp(name, "fan_out") == 0) {
        s.trainers = 1, s.workers = 5;
        add(&s, 2, SHAPE(333, 1024), 2, -1, 0);
        add(&s, 2, SHAPE(64, 1003), 2, -1, 1);
        add(&s, 1, SHAPE(9 << 20), 1, -1, -1);
    } else if (strcmp(name, "mixed") == 0) { /* in regions and out of them */
        for (int i = 0; i < 40; i++)
            add(&s, 2, SHAPE(64, 256 + i), 2, i % 2, (i / 2) % 2)->where = i % 3 == 0 ? IN_HEAP : IN_REGION;
    } else if (strcmp(name, "random") == 0) {
        uint64_t state = mix(seed);
        s.trainers = 1 + (int32_t)draw(&state, 4), s.workers = 1 + (int32_t)draw(&state, 4);
        for (uint64_t i = 5 + draw(&state, 40); i > 0; i--)
            add_random(&s, &state);
    } else {
        fprintf(stderr, "host_driver: no scene of the name %s\n", name);
        exit(3);
    }
    return s;
}

/* ---- who holds what ---- */

/* [*low, *high) of an extent for the i-th of n, as torch.chunk cuts. */
static void chunk(int64_t extent, int32_t n, int32_t i, int64_t *low, int64_t *high)
{
    int64_t each = (extent + n - 1) / n;
    *low = each * i < extent ? each * i : extent;
    *high = *low + each < extent ? *low + each : extent;
}

rect held(const tensor *t, int cut, int32_t n, int32_t i)
{
    rect r = { 0 };
    for (int d = 0; d < t->ndim; d++) {
        r.low[d] = 0, r.high[d] = t->shape[d];
        if (d == cut)
            chunk(t->shape[d], n, i, &r.low[d], &r.high[d]);
    }
    return r;
}

int64_t elements(const tensor *t, const rect *r)
{
    int64_t product = 1;
    for (int d = 0; d < t->ndim; d++)
        product *= r->high[d] > r->low[d] ? r->high[d] - r->low[d] : 0;
    return product;
}

void live_strides(const tensor *t, const rect *r, int64_t stride[MAX_DIMS], int64_t *bytes)
{
    int64_t step = t->element;
    for (int i = t->ndim - 1; i >= 0; i--) {
        int d = t->order[i];
        stride[d] = step;
        step *= r->high[d] - r->low[d] + (i == t->ndim - 1 ? t->pad : 0);
    }
    *bytes = step;
}

void row_major(const tensor *t, const rect *r, int64_t stride[MAX_DIMS])
{
    int64_t step = t->element;
    for (int d = t->ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= r->high[d] - r->low[d];
    }
}

/* The trainer that feeds a worker with a tensor that every trainer holds. */
static bool feeds(const scene *s, size_t param, int32_t trainer, int32_t worker)
{
    return s->tensor[param].cut_source >= 0 || (size_t)trainer == (param + (size_t)worker) % (size_t)s->trainers;
}

/* The copy of one tensor between two ranks, collapsed; false when there is nothing to move. */
static bool make_copy(const scene *s, size_t param, int32_t trainer, int32_t worker, slc_arena *arena, slc_copy *copy)
{
    const tensor *t = &s->tensor[param];
    rect from = held(t, t->cut_source, s->trainers, trainer);
    rect to = held(t, t->full ? -1 : t->cut_live, s->workers, worker);
    int64_t source[MAX_DIMS], destination[MAX_DIMS], bytes;
    if (!feeds(s, param, trainer, worker) || elements(t, &from) == 0 || elements(t, &to) == 0)
        return false;
    row_major(t, &from, source);
    live_strides(t, &to, destination, &bytes);
    *copy = (slc_copy){ .run = t->element, .bytes = t->element, .buffer = t->full ? SLC_STAGING : (uint32_t)param };
    slc_stride *dim = need(slc_arena_take(arena, SLC_MAX_DIMS, sizeof *dim));
    uint32_t ndim = 0;
    for (int d = 0; d < t->ndim; d++) {
        int64_t low = from.low[d] > to.low[d] ? from.low[d] : to.low[d];
        int64_t high = from.high[d] < to.high[d] ? from.high[d] : to.high[d];
        if (high <= low)
            return false;
        copy->source += (low - from.low[d]) * source[d];
        copy->destination += (low - to.low[d]) * destination[d];
        copy->bytes *= high - low;
        slc_stride next = { .count = high - low, .source = source[d], .destination = destination[d] };
        if (next.count == 1)
            continue;
        slc_stride *last = ndim > 0 ? &dim[ndim - 1] : NULL;
        if (last != NULL && last->source == next.source * next.count && last->destination == next.destination * next.count)
            *last = (slc_stride){ .count = last->count * next.count, .source = next.source, .destination = next.destination };
        else
            dim[ndim++] = next;
    }
    if (ndim > 0 && dim[ndim - 1].source == copy->run && dim[ndim - 1].destination == copy->run)
        copy->run *= dim[--ndim].count;
    copy->dim = dim;
    copy->ndim = ndim;
    return true;
}

static void make_fill(const scene *s, size_t param, int32_t worker, slc_arena *arena, slc_segment *segment)
{
    const tensor *t = &s->tensor[param];
    rect r = held(t, t->cut_live, s->workers, worker);
    int64_t stride[MAX_DIMS], bytes;
    if (t->pad == 0 || !t->fill || elements(t, &r) == 0)
        return;
    live_strides(t, &r, stride, &bytes);
    int last = t->order[t->ndim - 1];
    slc_fill *fill = need(slc_arena_take(arena, 1, sizeof *fill));
    slc_stride *dim = need(slc_arena_take(arena, SLC_MAX_DIMS, sizeof *dim));
    *fill = (slc_fill){ .buffer = (uint32_t)param,
                        .destination = (r.high[last] - r.low[last]) * t->element,
                        .run = t->pad * t->element,
                        .dim = dim };
    fill->bytes = fill->run;
    for (int i = 0; i + 1 < t->ndim; i++) {
        int d = t->order[i];
        dim[fill->ndim++] = (slc_stride){ .count = r.high[d] - r.low[d], .destination = stride[d] };
        fill->bytes *= r.high[d] - r.low[d];
    }
    segment->fill = fill;
    segment->nfills = 1;
}

slc_plan *make_plan(const scene *s)
{
    sluice_error error = SLUICE_ERROR_INIT;
    slc_plan *plan = need(slc_plan_create(s->trainers, s->workers));
    slc_mesh mesh = { .name = "", .size = s->trainers, .naxes = 1, .axis = { s->trainers }, .axis_name = { "" } };
    const slc_mesh *added;
    if (slc_plan_add_mesh(plan, &mesh, &added, &error) != SLUICE_OK)
        die(error.text);
    const slc_layout *layout = need((void *)(uintptr_t)slc_plan_layout(plan, &(slc_layout){ .mesh = added }));
    for (size_t i = 0; i < s->count; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%zu", i);
        slc_param param = {
            .name = name, .dtype = slc_dtype_find("uint8"), .ndim = 1, .shape = { 1 }, .source = layout, .allow_full = true
        };
        if (slc_plan_add(plan, &param, &error) != SLUICE_OK)
            die(error.text);
    }
    return plan;
}

slc_program make_program(const scene *s, int32_t rank)
{
    slc_program p = { .rank = rank, .count = s->count };
    bool worker = rank >= s->trainers, met[MAX_RANKS] = { false };
    int32_t others = worker ? s->trainers : s->workers;
    p.segment = need(slc_arena_take(&p.arena, s->count, sizeof *p.segment));
    p.peer = need(slc_arena_take(&p.arena, (size_t)others, sizeof *p.peer));
    for (size_t i = 0; i < s->count; i++) {
        slc_segment *segment = &p.segment[i];
        segment->param = (uint32_t)i;
        segment->copy = need(slc_arena_take(&p.arena, (size_t)others, sizeof *segment->copy));
        for (int32_t other = 0; other < others; other++) {
            slc_copy *copy = &segment->copy[segment->ncopies];
            if (!make_copy(s, i, worker ? other : rank, worker ? rank - s->trainers : other, &p.arena, copy))
                continue;
            copy->peer = worker ? other : s->trainers + other;
            met[other] = true;
            segment->ncopies++;
            segment->bytes += copy->bytes;
            p.copies++;
        }
        if (worker)
            make_fill(s, i, rank - s->trainers, &p.arena, segment);
        p.bytes += segment->bytes;
    }
    for (int32_t other = 0; other < others; other++)
        if (met[other])
            p.peer[p.npeers++] = worker ? other : s->trainers + other;
    return p;
}

/* ---- values ---- */

/* Writes the element that stands at `index` (by tensor dim) in batch `batch`. */
static void value_of(const scene *s, size_t param, int batch, const int64_t *index, unsigned char *bytes)
{
    const tensor *t = &s->tensor[param];
    uint64_t number = 0;
    for (int d = 0; d < t->ndim; d++)
        number = number * (uint64_t)t->shape[d] + (uint64_t)index[d];
    uint64_t value = mix(number ^ ((uint64_t)param << 40) ^ ((uint64_t)(batch + 1) << 56));
    memcpy(bytes, &value, (size_t)t->element);
}

int64_t each_element(const scene *s, size_t param, int batch, const rect *r, const int64_t *stride, unsigned char *base,
                     bool compare)
{
    const tensor *t = &s->tensor[param];
    int64_t index[MAX_DIMS], wrong = 0;
    if (elements(t, r) == 0)
        return 0;
    memcpy(index, r->low, sizeof index);
    for (;;) {
        unsigned char *at = base, wanted[8];
        for (int d = 0; d < t->ndim; d++)
            at += (index[d] - r->low[d]) * stride[d];
        if (compare) {
            value_of(s, param, batch, index, wanted);
            wrong += memcmp(at, wanted, (size_t)t->element) != 0;
        } else {
            value_of(s, param, batch, index, at);
        }
        int d = t->ndim;
        for (; d > 0; d--) {
            if (++index[d - 1] < r->high[d - 1])
                break;
            index[d - 1] = r->low[d - 1];
        }
        if (d == 0)
            return wrong;
    }
}

int64_t wrong_padding(const scene *s, size_t param, const rect *r, const unsigned char *base)
{
    const tensor *t = &s->tensor[param];
    int64_t stride[MAX_DIMS], bytes, wrong = 0;
    if (t->pad == 0)
        return 0;
    live_strides(t, r, stride, &bytes);
    int last = t->order[t->ndim - 1];
    int64_t filled = (r->high[last] - r->low[last]) * t->element, row = filled + t->pad * t->element;
    for (int64_t i = 0; i < bytes; i++)
        if (i % row >= filled)
            wrong += base[i] != (t->fill ? 0 : UNTOUCHED);
    return wrong;
}
