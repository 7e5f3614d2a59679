/*
 * build.c: the stages from a plan without destinations to one whose bytes can move, in the order in which they run on every
 * rank:
 *
 *     destination  rules (workers), agreement 2: the same destinations; trainers receive them
 *     compile      the plan into this rank's program; the transport's local preparation
 *     settings     agreement 3: transport, plan, unique id, limits
 *     runtime      agreement 4: every rank can run; at init, which version all of them hold
 *     connect      roads to the peers, tried; communicator.c: a communicator for those that need one
 *
 * Owns what a build holds. Where the group comes from, and what becomes of the build, is its caller's.
 */
#include "engine/engine.h"

#include "control/text.h"

#include <stdio.h>
#include <string.h>

void slc_stage_enter(const slc_stages *stages, const char *stage)
{
    stages->engine->stage = stage;
    slc_engine_post(stages->engine);
    slc_say(&stages->engine->log, SLUICE_LOG_DEBUG, "%s: %s", stages->call, stage);
}

void slc_build_settle(const slc_session *session, slc_build *build)
{
    /* Only a plan is needed from here on: Lua is not on the path of the bytes. What a worker's rules were answers questions. */
    if (session->is_worker) {
        slc_script_collect(build->script);
        return;
    }
    slc_script_destroy(build->script);
    build->script = NULL;
}

void slc_build_clear(slc_build *build)
{
    if (build->transport != NULL)
        build->ops->close(build->transport);
    slc_staging_destroy(build->staging);
    slc_program_clear(&build->program);
    slc_plan_destroy(build->plan);
    slc_script_destroy(build->script);
    slc_arena_clear(&build->arena);
    *build = (slc_build){ 0 };
}

/* ---- agreement 2 ---- */

/* A parameter is often full by mistake: its name, dtype or shape is another one than the live tensor's. The reason says it. */
static sluice_status nobody_loads(const slc_build *build, bool has_rules, sluice_error *error)
{
    size_t first = 0;
    while (slc_plan_at(build->plan, first)->mode != SLC_MODE_FULL)
        first++;
    const slc_param *param = slc_plan_at(build->plan, first);
    return slc_fail(error, SLUICE_INVALID, "destination", "the plan has %zu full %s and this worker has no load_weights; the first is "
                    "'%.1000s': %.1000s%s", build->totals.full, build->totals.full == 1 ? "parameter" : "parameters", param->name,
                    param->reason, has_rules ? "" : " (no rules were given: the default resolver decides)");
}

static sluice_status resolve(slc_stages *stages, slc_buffer *destinations, sluice_error *error)
{
    sluice_engine *engine = stages->engine;
    slc_build *build = stages->build;
    slc_plan *plan = build->plan;
    slc_resolution *resolution = &build->resolution;
    const char *host = engine->host == NULL ? "{}" : engine->host;
    sluice_status status = slc_script_describe_host(build->script, host, strlen(host), error);
    if (status == SLUICE_OK)
        status = slc_resolve(build->script, plan, &engine->live, stages->rules, &build->arena, resolution, error);
    if (status == SLUICE_OK)
        status = slc_plan_complete(plan, error);
    if (status == SLUICE_OK)
        status = slc_coverage_check(plan, &engine->live, engine->options.rank, resolution->whole_modules, &build->arena, &build->coverage,
                                    error);
    build->totals = slc_plan_count_totals(plan);
    if (status == SLUICE_OK)
        status = slc_resolution_check(resolution, &build->coverage, &engine->live, error);
    if (status == SLUICE_OK && build->totals.full > 0 && engine->options.callbacks.load_weights == NULL)
        status = nobody_loads(build, stages->rules != NULL, error);
    if (status == SLUICE_OK)
        status = slc_plan_encode_destinations(plan, destinations, error);
    return status == SLUICE_OK ? slc_plan_digest_destinations(plan, build->destination_digest, error) : status;
}

static void destination_line(const void *context, size_t index, char *text, size_t size)
{
    int used = snprintf(text, size, "'%.200s' ", slc_plan_at(context, index)->name);
    if (used > 0 && (size_t)used < size)
        slc_plan_destination_text(context, index, text + used, size - (size_t)used);
}

/* Why it is not in place: rules may stand in other files on other workers, so that this is not compared. */
static void destination_note(const void *context, size_t index, char *text, size_t size)
{
    const slc_param *param = slc_plan_at(context, index);
    slc_line line = slc_line_in(text, size);
    if (param->mode == SLC_MODE_FULL || param->mode == SLC_MODE_SKIP)
        slc_line_add(&line, "%s", param->reason);
}

