/* flow.c: walks the plan's routes for one rank and sums up its pieces. Owns its sums while it walks. */
#include "cli/flow.h"

#include "base/error.h"
#include "base/memory.h"
#include "cli/native.h"
#include "plan/route.h"

typedef struct sum {
    int64_t bytes, pieces;
    uint32_t seen; /* by the parameter with this number, less one */
} sum;

typedef struct flow {
    const slc_plan *plan;
    int32_t rank, trainers;
    slc_mesh row; /* every worker in one row, */
    slc_layout everyone; /* where full parameters go */
    slc_scheduler scheduler;
    slc_piece_list pieces;
    sum *peer; /* by the peer's rank on its side */
    sum all;
} flow;

static sluice_status list_pieces(flow *f, const slc_route *route, sluice_error *error)
{
    f->pieces.count = 0;
    if (f->rank < f->trainers)
        return slc_route_from_trainer(route, f->rank, &f->pieces, error);
    slc_box box;
    if (!slc_layout_box(route->layout, route->ndim, route->shape, f->rank, &box))
        return SLUICE_OK;
    return slc_route_to_worker(route, f->rank, &box, &f->pieces, error);
}

static void add_pieces(flow *f, const slc_route *route, uint32_t number, sum *of_param, int32_t *peers)
{
    int32_t first = f->rank < f->trainers ? f->trainers : 0;
    for (size_t i = 0; i < f->pieces.count; i++) {
        const slc_piece *piece = &f->pieces.item[i];
        int64_t bytes = slc_route_numbers(route, &piece->box) * route->item;
        sum *peer = &f->peer[piece->peer - first];
        *peers += peer->seen != number + 1;
        peer->seen = number + 1;
        peer->bytes += bytes;
        peer->pieces++;
        of_param->bytes += bytes;
        of_param->pieces++;
    }
}

static void set_number(lua_State *L, const char *key, int64_t value)
{
    lua_pushnumber(L, (double)value);
    lua_setfield(L, -2, key);
}

static sluice_status add_param(flow *f, const slc_param *param, uint32_t number, sum *of_param, int32_t *peers,
                               sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    uint32_t routes = param->mode == SLC_MODE_FULL ? 1 : param->mode == SLC_MODE_DIRECT ? (uint32_t)param->ntargets : 0;
    for (uint32_t target = 0; target < routes && status == SLUICE_OK; target++) {
        slc_route route;
        if (param->mode == SLC_MODE_FULL)
            slc_route_full(param, &f->everyone, &route);
        else
            slc_route_direct(param, target, &route);
        if (!slc_route_brings(&route))
            continue;
        status = slc_scheduler_next(&f->scheduler, param->source, slc_route_fanout(&route), &route.schedule, error);
        if (status == SLUICE_OK)
            status = list_pieces(f, &route, error);
        if (status == SLUICE_OK)
            add_pieces(f, &route, number, of_param, peers);
    }
    return status;
}

/* The list `parameters` is on top of the stack. */
static sluice_status walk(lua_State *L, flow *f, sluice_error *error)
{
    int listed = 0;
    for (size_t i = 0; i < slc_plan_count(f->plan); i++) {
        const slc_param *param = slc_plan_at(f->plan, i);
        sum of_param = { 0 };
        int32_t peers = 0;
        sluice_status status = add_param(f, param, (uint32_t)i, &of_param, &peers, error);
        if (status != SLUICE_OK)
            return status;
        if (of_param.pieces == 0)
            continue;
        f->all.bytes += of_param.bytes;
        f->all.pieces += of_param.pieces;
        lua_createtable(L, 0, 4);
        lua_pushstring(L, param->name);
        lua_setfield(L, -2, "name");
        set_number(L, "bytes", of_param.bytes);
        set_number(L, "pieces", of_param.pieces);
        set_number(L, "peers", peers);
        lua_rawseti(L, -2, ++listed);
    }
    return SLUICE_OK;
}

static void push_peers(lua_State *L, const flow *f, int32_t count)
{
    int32_t first = f->rank < f->trainers ? f->trainers : 0;
    int listed = 0;
    lua_newtable(L);
    for (int32_t i = 0; i < count; i++) {
        if (f->peer[i].pieces == 0)
            continue;
        lua_createtable(L, 0, 3);
        set_number(L, "rank", first + i);
        set_number(L, "bytes", f->peer[i].bytes);
        set_number(L, "pieces", f->peer[i].pieces);
        lua_rawseti(L, -2, ++listed);
    }
}

int slc_flow_push(lua_State *L, const slc_plan *plan, int32_t rank)
{
    int32_t workers = slc_plan_workers(plan), trainers = slc_plan_trainers(plan);
    int32_t peers = rank < trainers ? workers : trainers;
    flow f = { .plan = plan, .rank = rank, .trainers = trainers };
    f.row = (slc_mesh){ .name = "", .first = trainers, .size = workers, .naxes = 1, .axis = { workers } };
    f.everyone = (slc_layout){ .mesh = &f.row };
    f.peer = lua_newuserdata(L, (size_t)peers * sizeof *f.peer); /* Lua's, since what is pushed below may raise */
    for (int32_t i = 0; i < peers; i++)
        f.peer[i] = (sum){ 0 };
    lua_newtable(L);
    lua_newtable(L);
    sluice_error error = SLUICE_ERROR_INIT;
    slc_scheduler_begin(&f.scheduler, slc_plan_quantum(plan));
    sluice_status status = walk(L, &f, &error);
    slc_scheduler_end(&f.scheduler);
    slc_piece_list_clear(&f.pieces);
    if (status != SLUICE_OK)
        return slc_native_fail(L, &error);
    lua_setfield(L, -2, "parameters");
    push_peers(L, &f, peers);
    lua_setfield(L, -2, "peers");
    set_number(L, "bytes", f.all.bytes);
    set_number(L, "pieces", f.all.pieces);
    return 1;
}
