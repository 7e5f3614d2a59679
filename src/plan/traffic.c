/* traffic.c: routes sorted into kinds, and each kind counted once for all of its parameters. */
#include "plan/traffic.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/load.h"
#include "plan/route.h"

/* One target of one parameter. What two must share to be of one kind lies in front of `first`. */
typedef struct item {
    const slc_layout *source, *layout;
    int64_t width, parts, ndim;
    int64_t cast, block[2];
    int64_t dim[SLC_MAX_DIMS][5]; /* extent; start, step, count, select of the strip */
    int64_t first; /* of its schedule */
    int64_t count; /* of parameters: 1, more after `merge` */
    uint32_t param, target;
    bool leads; /* the first target of its parameter that brings something */
} item;

typedef struct counter {
    const slc_plan *plan;
    slc_traffic *traffic;
    slc_mesh all; /* every worker in one row, */
    slc_layout everyone; /* where full parameters go */
    item *item;
    size_t count, capacity;
    int64_t pieces; /* at most */
    /* The kind under way: */
    const item *begin, *end; /* one for each first */
    int64_t replicas, there; /* of a source shard, of a worker shard */
    int32_t *trainer, *worker; /* rank by shard and replica; a worker less the first */
    slc_load load; /* of the first of the kind */
    slc_load_map map;
} counter;

/* ---- routes into items ---- */

static sluice_status note(counter *c, const slc_route *route, uint32_t param, bool leads, sluice_error *error)
{
    if (!SLC_ROOM(c->item, c->capacity, c->count, 256))
        return slc_fail_memory(error, "traffic", "the targets of a plan", (c->count + 1) * sizeof *c->item);
    const slc_param *source = route->param;
    item *added = &c->item[c->count++];
    memset(added, 0, sizeof *added);
    added->source = source->source;
    added->layout = route->layout;
    added->width = route->item;
    added->parts = route->schedule.parts;
    added->ndim = source->ndim;
    added->cast = route->cast;
    added->block[0] = route->block[0];
    added->block[1] = route->block[1];
    for (int d = 0; d < source->ndim; d++) {
        const slc_range *range = &route->range[d];
        const int64_t dim[5] = { source->shape[d], range->start, range->step, range->count, range->select };
        memcpy(added->dim[d], dim, sizeof dim);
    }
    added->first = route->schedule.first;
    added->param = param;
    added->target = route->target;
    added->leads = leads;
    added->count = 1;
    return SLUICE_OK;
}

/* Whatever a route does, it brings each worker no more than the parameter: sums below stay within 2^62. */
static bool fits(counter *c, const slc_route *route, int64_t *bytes)
{
    int64_t all, pieces;
    slc_fanout fanout = slc_route_fanout(route);
    return slc_multiply(route->param->bytes, c->traffic->workers, &all) && slc_add(*bytes, all, bytes) &&
           *bytes < INT64_MAX / 2 && slc_multiply(fanout.destinations, route->schedule.parts, &pieces) &&
           slc_add(c->pieces, pieces, &c->pieces) && c->pieces < UINT32_MAX;
}

static void make_route(const counter *c, const slc_param *param, uint32_t target, slc_route *route)
{
    if (param->mode == SLC_MODE_FULL)
        slc_route_full(param, &c->everyone, route);
    else
        slc_route_direct(param, target, route);
}

static sluice_status list_items(counter *c, sluice_error *error)
{
    slc_scheduler scheduler;
    sluice_status status = SLUICE_OK;
    int64_t bytes = 0;
    slc_scheduler_begin(&scheduler, slc_plan_quantum(c->plan));
    for (size_t i = 0; i < slc_plan_count(c->plan) && status == SLUICE_OK; i++) {
        const slc_param *param = slc_plan_at(c->plan, i);
        size_t targets = param->mode == SLC_MODE_DIRECT ? param->ntargets : param->mode == SLC_MODE_FULL;
        bool leads = true;
        for (uint32_t target = 0; target < targets && status == SLUICE_OK; target++) {
            slc_route route;
            make_route(c, param, target, &route);
            if (!slc_route_brings(&route))
                continue;
            status = slc_scheduler_next(&scheduler, param->source, slc_route_fanout(&route), &route.schedule, error);
            if (status == SLUICE_OK && !fits(c, &route, &bytes))
                status = slc_fail(error, SLUICE_INVALID, "traffic", "the plan moves more than can be counted (parameter '%s')",
                                  param->name);
            if (status == SLUICE_OK)
                status = note(c, &route, (uint32_t)i, leads, error);
            leads = false;
        }
        if (leads) /* nothing moves */
            continue;
        c->traffic->parameters++;
        c->traffic->whole += param->bytes;
        if (param->bytes > c->traffic->largest)
            c->traffic->largest = param->bytes;
    }
    slc_scheduler_end(&scheduler);
    return status;
}

