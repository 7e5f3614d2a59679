/* program.c: compiles the plan for one rank: pieces become strided copies, padding becomes fills. A program owns its arena. */
#include "plan/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/landing.h"
#include "plan/route.h"

typedef struct compiler {
    const slc_plan *plan;
    const slc_live_set *live;
    slc_program *program;
    slc_scheduler scheduler;
    slc_mesh all; /* every worker in one row, */
    slc_layout everyone; /* where full parameters go */
    slc_piece_list pieces; /* of the segment under way */
    slc_landing *landing; /* of each of its targets, on a worker */
    slc_fill *fill;
    size_t targets, nfills, fill_capacity;
    bool *peer; /* by rank of the other side, less its first */
    int32_t first_peer, peers;
} compiler;

/* ---- strides ---- */

/* A strided block being made: one dim at a time, from the innermost outwards, merging what lies end to end on both sides. */
typedef struct block {
    int64_t run;
    uint32_t ndim, fixed; /* the first `fixed` dims take no others in */
    slc_stride dim[SLC_MAX_DIMS]; /* innermost first */
} block;

static void add_dim(block *b, int64_t count, int64_t source, int64_t destination)
{
    b->dim[b->ndim++] = (slc_stride){ .count = count, .source = source, .destination = destination };
}

static void wrap(block *b, int64_t count, int64_t source, int64_t destination, bool casts)
{
    if (count == 1)
        return;
    slc_stride *last = b->ndim == b->fixed ? NULL : &b->dim[b->ndim - 1];
    if (last == NULL && !casts && source == b->run && destination == b->run)
        b->run *= count;
    else if (last != NULL && source == last->source * last->count && destination == last->destination * last->count)
        last->count *= count;
    else
        add_dim(b, count, source, destination);
}

/* The dims, outermost first, kept in the program. NULL with no dims; *good false when there is no memory. */
static const slc_stride *keep_dims(slc_program *program, const block *b, bool *good)
{
    if (b->ndim == 0)
        return NULL;
    slc_stride *dim = slc_arena_take(&program->arena, b->ndim, sizeof *dim);
    *good = *good && dim != NULL;
    for (uint32_t i = 0; i < b->ndim && dim != NULL; i++)
        dim[i] = b->dim[b->ndim - 1 - i];
    return dim;
}

/* Byte strides of a contiguous row-major block whose dims lie in this order; NULL: as they are. */
static void packed_strides(int ndim, const int *order, const int64_t *extent, int64_t item, int64_t stride[SLC_MAX_DIMS])
{
    for (int i = ndim - 1; i >= 0; i--) {
        int d = order == NULL ? i : order[i];
        stride[d] = item;
        item *= extent[d];
    }
}

/* ---- copies ---- */

/* Where a piece's first element lies in the source shard, and the byte stride of each strip dim there. */
static int64_t source_of(const slc_route *route, const slc_piece *piece, int64_t stride[SLC_MAX_DIMS])
{
    const slc_param *param = route->param;
    int64_t extent[SLC_MAX_DIMS], shard[SLC_MAX_DIMS], offset = 0;
    for (int d = 0; d < param->ndim; d++)
        extent[d] = piece->shard.high[d] - piece->shard.low[d];
    packed_strides(param->ndim, NULL, extent, param->dtype->bytes, shard);
    for (int d = 0, s = 0; d < param->ndim; d++) {
        slc_range range = route->range[d];
        int64_t at = range.start;
        if (!range.select) {
            at += piece->box.low[s] * range.step;
            stride[s++] = shard[d] * range.step;
        }
        offset += (at - piece->shard.low[d]) * shard[d];
    }
    return offset;
}

/* The strip's dims in the order in which a copy has them. */
static void order_of(const slc_route *route, int order[SLC_MAX_DIMS])
{
    int count = 0;
    for (int d = 0; d < route->ndim; d++)
        if (d != route->block[0] && d != route->block[1])
            order[count++] = d;
    for (int i = 0; i < 2 && count < route->ndim; i++)
        order[count++] = route->block[i];
}

static bool keep_grid(slc_program *program, const slc_route *route, const slc_piece *piece, const int64_t *source, slc_copy *copy)
{
    slc_grid *grid = slc_arena_take(&program->arena, 1, sizeof *grid);
    if (grid == NULL)
        return false;
    *grid = (slc_grid){ 0 };
    for (int i = 0; i < 2; i++) {
        int d = route->block[i];
        grid->extent[i] = piece->box.high[d] - piece->box.low[d];
        grid->step[i] = source[d];
    }
    copy->grid = grid;
    return true;
}

