/* report.c: the plan, answers about it and a failure as JSON, for people and programs. Changes nothing that a move reads. */
#include "base/text.h"
#include "engine/engine.h"
#include "script/explain.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static sluice_status give(json_t *object, char **text, sluice_error *error)
{
    char *dumped = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (dumped == NULL)
        return slc_fail(error, SLUICE_NO_MEMORY, "report", "out of memory for a report");
    *text = slc_duplicate(dumped); /* released by sluice_free, which knows only the library's own door */
    free(dumped);
    return *text == NULL ? slc_fail_memory(error, "report", "a report", 0) : SLUICE_OK;
}

static json_t *mode_counts(size_t count, int64_t bytes)
{
    return json_pack("{s:I, s:I}", "parameters", (json_int_t)count, "bytes", (json_int_t)bytes);
}

static json_t *uncovered_list(const sluice_engine *engine, const slc_coverage *coverage)
{
    json_t *list = json_array();
    for (size_t i = 0; i < coverage->nuncovered; i++)
        json_array_append_new(list, json_pack("{s:s, s:I}", "name", engine->live.item[coverage->uncovered[i].live].name, "bytes",
                                              (json_int_t)coverage->uncovered[i].bytes));
    return list;
}

static json_t *coverage_report(const sluice_engine *engine, const slc_build *build)
{
    const slc_coverage *coverage = &build->coverage;
    json_t *unsourced = json_array();
    for (size_t i = 0; i < build->resolution.unsourced.count; i++)
        json_array_append_new(unsourced, json_string(build->resolution.unsourced.item[i]));
    return json_pack("{s:I, s:I, s:I, s:o, s:o}", "live_bytes", (json_int_t)coverage->live_bytes, "written_bytes",
                     (json_int_t)coverage->written_bytes, "padded_bytes", (json_int_t)coverage->padded_bytes, "uncovered",
                     uncovered_list(engine, coverage), "unsourced", unsourced);
}

json_t *slc_roads_json(const slc_session *session)
{
    json_t *roads = json_object();
    for (size_t i = 0; i < session->build->program.npeers; i++) {
        const char *road = session->build->ops->road(session->build->transport, i);
        json_int_t before = json_integer_value(json_object_get(roads, road));
        json_object_set_new(roads, road, json_integer(before + 1));
    }
    return roads;
}

/* What this rank sends in an update of all, by who carries it; NULL where there is no choice. */
static json_t *ways_report(const slc_build *build)
{
    if (build->ops->ways == NULL)
        return NULL;
    slc_ways ways = build->ops->ways(build->transport);
    return json_pack("{s:I, s:I}", "copy_engines", (json_int_t)ways.engine_bytes, "kernel", (json_int_t)ways.kernel_bytes);
}

static json_t *aliases_report(const slc_plan *plan)
{
    json_t *aliases = json_object();
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        if (param->mode == SLC_MODE_ALIAS)
            json_object_set_new(aliases, param->name, json_string(param->alias_of));
    }
    return aliases;
}

static json_t *parameters_report(const slc_plan *plan)
{
    json_t *list = json_array();
    char line[4096];
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        slc_plan_destination_text(plan, i, line, sizeof line);
        json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:s, s:s?, s:s?}", "name", param->name, "mode", slc_mode_text(param->mode),
                                              "bytes", (json_int_t)param->bytes, "destination", line, "reason", param->reason, "where",
                                              param->where));
    }
    return list;
}

static sluice_status write_plan(const sluice_engine *engine, bool full, char **json, sluice_error *error)
{
    const slc_session *session = engine->session;
    if (session == NULL)
        return slc_fail(error, SLUICE_STATE, "report", "there is a plan only between init and shutdown; the engine is %s",
                        sluice_state_text(engine->state));
    const slc_build *build = session->build;
    const slc_plan_totals *totals = &build->totals;
    int64_t staging = build->staging == NULL ? 0 : totals->largest_full_bytes * engine->options.staging_slots;
    json_t *report = json_pack("{s:i, s:i, s:i, s:s, s:s, s:s, s:s}", "rank", engine->options.rank, "trainers", session->info.trainers,
                               "workers", session->info.world_size - session->info.trainers, "transport", session->build->ops->name,
                               "source_digest", session->source_digest, "destination_digest", build->destination_digest, "commit_token",
                               build->commit_token);
    if (report == NULL)
        return give(NULL, json, error);
    json_object_set_new(report, "direct", mode_counts(totals->direct, totals->direct_bytes));
    json_object_set_new(report, "full", mode_counts(totals->full, totals->full_bytes));
    json_object_set_new(report, "alias", mode_counts(totals->alias, totals->alias_bytes));
    json_object_set_new(report, "skip", mode_counts(totals->skip, totals->skip_bytes));
    json_object_set_new(report, "aliases", aliases_report(build->plan));
    json_object_set_new(report, "program_bytes", json_integer((json_int_t)build->program.bytes));
    json_object_set_new(report, "program_copies", json_integer((json_int_t)build->program.copies));
    json_object_set_new(report, "staging_bytes", json_integer((json_int_t)staging));
    json_object_set_new(report, "roads", slc_roads_json(session));
    const slc_communicator_ops *communicator = build->ops->communicator;
    const char *library = communicator == NULL ? NULL : communicator->library(build->transport);
    if (library != NULL)
        json_object_set_new(report, "library", json_string(library));
    json_object_set_new(report, "seconds_planning", json_real(build->seconds_planning));
    json_object_set_new(report, "seconds_init", json_real(session->seconds_init));
    json_t *ways = session->is_worker ? NULL : ways_report(build);
    if (ways != NULL)
        json_object_set_new(report, "sent_by", ways);
    if (session->is_worker)
        json_object_set_new(report, "coverage", coverage_report(engine, build));
    if (full)
        json_object_set_new(report, "plan", parameters_report(build->plan));
    return give(report, json, error);
}