static int of_kind(const void *a, const void *b)
{
    return memcmp(a, b, offsetof(item, first));
}

static int by_kind(const void *a, const void *b)
{
    const item *x = a, *y = b;
    int order = of_kind(a, b);
    if (order != 0)
        return order;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->param < y->param ? -1 : x->param > y->param;
}

/* ---- one kind ---- */

static void send_on(counter *c, int32_t from, int32_t to, int64_t bytes, int64_t copies)
{
    slc_load *load = &c->traffic->forwarded;
    slc_load_add(load, &c->map, from, to, bytes);
    load->copies[from] += copies;
}

/* The first worker gets it of the trainer, each next one of the one before. */
static void forward(counter *c, int32_t trainer, const int32_t *to, int64_t bytes, int64_t copies)
{
    int32_t before = trainer;
    c->traffic->forwards = c->traffic->forwards || c->there > 1;
    for (int64_t i = 0; i < c->there; i++) {
        int32_t next = c->traffic->trainers + to[i];
        send_on(c, before, next, bytes, copies);
        before = next;
    }
}

static void meet(void *context, const slc_meeting *meeting)
{
    counter *c = context;
    int64_t bytes = meeting->numbers * c->begin->width, parts = c->begin->parts, replicas = c->replicas;
    const int32_t *from = c->trainer + meeting->shard * replicas, *to = c->worker + meeting->there * c->there;
    int64_t workers = c->traffic->workers;
    for (const item *i = c->begin; i < c->end; i++) {
        int64_t moved = bytes * i->count;
        int64_t replica = (i->first + meeting->destination * parts + meeting->part) % replicas;
        forward(c, from[replica], to, moved, i->count);
        for (int64_t there = 0; there < c->there; there++) {
            int64_t cell = from[replica] * workers + to[there];
            c->traffic->bytes[cell] += moved;
            c->traffic->copies[cell] += (uint32_t)i->count;
            if (i == c->begin)
                slc_load_add(&c->load, &c->map, from[replica], c->traffic->trainers + to[there], bytes);
            replica += parts;
            replica -= replica >= replicas ? replicas : 0;
        }
    }
}

/* Each shard once, from its first replica, but for the one that rank 0 holds itself. */
static void gather(counter *c, const slc_param *param, int64_t count)
{
    int32_t own = -1, replica, shards = slc_layout_shards(param->source);
    slc_box box;
    if (slc_layout_box(param->source, param->ndim, param->shape, 0, &box))
        slc_layout_place(param->source, 0, &own, &replica);
    for (int32_t shard = 0; shard < shards; shard++) {
        box = slc_layout_shard_box(param->source, param->ndim, param->shape, shard);
        if (shard != own)
            c->traffic->gathered[c->trainer[shard * c->replicas]] += slc_box_volume(&box) * param->dtype->bytes * count;
    }
}

static void list_ranks(const slc_layout *layout, int32_t first, int32_t *rank)
{
    int32_t shards = slc_layout_shards(layout), replicas = slc_layout_replicas(layout);
    for (int32_t shard = 0; shard < shards; shard++)
        for (int32_t replica = 0; replica < replicas; replica++)
            *rank++ = slc_layout_rank(layout, shard, replica) - first;
}

/* Makes one item of those with one first. Returns how many parameters these targets are the first of. */
static int64_t merge(counter *c, slc_kind *kind)
{
    item *last = c->item + (c->begin - c->item);
    int64_t leads = 0;
    *kind = (slc_kind){ .count = c->end - c->begin };
    for (const item *i = c->begin; i < c->end; i++) {
        leads += i->leads;
        if (i == c->begin)
            continue;
        if (i->first == last->first)
            last->count++;
        else
            *++last = *i;
    }
    c->end = last + 1;
    return leads;
}

static void count_kind(counter *c, slc_kind *kind)
{
    const slc_param *param = slc_plan_at(c->plan, c->begin->param);
    slc_route route;
    make_route(c, param, c->begin->target, &route);
    route.schedule.parts = (int32_t)c->begin->parts;
    c->replicas = slc_layout_replicas(param->source);
    c->there = slc_layout_replicas(route.layout);
    list_ranks(param->source, 0, c->trainer);
    list_ranks(route.layout, c->traffic->trainers, c->worker);
    int64_t gathered = merge(c, kind);
    slc_route_meetings(&route, meet, c);
    if (gathered > 0)
        gather(c, param, gathered);
    slc_load_most(&c->load, kind);
}

