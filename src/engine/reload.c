/*
 * reload.c: other rules between two updates. The next build is made beside the one in use, by the stages that init goes
 * through, over the group that there is. Once every rank is connected all change over; short of that none does, and the old
 * build was never touched. Owns nothing beyond the call.
 */
#include "engine/engine.h"

#include <string.h>

/* What every rank has before round 2; where it fails, the rank takes part to say so. */
static sluice_status begin_build(slc_stages *stages, const char *rules, char **kept, sluice_error *error)
{
    slc_build *build = stages->build;
    if (stages->session->is_worker) {
        if (rules != NULL && (*kept = slc_duplicate(rules)) == NULL)
            return slc_fail_memory(error, "reload", "the path of rules", strlen(rules));
        stages->rules = *kept;
        sluice_status status = slc_script_create(&stages->engine->log, &build->script, error);
        if (status != SLUICE_OK)
            return status;
    }
    return slc_plan_copy(stages->session->build->plan, &build->plan, error);
}

static void tell_changes(const sluice_engine *engine, const slc_build *old, const slc_build *next, double seconds)
{
    size_t count = slc_plan_count(next->plan), differ = 0;
    for (size_t i = 0; i < count; i++)
        differ += !slc_plan_same_destination(old->plan, next->plan, i);
    const slc_plan_totals *before = &old->totals, *after = &next->totals;
    slc_say(&engine->log, SLUICE_LOG_INFO, "reload: %zu of %zu destinations differ: %zu direct (%zu before), %zu full (%zu), %zu alias (%zu), "
            "%zu skipped (%zu); %.3f s (%.3f s planning)", differ, count, after->direct, before->direct, after->full, before->full,
            after->alias, before->alias, after->skip, before->skip, seconds, next->seconds_planning);
}

/* Cannot fail: what takes memory was done before the last round. No rank uses the old roads: no batch is under way anywhere. */
static void change_over(sluice_engine *engine, slc_build *next, char *rules)
{
    slc_session *session = engine->session;
    slc_build *old = session->build;
    session->build = next;
    session->plans++; /* what was recorded was of the other one, whose transport releases its part */
    slc_build_settle(session, next);
    slc_build_clear(old);
    if (session->is_worker) {
        slc_release((void *)engine->options.rules);
        engine->options.rules = rules;
    }
    slc_attach_show(engine, NULL, 0);
}

static sluice_status keep_old(sluice_engine *engine, slc_stages *stages, const sluice_error *found)
{
    sluice_status status = found->status;
    if (slc_group_broken(stages->session->group))
        (void)slc_engine_fail(engine, found);
    else
        slc_say(&engine->log, SLUICE_LOG_WARN, "reload: the old rules stay: %s", found->text);
    slc_build_clear(stages->build);
    return status;
}

static sluice_status reload(sluice_engine *engine, const char *rules, sluice_error *error)
{
    slc_session *session = engine->session;
    char *kept = NULL;
    slc_stages stages = { .engine = engine, .session = session, .call = "reload", .mine = SLUICE_ERROR_INIT,
                          .build = session->build == &session->slot[0] ? &session->slot[1] : &session->slot[0],
                          .deadline = slc_engine_deadline(engine, engine->options.timeouts.agree) };
    double began = slc_now_s();
    memset(session->delivery, SLC_UNTOUCHED, slc_plan_count(session->build->plan)); /* what a failure of this call leaves */
    (void)begin_build(&stages, rules, &kept, &stages.mine);
    stages.build->seconds_planning = slc_now_s() - began;
    sluice_status status = slc_build_agree(&stages, error);
    if (status != SLUICE_OK) {
        (void)keep_old(engine, &stages, error);
        slc_release(kept);
        return status;
    }
    tell_changes(engine, session->build, stages.build, slc_now_s() - began);
    change_over(engine, stages.build, kept);
    return SLUICE_OK;
}

sluice_status sluice_reload_rules(sluice_engine *engine, const char *rules, sluice_error *error)
{
    sluice_status status = slc_engine_enter(engine, SLUICE_STATE_READY, "reload", "reload_rules", error);
    if (status != SLUICE_OK)
        return status;
    sluice_error found = SLUICE_ERROR_INIT;
    status = reload(engine, rules, &found);
    slc_engine_leave(engine);
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &found);
}