/* `landing` is the worker's; NULL on a trainer, whose copies describe the packed piece. */
static bool make_copy(slc_program *program, const slc_route *route, const slc_piece *piece, const slc_landing *landing,
                      slc_copy *copy)
{
    int64_t item = route->item, extent[SLC_MAX_DIMS], source[SLC_MAX_DIMS], destination[SLC_MAX_DIMS];
    int order[SLC_MAX_DIMS];
    block b = { .run = item, .fixed = slc_cast_in_blocks(route->cast) ? 2 : 0 };
    bool good = true;
    bool casts = route->cast != SLC_CAST_NONE, scales = slc_cast_scales(route->cast);
    *copy = (slc_copy){ .peer = piece->peer, .cast = route->cast };
    copy->source = source_of(route, piece, source);
    if (slc_cast_in_blocks(route->cast) && !keep_grid(program, route, piece, source, copy))
        return false;
    for (int s = 0; s < route->ndim; s++) {
        int64_t unit = scales ? route->unit[s] : 1, elements = piece->box.high[s] - piece->box.low[s];
        extent[s] = elements / unit + (elements % unit != 0);
        source[s] *= unit;
    }
    order_of(route, order);
    if (landing == NULL) {
        packed_strides(route->ndim, order, extent, item, destination);
    } else {
        copy->buffer = route->param->mode == SLC_MODE_FULL ? SLC_STAGING : (uint32_t)landing->live;
        copy->destination = landing->window.offset;
        for (int s = 0; s < route->ndim; s++) {
            destination[s] = landing->window.stride[s];
            copy->destination += (piece->box.low[s] - landing->box.low[s]) / landing->unit[s] * destination[s];
        }
    }
    for (int i = route->ndim - 1; i >= 0; i--)
        if (b.ndim < b.fixed)
            add_dim(&b, extent[order[i]], source[order[i]], destination[order[i]]);
        else
            wrap(&b, extent[order[i]], source[order[i]], destination[order[i]], casts);
    if (casts && b.ndim == 0)
        add_dim(&b, 1, slc_cast_from(route->cast), slc_cast_to(route->cast));
    copy->run = b.run;
    copy->ndim = b.ndim;
    copy->bytes = slc_route_numbers(route, &piece->box) * item;
    copy->dim = keep_dims(program, &b, &good);
    return good;
}

/* A worker's copies are ordered by (target, peer, part), a trainer's by (peer, target, part). */
static int for_worker(const void *a, const void *b)
{
    const slc_piece *x = a, *y = b;
    if (x->target != y->target)
        return x->target < y->target ? -1 : 1;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return x->part < y->part ? -1 : x->part > y->part;
}

static int for_trainer(const void *a, const void *b)
{
    const slc_piece *x = a, *y = b;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return for_worker(a, b);
}

/* ---- fills ---- */

/* Clears `extent` of the window's elements from byte `offset` on. */
static bool add_fill(compiler *c, const slc_landing *landing, int64_t offset, const int64_t *extent)
{
    block b = { .run = landing->item };
    int64_t bytes = b.run;
    for (int d = landing->ndim - 1; d >= 0; d--) {
        bytes *= extent[d];
        wrap(&b, extent[d], landing->window.stride[d], landing->window.stride[d], false);
    }
    if (bytes == 0)
        return true;
    if (!SLC_ROOM(c->fill, c->fill_capacity, c->nfills, 16))
        return false;
    bool good = true;
    const slc_stride *dim = keep_dims(c->program, &b, &good);
    c->fill[c->nfills++] = (slc_fill){
        .buffer = (uint32_t)landing->live, .destination = offset, .run = b.run, .bytes = bytes, .ndim = b.ndim, .dim = dim
    };
    return good;
}

/* The window less the box: for each dim a slab at its high end, the box long in earlier dims, the window in later ones. */
static bool make_fills(compiler *c, const slc_landing *landing)
{
    const slc_window *window = &landing->window;
    if (landing->clears)
        return add_fill(c, landing, window->offset, window->extent);
    for (int slab = 0; slab < landing->ndim; slab++) {
        int64_t extent[SLC_MAX_DIMS], held = slc_landing_held(landing, slab);
        for (int d = 0; d < landing->ndim; d++)
            extent[d] = d < slab    ? slc_landing_held(landing, d)
                        : d == slab ? window->extent[d] - held
                                    : window->extent[d];
        if (!add_fill(c, landing, window->offset + held * window->stride[slab], extent))
            return false;
    }
    return true;
}