static sluice_status count_kinds(counter *c, sluice_error *error)
{
    slc_traffic *traffic = c->traffic;
    size_t kinds = 0;
    if (c->count > 1)
        qsort(c->item, c->count, sizeof *c->item, by_kind);
    for (size_t i = 0; i < c->count; i++)
        kinds += i == 0 || of_kind(&c->item[i - 1], &c->item[i]) != 0;
    traffic->kind = slc_allocate_zeroed(kinds + 1, sizeof *traffic->kind);
    if (traffic->kind == NULL)
        return slc_fail_memory(error, "traffic", "kinds of parameters", kinds * sizeof *traffic->kind);
    for (size_t from = 0, to; from < c->count; from = to) {
        for (to = from + 1; to < c->count && of_kind(&c->item[from], &c->item[to]) == 0; to++)
            continue;
        c->begin = &c->item[from];
        c->end = &c->item[to];
        count_kind(c, &traffic->kind[traffic->nkinds++]);
    }
    return SLUICE_OK;
}

/* ---- all ---- */

static sluice_status allocate(counter *c, const slc_places *places, sluice_error *error)
{
    slc_traffic *t = c->traffic;
    size_t trainers = (size_t)t->trainers, workers = (size_t)t->workers;
    t->bytes = slc_allocate_zeroed(trainers * workers, sizeof *t->bytes);
    t->copies = slc_allocate_zeroed(trainers * workers, sizeof *t->copies);
    t->gathered = slc_allocate_zeroed(trainers, sizeof *t->gathered);
    c->trainer = slc_allocate_zeroed(trainers, sizeof *c->trainer);
    c->worker = slc_allocate_zeroed(workers, sizeof *c->worker);
    if (t->bytes == NULL || t->copies == NULL || t->gathered == NULL || c->trainer == NULL || c->worker == NULL)
        return slc_fail_memory(error, "traffic", "a table of trainers by workers",
                               trainers * workers * (sizeof *t->bytes + sizeof *t->copies));
    sluice_status status = slc_load_map_make(&c->map, t->trainers + t->workers, places, error);
    if (status == SLUICE_OK)
        status = slc_load_make(&t->forwarded, &c->map, error);
    return status == SLUICE_OK ? slc_load_make(&c->load, &c->map, error) : status;
}

sluice_status slc_traffic_count(const slc_plan *plan, const slc_places *places, slc_traffic *traffic, sluice_error *error)
{
    *traffic = (slc_traffic){ .trainers = slc_plan_trainers(plan), .workers = slc_plan_workers(plan) };
    int64_t world = (int64_t)traffic->trainers + traffic->workers;
    if (world > SLC_TRAFFIC_RANKS)
        return slc_fail(error, SLUICE_INVALID, "traffic", "a world of %lld ranks is more than the %d that are counted",
                        (long long)world, SLC_TRAFFIC_RANKS);
    sluice_status status = slc_plan_complete(plan, error);
    if (status != SLUICE_OK)
        return status;
    counter c = { .plan = plan, .traffic = traffic };
    c.all =
        (slc_mesh){ .name = "", .first = traffic->trainers, .size = traffic->workers, .naxes = 1, .axis = { traffic->workers } };
    c.everyone = (slc_layout){ .mesh = &c.all };
    status = allocate(&c, places, error);
    if (status == SLUICE_OK)
        status = list_items(&c, error);
    if (status == SLUICE_OK)
        status = count_kinds(&c, error);
    slc_load_clear(&c.load);
    slc_load_map_clear(&c.map);
    slc_release(c.trainer);
    slc_release(c.worker);
    slc_release(c.item);
    return status;
}

void slc_traffic_clear(slc_traffic *traffic)
{
    slc_release(traffic->bytes);
    slc_release(traffic->copies);
    slc_release(traffic->gathered);
    slc_release(traffic->kind);
    slc_load_clear(&traffic->forwarded);
    *traffic = (slc_traffic){ 0 };
}

sluice_status slc_traffic_load(const slc_traffic *traffic, const slc_places *places, slc_load *load, sluice_error *error)
{
    slc_load_map map;
    *load = (slc_load){ 0 };
    sluice_status status = slc_load_map_make(&map, traffic->trainers + traffic->workers, places, error);
    if (status == SLUICE_OK)
        status = slc_load_make(load, &map, error);
    for (int32_t t = 0; t < traffic->trainers && status == SLUICE_OK; t++) {
        for (int32_t w = 0; w < traffic->workers; w++) {
            int64_t cell = (int64_t)t * traffic->workers + w, bytes = traffic->bytes[cell];
            int32_t to = traffic->trainers + w;
            if (bytes == 0)
                continue;
            slc_load_add(load, &map, t, to, bytes);
            bool card = map.domain[map.gpu[t]] != map.domain[map.gpu[to]];
            const int32_t end[2] = { t, to };
            for (int i = 0; i < 2; i++) {
                load->peers[end[i]]++;
                load->card_peers[end[i]] += card;
                load->card[end[i]] += card ? bytes : 0;
                load->copies[end[i]] += card ? 0 : traffic->copies[cell];
            }
        }
    }
    slc_load_map_clear(&map);
    return status;
}