/* A trainer takes over what the workers agreed on. */
static sluice_status receive_destinations(slc_build *build, const slc_buffer *agreed, sluice_error *error)
{
    if (agreed->failed)
        return slc_fail(error, SLUICE_NO_MEMORY, "destination", "the destinations that all agreed on cannot be kept");
    sluice_status status = slc_plan_decode_destinations(build->plan, agreed->data, agreed->length, error);
    if (status == SLUICE_OK)
        status = slc_plan_complete(build->plan, error);
    build->totals = slc_plan_count_totals(build->plan);
    return status == SLUICE_OK ? slc_plan_digest_destinations(build->plan, build->destination_digest, error) : status;
}

static sluice_status agree_on_destination(slc_stages *stages, sluice_error *error)
{
    const slc_session *session = stages->session;
    slc_build *build = stages->build;
    slc_buffer destinations = { 0 }, agreed = { 0 };
    double began = slc_now_s();
    if (session->is_worker && stages->mine.status == SLUICE_OK)
        (void)resolve(stages, &destinations, &stages->mine);
    build->seconds_planning += slc_now_s() - began;
    bool gives = session->is_worker && stages->mine.status == SLUICE_OK;
    /* Only rank T's own bytes travel on; the others' digests say that theirs are the same. */
    bool publishes = gives && stages->engine->options.rank == session->info.trainers;
    slc_list list = { .what = "parameter", .count = gives ? slc_plan_count(build->plan) : SIZE_MAX, .line = destination_line,
                      .note = destination_note,
                      .context = build->plan, .extra = publishes ? destinations.data : NULL,
                      .extra_length = publishes ? destinations.length : 0,
                      .readers = session->info.trainers };
    sluice_status status = slc_agree_on_list(session->group, "destination", &stages->mine, build->destination_digest, &list, &agreed,
                                             stages->deadline, error);
    if (status == SLUICE_OK && !session->is_worker) /* a rank that cannot read what was agreed says so in the next round */
        (void)receive_destinations(build, &agreed, &stages->mine);
    slc_buffer_clear(&destinations);
    slc_buffer_clear(&agreed);
    return status;
}

/* ---- compile ---- */

static sluice_status commit(const slc_session *session, slc_build *build, sluice_error *error)
{
    char both[2 * SLC_DIGEST_TEXT];
    int length = snprintf(both, sizeof both, "%s\n%s", session->source_digest, build->destination_digest);
    return slc_digest(both, (size_t)length, build->commit_token, error);
}

static sluice_status open_transport(const slc_stages *stages, sluice_error *error)
{
    sluice_engine *engine = stages->engine;
    const slc_session *session = stages->session;
    slc_build *build = stages->build;
    const char *name = engine->options.transport == NULL ? "host" : engine->options.transport;
    sluice_status status = slc_transport_find(name, &build->ops, error);
    if (status != SLUICE_OK)
        return status;
    slc_transport_config config = { .rank = engine->options.rank,
                                    .trainers = session->info.trainers,
                                    .workers = session->info.world_size - session->info.trainers,
                                    .plan = build->plan,
                                    .program = &build->program,
                                    .live = session->is_worker ? &engine->live : NULL,
                                    .source = (const void *const *)session->shard,
                                    .region = session->is_worker ? NULL : engine->region,
                                    .nregions = session->is_worker ? 0 : engine->nregions,
                                    .road = engine->options.road,
                                    .stream = engine->options.stream,
                                    .keep = &engine->keep,
                                    .no_sm = engine->options.no_sm != 0,
                                    .mix = engine->options.mix != 0,
                                    .grouped = engine->options.grouped != 0,
                                    .max_cta = session->info.max_cta,
                                    .log = engine->log };
    return build->ops->open(&config, &build->transport, error);
}

static sluice_status compile(const slc_stages *stages, sluice_error *error)
{
    sluice_engine *engine = stages->engine;
    slc_build *build = stages->build;
    bool worker = stages->session->is_worker;
    sluice_status status = commit(stages->session, build, error);
    if (status == SLUICE_OK)
        status = slc_program_compile(build->plan, worker ? &engine->live : NULL, engine->options.rank, &build->program, error);
    if (status == SLUICE_OK)
        status = open_transport(stages, error);
    return status == SLUICE_OK && worker && build->totals.full > 0 ? slc_staging_create(engine, build, error) : status;
}

/* ---- agreement 3 and 4 ---- */

