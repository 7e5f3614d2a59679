/* explain.c: `sluice explain`: a question about a job's plan, answered in this process. Owns all that it makes. */
#include "cli/native.h"
#include "cli/planning.h"
#include "script/explain.h"

static bool is_set(lua_State *L, const char *key)
{
    lua_getfield(L, 2, key);
    bool set = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return set;
}

/* explain(job, { name =, one_rank =, all = }) -> the answer as JSON. The job is a worker's. */
int slc_native_explain(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_getfield(L, 2, "name");
    slc_question question = { .name = luaL_checkstring(L, 3), .one_rank = is_set(L, "one_rank"), .all = is_set(L, "all") };
    slc_job job;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_job_read(L, 1, &job, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    slc_planning planning;
    char *json = NULL;
    sluice_status status = slc_planning_begin(&planning, &job, &error);
    question.live = &planning.live;
    question.rank = job.rank;
    question.rules = job.rules;
    if (status == SLUICE_OK)
        status = slc_explain_rules(planning.script, planning.plan, &question, &json, &error);
    slc_planning_end(&planning);
    slc_job_clear(&job);
    if (status != SLUICE_OK)
        return slc_native_fail(L, &error);
    lua_pushstring(L, json);
    slc_release(json);
    return 1;
}
