/*
 * plan.c: `sluice plan`: the plan of one rank, made in this process without any network or live memory: what init does
 * between parsing and opening the transport, with the seconds of each step. Owns all that it makes.
 */
#include "cli/native.h"

#include <string.h>

#include "base/clock.h"
#include "cli/planning.h"
#include "plan/program.h"
#include "transport/m2n/calls.h"

typedef enum { STEP_INIT_INFO, STEP_LIVE, STEP_RESOLVE, STEP_CHECK, STEP_COMPILE, STEPS } step;

static const char *const step_names[STEPS] = { "init_info", "live", "resolve", "check", "compile" };

typedef struct {
    slc_planning base;
    slc_program program;
    double seconds[STEPS];
} planning;

/* The job is of a worker: a trainer's program needs destinations, too, and only workers resolve. */
static sluice_status make(planning *p, const slc_job *job, int32_t rank, sluice_error *error)
{
    slc_planning *base = &p->base;
    sluice_status status = slc_planning_begin(base, job, error);
    if (status == SLUICE_OK)
        status = slc_planning_resolve(base, job, error);
    double start = slc_now_s();
    if (status == SLUICE_OK)
        status = slc_program_compile(base->plan, rank >= job->trainers ? &base->live : NULL, rank, &p->program, error);
    const double seconds[STEPS] = { base->seconds_init_info, base->seconds_live, base->seconds_resolve, base->seconds_check,
                                    slc_now_s() - start };
    memcpy(p->seconds, seconds, sizeof seconds);
    return status;
}

static void clear(planning *p)
{
    slc_program_clear(&p->program);
    slc_planning_end(&p->base);
}

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void push_mode(lua_State *L, const char *key, size_t parameters, int64_t bytes)
{
    lua_createtable(L, 0, 2);
    set_number(L, "parameters", (double)parameters);
    set_number(L, "bytes", (double)bytes);
    lua_setfield(L, -2, key);
}

/* Why a parameter is none of nccl_m2n's. */
static void reason_of(const slc_plan *plan, size_t index, sluice_error *error)
{
    const slc_param *param = slc_plan_at(plan, index);
    size_t targets = param->mode == SLC_MODE_DIRECT ? param->ntargets : 1;
    slc_m2n_call call;
    for (size_t t = 0; t < targets; t++)
        if ((param->mode != SLC_MODE_DIRECT || param->target[t].pad != SLC_PAD_CLEAR) &&
            slc_m2n_express(plan, index, (uint32_t)t, slc_m2n_staging(), &call, error) != SLUICE_OK)
            return;
}

/* m2n: { reshards, mix, elsewhere = how many parameters it cannot move, reasons = the first of them }, for that transport. */
static void push_m2n(lua_State *L, const planning *p, const slc_job *job)
{
    enum { MOST = 100 };
    const slc_plan *plan = p->base.plan;
    slc_m2n_calls calls;
    int listed = 0;
    if (job->transport == NULL || strcmp(job->transport, "m2n") != 0 ||
        slc_m2n_calls_make(plan, true, slc_m2n_staging(), &calls, NULL) != SLUICE_OK)
        return;
    lua_createtable(L, 0, 4);
    set_number(L, "reshards", (double)calls.count);
    set_number(L, "elsewhere", (double)calls.elsewhere);
    lua_pushboolean(L, job->mix);
    lua_setfield(L, -2, "mix");
    lua_newtable(L);
    for (size_t i = 0; i < slc_plan_count(plan) && listed < MOST; i++) {
        sluice_error error = SLUICE_ERROR_INIT;
        if (!slc_m2n_elsewhere(plan, &calls, i))
            continue;
        reason_of(plan, i, &error);
        lua_pushstring(L, error.text + (strncmp(error.text, "runtime: ", 9) == 0 ? 9 : 0));
        lua_rawseti(L, -2, ++listed);
    }
    lua_setfield(L, -2, "reasons");
    lua_setfield(L, -2, "m2n");
    slc_m2n_calls_clear(&calls);
}

