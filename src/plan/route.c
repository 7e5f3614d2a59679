/*
 * route.c: source shards meet destination boxes. A source shard holds a rectangle of strip positions; the worker pieces
 * that it reaches are a rectangle of piece numbers, and with the workers' replicas they number its destinations. Owns the
 * items of a piece list.
 */
#include "plan/route.h"

#include "base/error.h"

void slc_piece_list_clear(slc_piece_list *list)
{
    slc_release(list->item);
    *list = (slc_piece_list){ 0 };
}

static sluice_status append(slc_piece_list *list, const slc_piece *piece, sluice_error *error)
{
    if (!SLC_ROOM(list->item, list->capacity, list->count, 64))
        return slc_fail_memory(error, "init", "the pieces of a parameter", (list->count + 1) * sizeof *list->item);
    list->item[list->count++] = *piece;
    return SLUICE_OK;
}

static void without_blocks(slc_route *route)
{
    route->block[0] = route->block[1] = -1;
    for (int d = 0; d < SLC_MAX_DIMS; d++)
        route->unit[d] = 1;
}

void slc_route_direct(const slc_param *param, uint32_t target, slc_route *route)
{
    const slc_target *direct = &param->target[target];
    *route = (slc_route){ .param = param,
                          .target = target,
                          .layout = direct->layout,
                          .cast = slc_target_cast(param, direct),
                          .item = slc_target_dtype(param, direct)->bytes };
    route->ndim = slc_target_strip(param, direct, route->shape, route->dim_of);
    without_blocks(route);
    if (slc_target_blocks(param, direct, route->block))
        route->unit[route->block[0]] = route->unit[route->block[1]] = SLC_BLOCK;
    for (int d = 0; d < param->ndim; d++)
        route->range[d] = direct->source[d];
}

void slc_route_full(const slc_param *param, const slc_layout *everyone, slc_route *route)
{
    *route = (slc_route){ .param = param, .layout = everyone, .ndim = param->ndim, .item = param->dtype->bytes };
    without_blocks(route);
    for (int d = 0; d < param->ndim; d++) {
        route->shape[d] = param->shape[d];
        route->dim_of[d] = d;
        route->range[d] = (slc_range){ .start = 0, .step = 1, .count = param->shape[d], .select = false };
    }
}

bool slc_route_brings(const slc_route *route)
{
    const slc_param *param = route->param;
    return param->mode != SLC_MODE_DIRECT || param->target[route->target].pad != SLC_PAD_CLEAR;
}

/* ---- what a source shard holds and whom it reaches ---- */

/* The strip positions that a source shard holds; false when it holds none. */
static bool positions(const slc_route *route, const slc_box *shard, slc_box *held)
{
    *held = (slc_box){ .ndim = route->ndim };
    for (int d = 0, s = 0; d < route->param->ndim; d++) {
        int64_t low, high;
        slc_range_clip(route->range[d], shard->low[d], shard->high[d], &low, &high);
        if (low == high)
            return false;
        if (route->range[d].select)
            continue;
        held->low[s] = low;
        held->high[s++] = high;
    }
    return true;
}

static int64_t units(int64_t elements, int64_t unit)
{
    return elements / unit + (elements % unit != 0);
}

int64_t slc_route_numbers(const slc_route *route, const slc_box *strip)
{
    bool scales = slc_cast_scales(route->cast);
    int64_t numbers = 1;
    for (int d = 0; d < strip->ndim; d++)
        numbers *= units(strip->high[d] - strip->low[d], scales ? route->unit[d] : 1);
    return numbers;
}

slc_box slc_route_hull(const slc_route *route, const slc_box *strip)
{
    slc_box box = { .ndim = route->param->ndim };
    for (int d = 0, s = 0; d < box.ndim; d++) {
        slc_range range = route->range[d];
        int64_t low = range.select ? 0 : strip->low[s], last = range.select ? 0 : strip->high[s] - 1;
        s += !range.select;
        box.low[d] = range.start + low * range.step;
        box.high[d] = range.start + last * range.step + 1;
    }
    return box;
}

/* The destinations of a source shard: the worker pieces in `reach`, and of each the replicas, which run fastest. */
static int64_t destinations(const slc_box *reach, int32_t replicas)
{
    return slc_box_volume(reach) * replicas;
}