/* ---- segments ---- */

static sluice_status fail_count(const slc_program *program, const slc_param *param, sluice_error *error)
{
    return slc_fail(error, SLUICE_INVALID, "init", "rank %d moves more bytes than can be counted (up to parameter '%s')",
                    (int)program->rank, param->name);
}

/* Turns the gathered pieces and fills into the segment. */
static sluice_status finish_segment(compiler *c, slc_segment *segment, const slc_param *param, sluice_error *error)
{
    slc_program *program = c->program;
    bool worker = c->live != NULL;
    size_t count = c->pieces.count;
    if (count >= UINT32_MAX || c->nfills >= UINT32_MAX)
        return slc_fail(error, SLUICE_INVALID, "init", "parameter '%s' is cut into %zu pieces on rank %d", param->name, count,
                        (int)program->rank);
    if (count > 1)
        qsort(c->pieces.item, count, sizeof *c->pieces.item, worker ? for_worker : for_trainer);
    if (count > 0) {
        segment->copy = slc_arena_take(&program->arena, count, sizeof *segment->copy);
        bool good = segment->copy != NULL, counted = true;
        slc_route route = { 0 };
        for (size_t i = 0; i < count && good && counted; i++) {
            const slc_piece *piece = &c->pieces.item[i];
            if (param->mode == SLC_MODE_FULL)
                slc_route_full(param, &c->everyone, &route);
            else if (i == 0 || piece->target != route.target)
                slc_route_direct(param, piece->target, &route);
            good = make_copy(program, &route, piece, worker ? &c->landing[piece->target] : NULL, &segment->copy[i]);
            counted = !good || slc_add(segment->bytes, segment->copy[i].bytes, &segment->bytes);
            c->peer[piece->peer - c->first_peer] = true;
        }
        if (!good)
            return slc_fail_memory(error, "init", "copies", count * sizeof *segment->copy);
        if (!counted)
            return fail_count(program, param, error);
        segment->ncopies = (uint32_t)count;
    }
    if (c->nfills > 0) {
        segment->fill = slc_arena_take(&program->arena, c->nfills, sizeof *segment->fill);
        if (segment->fill == NULL)
            return slc_fail_memory(error, "init", "fills", c->nfills * sizeof *segment->fill);
        memcpy(segment->fill, c->fill, c->nfills * sizeof *segment->fill);
        segment->nfills = (uint32_t)c->nfills;
    }
    if (!slc_add(program->bytes, segment->bytes, &program->bytes))
        return fail_count(program, param, error);
    program->copies += count;
    return SLUICE_OK;
}

static sluice_status land(compiler *c, const slc_route *route, slc_landing *landing, sluice_error *error)
{
    const slc_param *param = route->param;
    if (param->mode == SLC_MODE_DIRECT)
        return slc_target_land(param, &param->target[route->target], c->live, c->program->rank, landing, error);
    *landing = (slc_landing){
        .holds = true, .ndim = param->ndim, .item = param->dtype->bytes, .box = slc_box_whole(param->ndim, param->shape)
    };
    landing->window.ndim = param->ndim;
    for (int d = 0; d < param->ndim; d++)
        landing->window.extent[d] = param->shape[d];
    packed_strides(param->ndim, NULL, param->shape, param->dtype->bytes, landing->window.stride);
    for (int d = 0; d < SLC_MAX_DIMS; d++)
        landing->unit[d] = 1;
    return SLUICE_OK;
}

static sluice_status compile_route(compiler *c, slc_route *route, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    bool brings = slc_route_brings(route);
    /* Every rank walks every target through the scheduler: what a replica sends hangs on all that came before. */
    if (brings)
        status = slc_scheduler_next(&c->scheduler, route->param->source, slc_route_fanout(route), &route->schedule, error);
    if (status == SLUICE_OK && brings && c->live == NULL)
        status = slc_route_from_trainer(route, c->program->rank, &c->pieces, error);
    if (status != SLUICE_OK || c->live == NULL)
        return status;
    slc_landing *landing = &c->landing[route->target];
    if ((status = land(c, route, landing, error)) != SLUICE_OK || !landing->holds)
        return status;
    if (!make_fills(c, landing))
        return slc_fail_memory(error, "init", "fills", sizeof *c->fill);
    return brings ? slc_route_to_worker(route, c->program->rank, &landing->box, &c->pieces, error) : SLUICE_OK;
}

static bool reserve_landings(compiler *c, size_t count)
{
    if (c->live == NULL || count <= c->targets)
        return true;
    slc_landing *landing = slc_reallocate(c->landing, count * sizeof *landing);
    if (landing == NULL)
        return false;
    c->landing = landing;
    c->targets = count;
    return true;
}

