/*
 * parts.c: how the trainers cut one parameter, how the workers want it, and which shard has what for whom: for pictures.
 *
 *   { name, dtype, shape, bytes, mode, sources = shards, targets = { { live, workers = shards, meetings, pieces }, ... } }
 *
 * A shard is { box, replicas, ranks }, ranks being those of the first few replicas. A piece is { source, worker, box }, two
 * numbers of shards counted from 1. Boxes are in the parameter's elements, { { low, high }, ... }. `meetings` says how many
 * pieces there are; `pieces` is missing where they are too many. A parameter that does not move has no targets.
 */
#include "cli/native.h"

#include "plan/route.h"

enum { SHOWN_RANKS = 8, MOST_PIECES = 1 << 16 };

typedef struct listing {
    lua_State *L;
    const slc_route *route;
    int64_t meetings;
    bool listed;
} listing;

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void set_box(lua_State *L, const slc_box *box)
{
    lua_createtable(L, box->ndim, 0);
    for (int d = 0; d < box->ndim; d++) {
        lua_createtable(L, 2, 0);
        lua_pushnumber(L, (double)box->low[d]);
        lua_rawseti(L, -2, 1);
        lua_pushnumber(L, (double)box->high[d]);
        lua_rawseti(L, -2, 2);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "box");
}

static void push_shard(lua_State *L, const slc_layout *layout, int32_t shard, const slc_box *box)
{
    int32_t replicas = slc_layout_replicas(layout);
    lua_createtable(L, 0, 3);
    set_box(L, box);
    set_number(L, "replicas", replicas);
    lua_newtable(L);
    for (int32_t replica = 0; replica < replicas && replica < SHOWN_RANKS; replica++) {
        lua_pushinteger(L, slc_layout_rank(layout, shard, replica));
        lua_rawseti(L, -2, replica + 1);
    }
    lua_setfield(L, -2, "ranks");
}

static void push_sources(lua_State *L, const slc_param *param)
{
    int32_t shards = slc_layout_shards(param->source);
    lua_createtable(L, shards, 0);
    for (int32_t shard = 0; shard < shards; shard++) {
        slc_box box = slc_layout_shard_box(param->source, param->ndim, param->shape, shard);
        push_shard(L, param->source, shard, &box);
        lua_rawseti(L, -2, shard + 1);
    }
}

static void push_workers(lua_State *L, const slc_route *route)
{
    int32_t shards = slc_layout_shards(route->layout);
    lua_createtable(L, shards, 0);
    for (int32_t shard = 0; shard < shards; shard++) {
        slc_box strip = slc_layout_shard_box(route->layout, route->ndim, route->shape, shard);
        slc_box box = { .ndim = route->param->ndim }; /* empty, as the strip's */
        if (!slc_box_empty(&strip))
            box = slc_route_hull(route, &strip);
        push_shard(L, route->layout, shard, &box);
        lua_rawseti(L, -2, shard + 1);
    }
}

static void list_piece(void *context, const slc_meeting *meeting)
{
    listing *list = context;
    list->meetings++;
    if (!list->listed)
        return;
    slc_box box = slc_route_hull(list->route, &meeting->box);
    lua_createtable(list->L, 0, 3);
    set_number(list->L, "source", meeting->shard + 1);
    set_number(list->L, "worker", meeting->there + 1);
    set_box(list->L, &box);
    lua_rawseti(list->L, -2, (int)list->meetings);
}

/* The schedule is no matter here: a piece is whole, whichever replicas send it. */
static void push_target(lua_State *L, slc_route *route)
{
    route->schedule = (slc_schedule){ .replicas = 1, .parts = 1 };
    lua_createtable(L, 0, 4);
    push_workers(L, route);
    lua_setfield(L, -2, "workers");
    listing list = { .L = L, .route = route };
    slc_route_meetings(route, list_piece, &list);
    set_number(L, "meetings", (double)list.meetings);
    if (list.meetings > MOST_PIECES)
        return;
    list = (listing){ .L = L, .route = route, .listed = true };
    lua_newtable(L);
    slc_route_meetings(route, list_piece, &list);
    lua_setfield(L, -2, "pieces");
}

void slc_native_push_parts(lua_State *L, const slc_plan *plan, size_t index)
{
    const slc_param *param = slc_plan_at(plan, index);
    int32_t workers = slc_plan_workers(plan);
    slc_mesh all = { .name = "", .first = slc_plan_trainers(plan), .size = workers, .naxes = 1, .axis = { workers } };
    slc_layout everyone = { .mesh = &all };
    slc_route route;
    int listed = 0;
    lua_newtable(L);
    lua_pushstring(L, param->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, param->dtype->name);
    lua_setfield(L, -2, "dtype");
    lua_pushstring(L, slc_mode_text(param->mode));
    lua_setfield(L, -2, "mode");
    set_number(L, "bytes", (double)param->bytes);
    lua_createtable(L, param->ndim, 0);
    for (int d = 0; d < param->ndim; d++) {
        lua_pushnumber(L, (double)param->shape[d]);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
    push_sources(L, param);
    lua_setfield(L, -2, "sources");
    lua_newtable(L);
    size_t targets = param->mode == SLC_MODE_DIRECT ? param->ntargets : param->mode == SLC_MODE_FULL;
    for (uint32_t target = 0; target < targets; target++) {
        if (param->mode == SLC_MODE_FULL)
            slc_route_full(param, &everyone, &route);
        else
            slc_route_direct(param, target, &route);
        if (!slc_route_brings(&route))
            continue;
        push_target(L, &route);
        if (param->mode == SLC_MODE_DIRECT) {
            lua_pushstring(L, param->target[target].live);
            lua_setfield(L, -2, "live");
        }
        lua_rawseti(L, -2, ++listed);
    }
    lua_setfield(L, -2, "targets");
}
