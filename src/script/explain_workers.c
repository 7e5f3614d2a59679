/*
 * explain_workers.c: shows where the targets of a parameter land on each worker, and who feeds them, to
 * lua/sluice/explain/slices.lua; and how parameters and ranges pass to Lua. Owns nothing beyond the explainer.
 */
#include "script/explainer.h"

#include "base/memory.h"

/* ---- arguments and keys ---- */

slc_explainer *slc_explainer_of(lua_State *L)
{
    return lua_touserdata(L, lua_upvalueindex(1));
}

size_t slc_explain_index(lua_State *L, int at)
{
    return (size_t)luaL_checknumber(L, at) - 1;
}

const slc_param *slc_explain_param(lua_State *L)
{
    const slc_param *param = slc_plan_at(slc_explainer_of(L)->resolver.plan, slc_explain_index(L, 1));
    if (param == NULL)
        luaL_error(L, "no such parameter");
    return param;
}

uint32_t slc_explain_routes(const slc_param *param)
{
    return param->mode == SLC_MODE_DIRECT ? (uint32_t)param->ntargets : param->mode == SLC_MODE_FULL;
}

/* Argument 2 is a target's number from 1; a full parameter has one route. */
const slc_param *slc_explain_route(lua_State *L, slc_route *route)
{
    slc_explainer *e = slc_explainer_of(L);
    const slc_param *param = slc_explain_param(L);
    size_t target = slc_explain_index(L, 2);
    if (target >= slc_explain_routes(param))
        luaL_error(L, "no such target");
    if (param->mode == SLC_MODE_FULL)
        slc_route_full(param, &e->everyone, route);
    else
        slc_route_direct(param, (uint32_t)target, route);
    return param;
}

void slc_explain_set_text(lua_State *L, const char *key, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return;
    lua_pushstring(L, text);
    lua_setfield(L, -2, key);
}

void slc_explain_set_number(lua_State *L, const char *key, int64_t number)
{
    lua_pushnumber(L, (lua_Number)number);
    lua_setfield(L, -2, key);
}

/* ---- ranges ---- */

/* {from, to} or {from, to, step} of a resolved range. */
static void push_range(lua_State *L, slc_range range)
{
    int64_t end = range.count == 0 ? range.start : range.start + (range.count - 1) * range.step + 1;
    lua_createtable(L, 3, 0);
    lua_pushnumber(L, (lua_Number)range.start);
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, (lua_Number)end);
    lua_rawseti(L, -2, 2);
    if (range.step != 1 && range.count > 1) {
        lua_pushnumber(L, (lua_Number)range.step);
        lua_rawseti(L, -2, 3);
    }
}

void slc_explain_set_ranges(lua_State *L, const char *key, int ndim, const slc_range *range)
{
    lua_createtable(L, ndim, 0);
    for (int d = 0; d < ndim; d++) {
        push_range(L, range[d]);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, key);
}

/* What of the parameter a box of the strip is. */
void slc_explain_set_source(lua_State *L, const slc_route *route, const slc_box *box)
{
    slc_range range[SLC_MAX_DIMS];
    for (int d = 0, s = 0; d < route->param->ndim; d++) {
        range[d] = route->range[d];
        if (range[d].select)
            continue;
        range[d].start += box->low[s] * range[d].step;
        range[d].count = box->high[s] - box->low[s];
        s++;
    }
    slc_explain_set_ranges(L, "source", route->param->ndim, range);
}

/* Where a box of the strip lies in the live tensor when it begins where the view begins. */
void slc_explain_set_live(lua_State *L, const slc_target *target, const slc_route *route, const slc_box *box)
{
    slc_range range[SLC_MAX_DIMS];
    for (int d = 0, i = 0; d < target->view.ndim; d++) {
        range[d] = target->view.range[d];
        if (range[d].select) {
            range[d].count = 1;
            continue;
        }
        int dim = i < box->ndim ? target->view.order[i] : -1;
        if (dim < 0 || dim >= box->ndim)
            return; /* a view that does not show the strip: the landing says so */
        int64_t extent = box->high[dim] - box->low[dim], unit = slc_cast_scales(route->cast) ? route->unit[dim] : 1;
        range[d].count = extent / unit + (extent % unit != 0);
        i++;
    }
    slc_explain_set_ranges(L, "live", target->view.ndim, range);
}

/* ---- what Lua reads: workers ---- */

/* shard(i, t, rank) -> a number that is equal for workers that get the same elements; nothing for one that gets none */
static int read_shard(lua_State *L)
{
    slc_route route;
    slc_explain_route(L, &route);
    int32_t rank = (int32_t)luaL_checkint(L, 3), shard, replica;
    slc_box box;
    if (!slc_layout_box(route.layout, route.ndim, route.shape, rank, &box) || slc_box_empty(&box))
        return 0;
    slc_layout_place(route.layout, rank, &shard, &replica);
    lua_pushinteger(L, shard);
    return 1;
}

/* slice(i, t, rank) -> { bytes, source, live } of a worker that gets elements */
static int read_slice(lua_State *L)
{
    slc_route route;
    const slc_param *param = slc_explain_route(L, &route);
    slc_box box;
    if (!slc_layout_box(route.layout, route.ndim, route.shape, (int32_t)luaL_checkint(L, 3), &box) || slc_box_empty(&box))
        return 0;
    lua_newtable(L);
    slc_explain_set_number(L, "bytes", slc_route_numbers(&route, &box) * route.item);
    slc_explain_set_source(L, &route, &box);
    if (param->mode == SLC_MODE_DIRECT)
        slc_explain_set_live(L, &param->target[route.target], &route, &box);
    return 1;
}