static void push_coverage(lua_State *L, const planning *p)
{
    lua_newtable(L);
    set_number(L, "live_bytes", (double)p->base.coverage.live_bytes);
    set_number(L, "written_bytes", (double)p->base.coverage.written_bytes);
    set_number(L, "padded_bytes", (double)p->base.coverage.padded_bytes);
    lua_newtable(L);
    for (size_t i = 0; i < p->base.coverage.nuncovered; i++) {
        lua_createtable(L, 0, 2);
        lua_pushstring(L, p->base.live.item[p->base.coverage.uncovered[i].live].name);
        lua_setfield(L, -2, "name");
        set_number(L, "bytes", (double)p->base.coverage.uncovered[i].bytes);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "uncovered");
    lua_newtable(L);
    for (size_t i = 0; i < p->base.resolution.unsourced.count; i++) {
        lua_pushstring(L, p->base.resolution.unsourced.item[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "unsourced");
    lua_setfield(L, -2, "coverage");
}

/* What is not moved, and what brings its values. */
static void push_aliases(lua_State *L, const slc_plan *plan)
{
    int count = 0;
    lua_newtable(L);
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        if (param->alias_of == NULL)
            continue;
        lua_createtable(L, 0, 2);
        lua_pushstring(L, param->name);
        lua_setfield(L, -2, "name");
        lua_pushstring(L, param->alias_of);
        lua_setfield(L, -2, "alias_of");
        lua_rawseti(L, -2, ++count);
    }
    lua_setfield(L, -2, "aliases");
}

/* Of all trainers together. */
static double shard_bytes(const slc_plan *plan)
{
    double bytes = 0;
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        bytes += (double)param->bytes * slc_layout_replicas(param->source);
    }
    return bytes;
}

static void push_result(lua_State *L, const planning *p)
{
    slc_plan_totals totals = slc_plan_count_totals(p->base.plan);
    lua_newtable(L);
    set_number(L, "parameters", (double)slc_plan_count(p->base.plan));
    push_mode(L, "direct", totals.direct, totals.direct_bytes);
    push_mode(L, "full", totals.full, totals.full_bytes);
    push_mode(L, "alias", totals.alias, totals.alias_bytes);
    push_mode(L, "skip", totals.skip, totals.skip_bytes);
    set_number(L, "largest_full_bytes", (double)totals.largest_full_bytes);
    set_number(L, "shard_bytes", shard_bytes(p->base.plan));
    push_coverage(L, p);
    push_aliases(L, p->base.plan);
    lua_newtable(L);
    set_number(L, "copies", (double)p->program.copies);
    set_number(L, "bytes", (double)p->program.bytes);
    set_number(L, "peers", (double)p->program.npeers);
    lua_setfield(L, -2, "program");
    lua_newtable(L);
    double sum = 0;
    for (int i = 0; i < STEPS; i++) {
        set_number(L, step_names[i], p->seconds[i]);
        sum += p->seconds[i];
    }
    set_number(L, "planning", sum);
    lua_setfield(L, -2, "seconds");
}

/*
 * plan(job, rank, full) -> totals, coverage, program, seconds; full: every parameter, as `plan`. The job is a worker's; the
 * program that of `rank`.
 */
int slc_native_plan(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    int32_t rank = (int32_t)luaL_checkint(L, 2);
    slc_job job;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_job_read(L, 1, &job, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    planning p = { 0 };
    sluice_status status = make(&p, &job, rank, &error);
    if (status == SLUICE_OK) {
        push_result(L, &p);
        push_m2n(L, &p, &job);
    }
    if (status == SLUICE_OK && lua_toboolean(L, 3)) {
        slc_native_push_params(L, p.base.plan);
        lua_setfield(L, -2, "plan");
    }
    clear(&p);
    slc_job_clear(&job);
    return status == SLUICE_OK ? 1 : slc_native_fail(L, &error);
}
