/*
 * init.c: from init info to READY, one stage a function, in the order in which they run on every rank:
 *
 *     read      init info, the source plan, this rank's own registrations
 *     join      the rendezvous; from here on a rank that is wrong says so in the next round
 *     source    agreement 1: the same source plan
 *     the rest  of the stages is build.c
 */
#include "engine/engine.h"

#include "base/given.h"
#include "control/text.h"
#include "plan/text.h"

#include <stdio.h>
#include <string.h>

/* ---- read ---- */

/* What the trainer registered must be what the plan announces, each with an address. */
static sluice_status check_sources(const sluice_engine *engine, slc_session *session, const slc_plan *plan, sluice_error *error)
{
    size_t count = slc_plan_count(plan);
    session->shard = slc_allocate_zeroed(count, sizeof *session->shard);
    if (session->shard == NULL)
        return slc_fail_memory(error, "source", "the table of shards", count * sizeof *session->shard);
    for (size_t i = 0; i < count; i++) {
        sluice_status status = slc_source_check(engine, slc_plan_at(plan, i), &session->shard[i], "source", error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

/* What is told of each parameter while an update is under way. */
static sluice_status make_ledger(slc_session *session, size_t count, sluice_error *error)
{
    session->delivery = slc_allocate_zeroed(count, sizeof *session->delivery);
    session->asked = slc_allocate_zeroed(count, sizeof *session->asked);
    return session->delivery != NULL && session->asked != NULL ? SLUICE_OK
                                                               : slc_fail_memory(error, "source", "the state of an update", count * 5);
}

/* A source that the plan does not know is most often a name with a slip in it. */
static void warn_of_strays(const sluice_engine *engine, const slc_plan *plan)
{
    size_t strays = 0;
    const char *first = NULL;
    for (size_t i = 0; i < engine->source_names.count; i++)
        if (slc_plan_find(plan, engine->source_names.name[i]) == SIZE_MAX && strays++ == 0)
            first = engine->source_names.name[i];
    if (strays > 0)
        slc_say(&engine->log, SLUICE_LOG_WARN, "init: of the sources that are registered here %zu were not announced; the first is '%s'", strays,
                first);
}

/* A live tensor that was refused and not given again is missed: every rank hears why. */
static void check_registered(const sluice_engine *engine, sluice_error *mine)
{
    if (engine->refused.status != SLUICE_OK && slc_live_set_find(&engine->live, engine->refused_name) == NULL)
        slc_error_copy(mine, &engine->refused);
}

/* Fails only where this rank cannot even join; everything else is kept in `mine`. */
static sluice_status read_init_info(slc_stages *stages, const char *json, size_t length, sluice_error *error)
{
    slc_session *session = stages->session;
    sluice_engine *engine = stages->engine;
    slc_build *build = stages->build;
    sluice_status status = slc_script_create(&engine->log, &build->script, error);
    if (status != SLUICE_OK)
        return status;
    bool met;
    status = slc_init_info_read(build->script, json, length, &session->info, &met, &build->plan, &stages->mine);
    if (!met)
        return status != SLUICE_OK ? slc_error_copy(error, &stages->mine)
                                   : slc_fail(error, SLUICE_INTERNAL, "init", "init info was read without a place to meet");
    int32_t world = session->info.world_size, rank = engine->options.rank;
    if (rank >= world)
        return slc_fail(error, SLUICE_INVALID, "init", "rank (%d) must be below world_size (%d)", rank, world);
    session->is_worker = rank >= session->info.trainers;
    if (status != SLUICE_OK)
        return SLUICE_OK;
    if (strcmp(session->info.told_digest, session->info.computed_digest) != 0)
        slc_fail(&stages->mine, SLUICE_INVALID, "init", "source_digest (%.80s) must be that of params (%s); sluice_seal_init_info fills it in",
                 session->info.told_digest, session->info.computed_digest);
    else if (make_ledger(session, slc_plan_count(build->plan), &stages->mine) != SLUICE_OK)
        return SLUICE_OK; /* it is said in the first round */
    else if (session->is_worker)
        check_registered(engine, &stages->mine);
    else {
        warn_of_strays(engine, build->plan);
        (void)check_sources(engine, session, build->plan, &stages->mine);
    }
    return SLUICE_OK;
}

/* ---- join ---- */

static sluice_status join(slc_stages *stages, sluice_error *error)
{
    sluice_engine *engine = stages->engine;
    const slc_init_info *info = &stages->session->info;
    slc_rendezvous_options options = { .address = info->address,
                                       .port = info->port,
                                       .listen_fd = engine->options.listen_fd,
                                       .rank = engine->options.rank,
                                       .world_size = info->world_size,
                                       .deadline = slc_engine_deadline(engine, engine->options.timeouts.connect),
                                       .cancelled = &engine->cancelled,
                                       .log = engine->log,
                                       .key = engine->key,
                                       .insecure = engine->options.insecure_control,
                                       .beat_s = engine->options.beat_s,
                                       .last_words_s = engine->options.timeouts.shutdown };
    engine->options.listen_fd = -1; /* the rendezvous takes it, whatever comes of it */
    sluice_status status = slc_rendezvous_join(&options, &stages->session->group, error);
    stages->deadline = slc_engine_deadline(engine, engine->options.timeouts.agree);
    if (status != SLUICE_OK && stages->mine.status != SLUICE_OK) { /* nobody was there to be told */
        size_t used = strlen(error->text);
        snprintf(error->text + used, sizeof error->text - used, "; on this rank, %.2000s", stages->mine.text);
    }
    return status;
}

/* ---- agreement 1 ---- */

/* " (pp 2, tp 4)" */
static void add_axes(slc_line *line, const slc_mesh *mesh)
{
    for (int i = 0; i < mesh->naxes; i++)
        slc_line_add(line, "%s%.60s %d", i == 0 ? " (" : ", ", mesh->axis_name[i], (int)mesh->axis[i]);
    slc_line_add(line, ")");
}

static void source_line(const void *context, size_t index, char *text, size_t size)
{
    const slc_param *param = slc_plan_at(context, index);
    const slc_mesh *mesh = param->source->mesh;
    char shape[SLC_SHAPE_TEXT];
    slc_line line = slc_line_in(text, size);
    slc_shape_text(param->ndim, param->shape, shape);
    slc_line_add(&line, "'%.500s' %s %s%s, cut ", param->name, param->dtype->name, shape, param->allow_full ? "" : " direct only");
    slc_layout_text(param->source, text, size, &line.length);
    if (mesh->axis_name[0][0] != '\0') /* else its name says the sizes */
        add_axes(&line, mesh);
}

/* What every rank was told of the world, beside the parameters; their digest does not cover it. */
static void world_line(const slc_session *session, const slc_plan *plan, char *text, size_t size)
{
    slc_line line = slc_line_in(text, size);
    slc_line_add(&line, "rank_offset %d", (int)session->info.trainers);
    const slc_mesh *mesh;
    for (size_t i = 0; (mesh = slc_plan_mesh_at(plan, true, i)) != NULL; i++) {
        slc_line_add(&line, ", workers' mesh");
        if (mesh->name[0] != '\0')
            slc_line_add(&line, " '%.100s'", mesh->name);
        add_axes(&line, mesh);
    }
}

static sluice_status agree_on_source(slc_stages *stages, sluice_error *error)
{
    slc_session *session = stages->session;
    const slc_plan *plan = stages->build->plan;
    char world[1000] = "";
    if (plan != NULL)
        world_line(session, plan, world, sizeof world);
    slc_list list = { .what = "parameter", .heading = world, .count = plan == NULL ? SIZE_MAX : slc_plan_count(plan), .line = source_line,
                      .context = plan };
    memcpy(session->source_digest, session->info.computed_digest, sizeof session->source_digest);
    return slc_agree_on_list(session->group, "source", &stages->mine, session->source_digest, &list, NULL, stages->deadline, error);
}

/* ---- the way through ---- */

static sluice_status pass_stages(slc_stages *stages, const char *json, size_t length, sluice_error *error)
{
    double began = slc_now_s();
    sluice_status status = read_init_info(stages, json, length, error);
    stages->build->seconds_planning = slc_now_s() - began;
    if (status == SLUICE_OK) {
        slc_stage_enter(stages, "joins");
        status = join(stages, error);
    }
    if (status == SLUICE_OK) {
        slc_stage_enter(stages, "round 1, source");
        status = agree_on_source(stages, error);
    }
    if (status == SLUICE_OK)
        status = slc_build_agree(stages, error);
    stages->session->seconds_init = slc_now_s() - began;
    return status;
}

static sluice_status make_session(sluice_engine *engine, const char *init_info, size_t length, sluice_error *error)
{
    slc_session *session = slc_secret_allocate(sizeof *session); /* it holds the unique id */
    if (session == NULL)
        return slc_fail_memory(error, "init", "a session", sizeof *session);
    session->build = &session->slot[0];
    engine->session = session;
    slc_stages stages = { .engine = engine, .session = session, .build = session->build, .call = "init",
                          .rules = engine->options.rules, .mine = SLUICE_ERROR_INIT };
    sluice_status status = pass_stages(&stages, init_info, length, error);
    if (status != SLUICE_OK) {
        if (session->group == NULL && error->rank < 0)
            error->rank = engine->options.rank; /* nobody was met: it is this rank's own */
        engine->session = NULL;
        slc_session_destroy(session);
        return status;
    }
    slc_build_settle(session, session->build);
    engine->state = SLUICE_STATE_READY;
    slc_take_version(engine);
    slc_attach_show(engine, init_info, length);
    const slc_plan_totals *totals = &session->build->totals;
    slc_say(&engine->log, SLUICE_LOG_INFO, "init: ready in %.3f s (%.3f s planning): %zu direct, %zu full, %zu alias, %zu skipped",
            session->seconds_init, session->build->seconds_planning, totals->direct, totals->full, totals->alias, totals->skip);
    return SLUICE_OK;
}

sluice_status sluice_init(sluice_engine *engine, const char *init_info, size_t length, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, "init", "init", error);
    if (status != SLUICE_OK)
        return status;
    sluice_error found = SLUICE_ERROR_INIT; /* the caller may not want one; the stages always do */
    slc_checker_clear(&engine->checker);
    if (engine->state != SLUICE_STATE_NEW)
        status = slc_fail(&found, SLUICE_STATE, "init", "the engine is %s; call shutdown before a second init",
                          sluice_state_text(engine->state));
    else if (slc_flag_raised(&engine->cancelled))
        status = slc_fail(&found, SLUICE_CANCELLED, "init", "cancelled");
    else if (init_info == NULL)
        status = slc_fail(&found, SLUICE_INVALID, "init", "init_info (NULL) must be JSON");
    else
        status = make_session(engine, init_info, length, &found);
    slc_engine_leave(engine);
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &found);
}

sluice_status sluice_seal_init_info(const char *json, size_t length, char **sealed, sluice_error *error)
{
    *sealed = NULL;
    if (!slc_given_error(error))
        return SLUICE_INVALID;
    if (json == NULL)
        return slc_fail(error, SLUICE_INVALID, "init", "init_info (NULL) must be JSON");
    slc_script *script;
    sluice_status status = slc_script_create(NULL, &script, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_init_info_seal(script, json, length, sealed, error);
    slc_script_destroy(script);
    return status;
}