static int64_t destination_of(const slc_box *reach, const int64_t piece[SLC_MAX_DIMS], int32_t replicas, int32_t replica)
{
    int64_t number = 0;
    for (int d = 0; d < reach->ndim; d++)
        number = number * (reach->high[d] - reach->low[d]) + (piece[d] - reach->low[d]);
    return number * replicas + replica;
}

static void piece_of(const slc_box *reach, int64_t number, int64_t piece[SLC_MAX_DIMS])
{
    for (int d = reach->ndim - 1; d >= 0; d--) {
        int64_t width = reach->high[d] - reach->low[d];
        piece[d] = reach->low[d] + number % width;
        number /= width;
    }
}

/*
 * The dim along which a piece is cut: the outermost that has enough elements for parts of about one size, so that what
 * lies end to end stays so; else the longest. -1 with no dims.
 */
static int dim_to_cut(const slc_route *route, const slc_box *whole, int32_t parts)
{
    int longest = -1;
    for (int d = 0; d < whole->ndim; d++) {
        int64_t length = whole->high[d] - whole->low[d];
        if (length / 16 >= parts && length / route->unit[d] >= parts)
            return d;
        if (longest < 0 || length / route->unit[d] > (whole->high[longest] - whole->low[longest]) / route->unit[longest])
            longest = d;
    }
    return longest;
}

/* Part `part` of a piece; false when that is empty. Blocks stay whole. */
static bool part_of(const slc_route *route, const slc_box *whole, int32_t part, int32_t parts, slc_box *box)
{
    *box = *whole;
    if (parts == 1)
        return true;
    int dim = dim_to_cut(route, whole, parts);
    if (dim < 0)
        return part == 0;
    int64_t unit = route->unit[dim], length = units(whole->high[dim] - whole->low[dim], unit);
    int64_t base = length / parts, more = length % parts, first = part * base + (part < more ? part : more);
    int64_t end = first + base + (part < more);
    box->low[dim] += first * unit;
    if (end < length)
        box->high[dim] = whole->low[dim] + end * unit;
    return box->low[dim] < box->high[dim];
}

/* ---- the two sides ---- */

slc_fanout slc_route_fanout(const slc_route *route)
{
    const slc_param *param = route->param;
    slc_box first = { .ndim = route->ndim }, query, pieces, shard, held, reach;
    for (int d = 0; d < route->ndim; d++)
        first.high[d] = 1;
    query = slc_route_hull(route, &first);
    slc_layout_reach(param->source, param->ndim, param->shape, &query, &pieces);
    shard =
        slc_layout_shard_box(param->source, param->ndim, param->shape, slc_layout_shard(param->source, param->ndim, pieces.low));
    positions(route, &shard, &held);
    slc_layout_reach(route->layout, route->ndim, route->shape, &held, &reach);
    int32_t replicas = slc_layout_replicas(route->layout);
    slc_box box =
        slc_layout_shard_box(route->layout, route->ndim, route->shape, slc_layout_shard(route->layout, route->ndim, reach.low));
    slc_fanout fanout = { .destinations = destinations(&reach, replicas), .even = true };
    fanout.bytes = slc_route_numbers(route, &held) * route->item;
    /* Replication may multiply a huge tensor beyond what fits; then any large number says the same. */
    if (!slc_multiply(fanout.bytes, replicas, &fanout.bytes))
        fanout.bytes = INT64_MAX;
    for (int d = 0; d < route->ndim; d++) {
        int64_t there = held.high[d] - held.low[d], here = box.high[d] - box.low[d];
        fanout.even = fanout.even && (there % here == 0 || here % there == 0);
    }
    return fanout;
}

