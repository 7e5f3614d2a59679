/*
 * traffic.c: `sluice simulate`: what a job's plan moves between all ranks, summed up for Lua. Owns all that it makes.
 */
#include "plan/traffic.h"

#include "cli/native.h"
#include "cli/planning.h"

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void set_list(lua_State *L, const char *key, const int64_t *value, int32_t count)
{
    lua_createtable(L, count, 0);
    for (int32_t i = 0; i < count; i++) {
        lua_pushnumber(L, (double)value[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, key);
}

static void push_kinds(lua_State *L, const slc_traffic *traffic)
{
    lua_createtable(L, (int)traffic->nkinds, 0);
    for (size_t i = 0; i < traffic->nkinds; i++) {
        const slc_kind *kind = &traffic->kind[i];
        lua_createtable(L, 0, 5);
        set_number(L, "count", (double)kind->count);
        set_number(L, "bytes", (double)kind->bytes);
        set_number(L, "rank", (double)kind->rank);
        set_number(L, "link", (double)kind->link);
        set_number(L, "card", (double)kind->card);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "kinds");
}

/* The first rank of `bin` when `ranks` are put into `bins` of about one size. */
static int32_t edge(int32_t bin, int32_t bins, int32_t ranks)
{
    return (int32_t)((int64_t)bin * ranks / bins);
}

/* rows[i][j]: bytes of a block of trainers to a block of workers; the table with one cell a pair where there are few. */
static void push_matrix(lua_State *L, const slc_traffic *traffic, int32_t cells)
{
    int32_t rows = traffic->trainers < cells ? traffic->trainers : cells,
            columns = traffic->workers < cells ? traffic->workers : cells;
    lua_createtable(L, rows, 0);
    for (int32_t row = 0; row < rows; row++) {
        lua_createtable(L, columns, 0);
        for (int32_t column = 0; column < columns; column++) {
            int64_t sum = 0;
            for (int32_t t = edge(row, rows, traffic->trainers); t < edge(row + 1, rows, traffic->trainers); t++)
                for (int32_t w = edge(column, columns, traffic->workers); w < edge(column + 1, columns, traffic->workers); w++)
                    sum += traffic->bytes[(int64_t)t * traffic->workers + w];
            lua_pushnumber(L, (double)sum);
            lua_rawseti(L, -2, column + 1);
        }
        lua_rawseti(L, -2, row + 1);
    }
    lua_setfield(L, -2, "matrix");
}

static void set_load(lua_State *L, const slc_load *load)
{
    set_list(L, "rank", load->rank, load->world);
    set_list(L, "copies", load->copies, load->world);
    set_list(L, "link_out", load->link_out, load->gpus);
    set_list(L, "link_in", load->link_in, load->gpus);
    set_list(L, "card_out", load->card_out, load->nodes);
    set_list(L, "card_in", load->card_in, load->nodes);
}

static void push_result(lua_State *L, const slc_plan *plan, const slc_traffic *traffic, const slc_load *load, int32_t cells)
{
    lua_newtable(L);
    set_number(L, "trainers", traffic->trainers);
    set_number(L, "workers", traffic->workers);
    set_number(L, "parameters", (double)traffic->parameters);
    set_number(L, "whole", (double)traffic->whole);
    set_number(L, "largest", (double)traffic->largest);
    set_number(L, "largest_full", (double)slc_plan_count_totals(plan).largest_full_bytes);
    set_list(L, "gathered", traffic->gathered, traffic->trainers);
    set_load(L, load);
    set_list(L, "peers", load->peers, load->world);
    set_list(L, "card", load->card, load->world);
    set_list(L, "card_peers", load->card_peers, load->world);
    if (traffic->forwards) {
        lua_newtable(L);
        set_load(L, &traffic->forwarded);
        lua_setfield(L, -2, "forwarded");
    }
    push_kinds(L, traffic);
    push_matrix(L, traffic, cells);
}

static int32_t whole(lua_State *L, const char *key)
{
    lua_getfield(L, 2, key);
    lua_Number number = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return number >= 1 && number <= INT32_MAX ? (int32_t)number : 0;
}

int slc_native_push_traffic(lua_State *L, const slc_plan *plan)
{
    luaL_checktype(L, 2, LUA_TTABLE);
    slc_places places = { whole(L, "ranks_a_gpu"), whole(L, "gpus_a_domain"), whole(L, "gpus_a_node") };
    int32_t cells = whole(L, "cells");
    slc_traffic traffic = { 0 };
    slc_load load = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_traffic_count(plan, &places, &traffic, &error);
    if (status == SLUICE_OK)
        status = slc_traffic_load(&traffic, &places, &load, &error);
    if (status == SLUICE_OK)
        push_result(L, plan, &traffic, &load, cells == 0 ? 1 : cells);
    slc_load_clear(&load);
    slc_traffic_clear(&traffic);
    return status == SLUICE_OK ? 1 : slc_native_fail(L, &error);
}

/* traffic(job, places) -> what planned.c's traffic(places) gives of a plan that is kept. The job is a worker's. */
int slc_native_traffic(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    slc_job job;
    slc_planning planning;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_job_read(L, 1, &job, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    sluice_status status = slc_planning_begin(&planning, &job, &error);
    if (status == SLUICE_OK)
        status = slc_planning_resolve(&planning, &job, &error);
    int results = status == SLUICE_OK ? slc_native_push_traffic(L, planning.plan) : slc_native_fail(L, &error);
    slc_planning_end(&planning);
    slc_job_clear(&job);
    return results;
}