static sluice_status explain(sluice_engine *engine, const char *name, char **json, sluice_error *error)
{
    slc_session *session = engine->session;
    if (session == NULL)
        return slc_fail(error, SLUICE_STATE, "explain", "there is a plan only between init and shutdown; the engine is %s",
                        sluice_state_text(engine->state));
    if (name == NULL)
        return slc_fail(error, SLUICE_INVALID, "explain", "the name (NULL) must be a parameter's, a live tensor's or a pattern");
    if (!slc_text_is_utf8(name))
        return slc_fail(error, SLUICE_INVALID, "explain", "the name (%.1000s) must be UTF-8", name);
    static const slc_live_set none;
    slc_question question = { .name = name, .live = session->is_worker ? &engine->live : &none,
                              .rank = session->is_worker ? engine->options.rank : -1 };
    slc_build *build = session->build;
    slc_script *script = build->script;
    sluice_status status = script == NULL ? slc_script_create(&engine->log, &script, error) : SLUICE_OK;
    if (status != SLUICE_OK)
        return status;
    status = slc_explain(script, build->plan, &build->resolution, &question, json, error);
    if (script == build->script)
        slc_script_collect(script);
    else
        slc_script_destroy(script);
    return status;
}

static sluice_status write_failure(const sluice_engine *engine, char **json, sluice_error *error)
{
    const slc_session *session = engine->session;
    if (engine->state != SLUICE_STATE_FAILED)
        return slc_fail(error, SLUICE_STATE, "report", "there is a failure to report only while the engine is failed; it is %s",
                        sluice_state_text(engine->state));
    json_t *complete = json_array(), *torn = json_array(), *untouched = json_array();
    for (size_t i = 0; i < slc_plan_count(session->build->plan); i++) {
        uint8_t delivery = session->delivery[i];
        json_array_append_new(delivery == SLC_COMPLETE ? complete : delivery == SLC_TORN ? torn : untouched,
                              json_string(slc_plan_at(session->build->plan, i)->name));
    }
    return give(json_pack("{s:o, s:o, s:o}", "complete", complete, "torn", torn, "untouched", untouched), json, error);
}

/* ---- the calls ---- */

/* To ask changes nothing that the host sees; that it is busy with the question an engine notes all the same. */
static sluice_engine *asked(const sluice_engine *engine)
{
    return (sluice_engine *)(uintptr_t)engine;
}

sluice_status sluice_plan_json(const sluice_engine *engine, bool full, char **json, sluice_error *error)
{
    *json = NULL;
    sluice_status status = slc_engine_claim(asked(engine), "report", "plan_json", error);
    if (status != SLUICE_OK)
        return status;
    status = write_plan(engine, full, json, error);
    slc_engine_leave(asked(engine));
    return status;
}

sluice_status sluice_explain_json(sluice_engine *engine, const char *name, char **json, sluice_error *error)
{
    *json = NULL;
    sluice_status status = slc_engine_claim(engine, "explain", "explain_json", error);
    if (status != SLUICE_OK)
        return status;
    status = explain(engine, name, json, error);
    slc_engine_leave(engine);
    return status;
}

sluice_status sluice_failure_json(const sluice_engine *engine, char **json, sluice_error *error)
{
    *json = NULL;
    sluice_status status = slc_engine_claim(asked(engine), "report", "failure_json", error);
    if (status != SLUICE_OK)
        return status;
    status = write_failure(engine, json, error);
    slc_engine_leave(asked(engine));
    return status;
}