sluice_status slc_route_to_worker(const slc_route *route, int32_t rank, const slc_box *box, slc_piece_list *list,
                                  sluice_error *error)
{
    const slc_param *param = route->param;
    if (slc_box_empty(box))
        return SLUICE_OK;
    int32_t own_shard, own_replica, replicas = slc_layout_replicas(route->layout), shard;
    int64_t own[SLC_MAX_DIMS];
    slc_layout_place(route->layout, rank, &own_shard, &own_replica);
    slc_layout_pieces(route->layout, route->ndim, own_shard, own);
    slc_shard_walk walk;
    slc_box query = slc_route_hull(route, box), held, reach;
    slc_piece piece = { .target = route->target };
    slc_shard_walk_begin(&walk, param->source, param->ndim, param->shape, &query);
    while (slc_shard_walk_next(&walk, &shard, &piece.shard)) {
        if (!positions(route, &piece.shard, &held))
            continue;
        slc_box meeting = slc_box_intersect(&held, box);
        if (slc_box_empty(&meeting))
            continue;
        slc_layout_reach(route->layout, route->ndim, route->shape, &held, &reach);
        int64_t destination = destination_of(&reach, own, replicas, own_replica);
        for (piece.part = 0; piece.part < route->schedule.parts; piece.part++) {
            if (!part_of(route, &meeting, piece.part, route->schedule.parts, &piece.box))
                continue;
            piece.peer = slc_layout_rank(param->source, shard, slc_schedule_replica(route->schedule, destination, piece.part));
            sluice_status status = append(list, &piece, error);
            if (status != SLUICE_OK)
                return status;
        }
    }
    return SLUICE_OK;
}

sluice_status slc_route_from_trainer(const slc_route *route, int32_t rank, slc_piece_list *list, sluice_error *error)
{
    const slc_param *param = route->param;
    slc_piece piece = { .target = route->target };
    slc_box held, reach;
    if (!slc_layout_box(param->source, param->ndim, param->shape, rank, &piece.shard) || slc_box_empty(&piece.shard) ||
        !positions(route, &piece.shard, &held))
        return SLUICE_OK;
    int32_t shard, replica, replicas = slc_layout_replicas(route->layout);
    slc_layout_place(param->source, rank, &shard, &replica);
    slc_layout_reach(route->layout, route->ndim, route->shape, &held, &reach);
    slc_schedule schedule = route->schedule;
    int64_t all = destinations(&reach, replicas) * schedule.parts;
    /* slc_schedule_replica, solved for what this replica sends. */
    int64_t mine = replica - schedule.first;
    for (int64_t i = mine < 0 ? mine + schedule.replicas : mine; i < all; i += schedule.replicas) {
        int64_t destination = i / schedule.parts, at[SLC_MAX_DIMS];
        piece_of(&reach, destination / replicas, at);
        int32_t there = slc_layout_shard(route->layout, route->ndim, at);
        slc_box box = slc_layout_shard_box(route->layout, route->ndim, route->shape, there),
                meeting = slc_box_intersect(&held, &box);
        piece.part = (int32_t)(i % schedule.parts);
        if (slc_box_empty(&meeting) || !part_of(route, &meeting, piece.part, schedule.parts, &piece.box))
            continue;
        piece.peer = slc_layout_rank(route->layout, there, (int32_t)(destination % replicas));
        sluice_status status = append(list, &piece, error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

void slc_route_meetings(const slc_route *route, slc_meeting_visit visit, void *context)
{
    const slc_param *param = route->param;
    int32_t shards = slc_layout_shards(param->source), replicas = slc_layout_replicas(route->layout);
    slc_box held, reach, part;
    for (slc_meeting meeting = { .shard = 0 }; meeting.shard < shards; meeting.shard++) {
        slc_box shard = slc_layout_shard_box(param->source, param->ndim, param->shape, meeting.shard);
        if (slc_box_empty(&shard) || !positions(route, &shard, &held))
            continue;
        slc_layout_reach(route->layout, route->ndim, route->shape, &held, &reach);
        int64_t count = slc_box_volume(&reach), at[SLC_MAX_DIMS];
        for (int64_t i = 0; i < count; i++) {
            piece_of(&reach, i, at);
            meeting.there = slc_layout_shard(route->layout, route->ndim, at);
            meeting.destination = i * replicas;
            slc_box box = slc_layout_shard_box(route->layout, route->ndim, route->shape, meeting.there),
                    whole = slc_box_intersect(&held, &box);
            for (meeting.part = 0; meeting.part < route->schedule.parts; meeting.part++) {
                if (slc_box_empty(&whole) || !part_of(route, &whole, meeting.part, route->schedule.parts, &part))
                    continue;
                meeting.box = part;
                meeting.numbers = slc_route_numbers(route, &part);
                visit(context, &meeting);
            }
        }
    }
}