static sluice_status compile_param(compiler *c, size_t index, sluice_error *error)
{
    const slc_param *param = slc_plan_at(c->plan, index);
    slc_segment *segment = &c->program->segment[index];
    size_t ntargets = param->mode == SLC_MODE_DIRECT ? param->ntargets : param->mode == SLC_MODE_FULL;
    segment->param = (uint32_t)index;
    c->pieces.count = 0;
    c->nfills = 0;
    if (!reserve_landings(c, ntargets))
        return slc_fail_memory(error, "init", "targets", ntargets * sizeof *c->landing);
    for (uint32_t target = 0; target < ntargets; target++) {
        slc_route route;
        if (param->mode == SLC_MODE_FULL)
            slc_route_full(param, &c->everyone, &route);
        else
            slc_route_direct(param, target, &route);
        sluice_status status = compile_route(c, &route, error);
        if (status != SLUICE_OK)
            return status;
    }
    return finish_segment(c, segment, param, error);
}

static sluice_status list_peers(compiler *c, sluice_error *error)
{
    slc_program *program = c->program;
    for (int32_t i = 0; i < c->peers; i++)
        program->npeers += c->peer[i];
    if (program->npeers == 0)
        return SLUICE_OK;
    program->peer = slc_arena_take(&program->arena, program->npeers, sizeof *program->peer);
    if (program->peer == NULL)
        return slc_fail_memory(error, "init", "peers", program->npeers * sizeof *program->peer);
    for (int32_t i = 0, n = 0; i < c->peers; i++)
        if (c->peer[i])
            program->peer[n++] = c->first_peer + i;
    return SLUICE_OK;
}

static sluice_status compile(compiler *c, sluice_error *error)
{
    int32_t trainers = slc_plan_trainers(c->plan), workers = slc_plan_workers(c->plan);
    slc_program *program = c->program;
    c->all = (slc_mesh){ .name = "", .first = trainers, .size = workers, .naxes = 1, .axis = { workers } };
    c->everyone = (slc_layout){ .mesh = &c->all };
    c->first_peer = c->live == NULL ? trainers : 0;
    c->peers = c->live == NULL ? workers : trainers;
    c->peer = slc_allocate_zeroed((size_t)c->peers, sizeof *c->peer);
    program->count = slc_plan_count(c->plan);
    program->segment = slc_arena_take(&program->arena, program->count, sizeof *program->segment);
    if (c->peer == NULL || program->segment == NULL)
        return slc_fail_memory(error, "init", "a program", program->count * sizeof *program->segment);
    for (size_t i = 0; i < program->count; i++) {
        sluice_status status = compile_param(c, i, error);
        if (status != SLUICE_OK)
            return status;
    }
    return list_peers(c, error);
}

sluice_status slc_program_compile(const slc_plan *plan, const slc_live_set *live, int32_t rank, slc_program *program,
                                  sluice_error *error)
{
    *program = (slc_program){ .rank = rank };
    int32_t trainers = slc_plan_trainers(plan);
    int64_t world = (int64_t)trainers + slc_plan_workers(plan);
    if (rank < 0 || rank >= world)
        return slc_fail(error, SLUICE_INVALID, "init", "rank %d is outside the world of %lld", (int)rank, (long long)world);
    if (rank >= trainers && live == NULL)
        return slc_fail(error, SLUICE_INVALID, "init", "rank %d is a worker and needs its live tensors", (int)rank);
    sluice_status status = slc_plan_complete(plan, error);
    if (status != SLUICE_OK)
        return status;
    compiler c = { .plan = plan, .live = rank < trainers ? NULL : live, .program = program };
    slc_scheduler_begin(&c.scheduler, slc_plan_quantum(plan));
    status = compile(&c, error);
    slc_scheduler_end(&c.scheduler);
    slc_piece_list_clear(&c.pieces);
    slc_release(c.landing);
    slc_release(c.fill);
    slc_release(c.peer);
    if (status != SLUICE_OK)
        slc_program_clear(program);
    return status;
}

void slc_program_clear(slc_program *program)
{
    slc_arena_clear(&program->arena);
    *program = (slc_program){ 0 };
}

int64_t slc_source_bytes(const slc_param *param, int32_t rank)
{
    slc_box box;
    if (!slc_layout_box(param->source, param->ndim, param->shape, rank, &box))
        return 0;
    return slc_box_volume(&box) * param->dtype->bytes;
}