static sluice_status agree_on_settings(slc_stages *stages, sluice_error *error)
{
    const slc_session *session = stages->session;
    const slc_build *build = stages->build;
    const sluice_options *options = &stages->engine->options;
    char unique_id[SLC_DIGEST_TEXT] = "none";
    sluice_error failed = SLUICE_ERROR_INIT;
    if (session->info.has_unique_id) /* its digest may be told, the id never */
        (void)slc_digest(session->info.unique_id, sizeof session->info.unique_id, unique_id, &failed);
    slc_buffer lines = { 0 };
    slc_buffer_text(&lines, "library=%s\ntransport=%s\nunique_id=%s\nmax_cta=%d\nbeat_s=%g\n", SLUICE_VERSION,
                    options->transport == NULL ? "host" : options->transport, unique_id, session->info.max_cta, options->beat_s);
    if (stages->mine.status == SLUICE_OK) { /* a rank whose preparation failed says that in the next round, and no settings in this one */
        slc_buffer_text(&lines, "plan=%s\n", build->commit_token);
        if (failed.status == SLUICE_OK)
            (void)build->ops->must_match(build->transport, &lines, &failed);
    } else {
        lines.length = 0;
    }
    if (lines.failed)
        slc_fail_memory(&failed, "data plane", "settings", lines.length);
    sluice_status status = slc_agree_on_settings(session->group, "data plane", &failed, &lines, stages->deadline, error);
    slc_buffer_clear(&lines);
    return status;
}

/* Between updates, all ranks know of one version already. */
static sluice_status agree_on_runtime(slc_stages *stages, sluice_error *error)
{
    if (stages->engine->state == SLUICE_STATE_NEW)
        return slc_agree_on_version(stages->engine, &stages->mine, stages->deadline, error);
    return slc_group_round(stages->session->group, "runtime", &stages->mine, NULL, 0, NULL, NULL, NULL, stages->deadline, error);
}

/* ---- connect ---- */

/* A rank that waits for a peer must not wait for one that has given up: it goes on to the round, and hears there. */
static sluice_status check_connecting(void *context, sluice_error *error)
{
    slc_stages *stages = context;
    slc_watch watch = slc_engine_watch(stages->engine);
    sluice_status status = watch.check(watch.context, error);
    if (status != SLUICE_OK || !slc_group_recalled(stages->session->group))
        return status;
    stages->recalled = true;
    return slc_fail(error, SLUICE_PEER, "connect", "another rank cannot connect");
}

slc_watch slc_stages_watch(slc_stages *stages)
{
    return (slc_watch){ .check = check_connecting, .context = stages };
}

sluice_status slc_stages_connected(slc_stages *stages, sluice_error *error)
{
    if (stages->recalled)
        stages->mine = (sluice_error)SLUICE_ERROR_INIT;
    return slc_group_round(stages->session->group, "connect", &stages->mine, NULL, 0, NULL, NULL, NULL, stages->deadline, error);
}

static sluice_status connect_peers(slc_stages *stages, sluice_error *error)
{
    const slc_session *session = stages->session;
    const slc_build *build = stages->build;
    const slc_program *program = &build->program;
    slc_buffer card = { 0 }, store = { 0 };
    const unsigned char **cards = slc_allocate_zeroed(program->npeers, sizeof *cards);
    size_t *lengths = slc_allocate_zeroed(program->npeers, sizeof *lengths);
    if (cards == NULL || lengths == NULL)
        slc_fail_memory(&stages->mine, "connect", "cards", program->npeers * 16);
    else
        (void)build->ops->card(build->transport, &card, &stages->mine);
    sluice_status status = slc_group_exchange(session->group, "connect", &stages->mine, card.data, card.length, program->peer,
                                              program->npeers, &store, cards, lengths, stages->deadline, error);
    if (status == SLUICE_OK) {
        slc_stage_enter(stages, "meets its peers");
        (void)build->ops->connect(build->transport, cards, lengths, stages->deadline, slc_stages_watch(stages), &stages->mine);
        status = slc_stages_connected(stages, error);
    }
    slc_release((void *)cards);
    slc_release(lengths);
    slc_buffer_clear(&card);
    slc_buffer_clear(&store);
    return status;
}

/* ---- the way through ---- */

sluice_status slc_build_agree(slc_stages *stages, sluice_error *error)
{
    slc_stage_enter(stages, "round 2, destination");
    sluice_status status = agree_on_destination(stages, error);
    if (status == SLUICE_OK && stages->mine.status == SLUICE_OK) {
        double began = slc_now_s();
        (void)compile(stages, &stages->mine);
        stages->build->seconds_planning += slc_now_s() - began;
    }
    if (status == SLUICE_OK) {
        slc_stage_enter(stages, "round 3, data plane");
        status = agree_on_settings(stages, error);
    }
    if (status == SLUICE_OK) {
        slc_stage_enter(stages, "round 4, runtime");
        status = agree_on_runtime(stages, error);
    }
    if (status == SLUICE_OK) {
        slc_stage_enter(stages, "opens the transport");
        status = connect_peers(stages, error);
    }
    return status == SLUICE_OK ? slc_communicator_agree(stages, error) : status;
}