/* coordinates(i, t, rank) -> { { axis, coordinate, size }, ... } in the mesh of the target's layout; axes of one rank left out */
static int read_coordinates(lua_State *L)
{
    slc_route route;
    slc_explain_route(L, &route);
    const slc_explainer *e = slc_explainer_of(L);
    const slc_mesh *mesh = route.layout->mesh == &e->row ? slc_plan_mesh_at(e->resolver.plan, true, 0) : route.layout->mesh;
    int32_t rank = (int32_t)luaL_checkint(L, 3), coordinate[SLC_MAX_AXES];
    if (!slc_mesh_holds(mesh, rank))
        return 0;
    slc_mesh_coordinates(mesh, rank, coordinate);
    lua_newtable(L);
    for (int axis = 0, n = 0; axis < mesh->naxes; axis++) {
        if (mesh->axis[axis] == 1)
            continue;
        lua_createtable(L, 3, 0);
        if (mesh->axis_name[axis] != NULL && mesh->axis_name[axis][0] != '\0')
            lua_pushstring(L, mesh->axis_name[axis]);
        else
            lua_pushfstring(L, "axis %d", axis);
        lua_rawseti(L, -2, 1);
        lua_pushinteger(L, coordinate[axis]);
        lua_rawseti(L, -2, 2);
        lua_pushinteger(L, mesh->axis[axis]);
        lua_rawseti(L, -2, 3);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

static slc_schedule *next_schedule(lua_State *L, slc_explainer *e, uint32_t target)
{
    if (!SLC_ROOM(e->schedule, e->capacity, target, 8))
        slc_lua_fail(L, SLUICE_NO_MEMORY, "out of memory for a schedule");
    return &e->schedule[target];
}

/* What each replica sends hangs on every target before: the plan is walked up to this parameter. */
static sluice_status schedule(slc_explainer *e, size_t index, sluice_error *error)
{
    slc_scheduler scheduler;
    slc_scheduler_begin(&scheduler, slc_plan_quantum(e->resolver.plan));
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i <= index && status == SLUICE_OK; i++) {
        const slc_param *param = slc_plan_at(e->resolver.plan, i);
        for (uint32_t target = 0; target < slc_explain_routes(param) && status == SLUICE_OK; target++) {
            slc_route route;
            if (param->mode == SLC_MODE_FULL)
                slc_route_full(param, &e->everyone, &route);
            else
                slc_route_direct(param, target, &route);
            slc_schedule next = { 0 };
            if (slc_route_brings(&route))
                status = slc_scheduler_next(&scheduler, param->source, slc_route_fanout(&route), &next, error);
            if (status == SLUICE_OK && i == index)
                e->schedule[target] = next;
        }
    }
    slc_scheduler_end(&scheduler);
    e->scheduled = status == SLUICE_OK ? index + 1 : 0;
    return status;
}

static void list_pieces(lua_State *L, slc_route *route, int32_t rank)
{
    slc_explainer *e = slc_explainer_of(L);
    size_t index = slc_explain_index(L, 1);
    sluice_error error = SLUICE_ERROR_INIT;
    for (uint32_t target = 0; target < slc_explain_routes(route->param); target++)
        next_schedule(L, e, target);
    if (e->scheduled != index + 1 && schedule(e, index, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
    route->schedule = e->schedule[route->target];
    e->pieces.count = 0;
    slc_box box;
    if (slc_layout_box(route->layout, route->ndim, route->shape, rank, &box) &&
        slc_route_to_worker(route, rank, &box, &e->pieces, &error) != SLUICE_OK)
        slc_lua_raise(L, &error);
}

/* feeders(i, t, rank) -> the trainer rank of each piece that makes up a worker's slice */
static int read_feeders(lua_State *L)
{
    slc_route route;
    slc_explain_route(L, &route);
    list_pieces(L, &route, (int32_t)luaL_checkint(L, 3));
    const slc_piece_list *pieces = &slc_explainer_of(L)->pieces;
    lua_createtable(L, (int)pieces->count, 0);
    for (size_t i = 0; i < pieces->count; i++) {
        lua_pushinteger(L, pieces->item[i].peer);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

/* pieces(i, t, rank) -> { { trainer, bytes, source }, ... } */
static int read_pieces(lua_State *L)
{
    slc_route route;
    (void)slc_explain_route(L, &route);
    list_pieces(L, &route, (int32_t)luaL_checkint(L, 3));
    const slc_piece_list *pieces = &slc_explainer_of(L)->pieces;
    lua_createtable(L, (int)pieces->count, 0);
    for (size_t i = 0; i < pieces->count; i++) {
        const slc_piece *piece = &pieces->item[i];
        lua_newtable(L);
        slc_explain_set_number(L, "trainer", piece->peer);
        slc_explain_set_number(L, "bytes", slc_route_numbers(&route, &piece->box) * route.item);
        slc_explain_set_source(L, &route, &piece->box);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

const luaL_Reg slc_explain_workers[] = {
    { "shard", read_shard },     { "slice", read_slice },   { "coordinates", read_coordinates },
    { "feeders", read_feeders }, { "pieces", read_pieces }, { NULL, NULL },
};
