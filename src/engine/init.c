/*
 * init.c: from init info to READY, one stage a function, in the order in which they run on every rank:
 *
 *     read         init info, the source plan, this rank's own registrations
 *     join         the rendezvous; from here on a rank that is wrong says so in the next round
 *     source       agreement 1: the same source plan
 *     destination  rules (workers), agreement 2: the same destinations; trainers receive them
 *     compile      the plan into this rank's program; the transport's local preparation
 *     settings     agreement 3: transport, plan, unique id, limits
 *     runtime      agreement 4: every rank can run; which version all of them hold
 *     connect      roads to the peers, tried
 *
 * A stage gets the error so far (`mine`) and adds to it, so that every rank takes part in every round.
 */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

struct stages {
    sluice_engine *engine;
    slc_session *session;
    slc_deadline deadline;
    sluice_error mine; /* what this rank has to say in the next round */
    bool recalled;     /* it stopped to connect, since another rank cannot */
};

/* A log at debug level ends with what a rank waits for. */
static void enter(const struct stages *stages, const char *stage)
{
    slc_say(&stages->engine->log, SLUICE_LOG_DEBUG, "init: %s", stage);
}

/* ---- read ---- */

/* What the trainer registered must be what the plan announces, each with an address. */
static sluice_status check_sources(sluice_engine *engine, slc_session *session, sluice_error *error)
{
    size_t count = slc_plan_count(session->plan);
    session->shard = slc_allocate_zeroed(count, sizeof *session->shard);
    if (session->shard == NULL)
        return slc_fail_memory(error, "source", "the table of shards", count * sizeof *session->shard);
    for (size_t i = 0; i < count; i++) {
        sluice_status status = slc_source_check(engine, slc_plan_at(session->plan, i), &session->shard[i], "source", error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

/* A source that the plan does not know is most often a name with a slip in it. */
static void warn_of_strays(const sluice_engine *engine, const slc_session *session)
{
    size_t strays = 0;
    const char *first = NULL;
    for (size_t i = 0; i < engine->source_names.count; i++)
        if (slc_plan_find(session->plan, engine->source_names.name[i]) == SIZE_MAX && strays++ == 0)
            first = engine->source_names.name[i];
    if (strays > 0)
        slc_say(&engine->log, SLUICE_LOG_WARN, "init: %zu registered sources are not announced, the first is '%s'", strays, first);
}

/* Fails only where this rank cannot even join; everything else is kept in `mine`. */
static sluice_status read_init_info(struct stages *stages, const char *json, size_t length, sluice_error *error)
{
    slc_session *session = stages->session;
    sluice_engine *engine = stages->engine;
    sluice_status status = slc_script_create(&engine->log, &session->script, error);
    if (status != SLUICE_OK)
        return status;
    bool met;
    status = slc_init_info_read(session->script, json, length, &session->info, &met, &session->plan, &stages->mine);
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
        slc_fail(&stages->mine, SLUICE_INVALID, "init", "source_digest (%.80s) must be that of params (%s)", session->info.told_digest,
                 session->info.computed_digest);
    else if (!session->is_worker) {
        warn_of_strays(engine, session);
        (void)check_sources(engine, session, &stages->mine);
    }
    return SLUICE_OK;
}

/* ---- join ---- */

static sluice_status join(struct stages *stages, sluice_error *error)
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

static void source_line(const void *context, size_t index, char *text, size_t size)
{
    const slc_param *param = slc_plan_at(context, index);
    int used = snprintf(text, size, "'%s' %s [", param->name, param->dtype->name);
    for (int i = 0; i < param->ndim && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", i > 0 ? ", " : "", (long long)param->shape[i]);
    if (used > 0 && (size_t)used < size)
        used += snprintf(text + used, size - (size_t)used, "]%s", param->allow_full ? "" : " direct only");
    for (int i = 0; i < param->source->nplacements && used > 0 && (size_t)used < size; i++) {
        const slc_placement *placement = &param->source->placement[i];
        used += snprintf(text + used, size - (size_t)used, ", axis %d %s %d", placement->axis,
                         placement->kind == SLC_PIN ? "pinned to" : "shards dim",
                         placement->kind == SLC_PIN ? placement->coordinate : placement->dim);
    }
}

static sluice_status agree_on_source(struct stages *stages, sluice_error *error)
{
    slc_session *session = stages->session;
    slc_list list = { .what = "parameter", .count = session->plan == NULL ? SIZE_MAX : slc_plan_count(session->plan),
                      .line = source_line, .context = session->plan };
    memcpy(session->source_digest, session->info.computed_digest, sizeof session->source_digest);
    return slc_agree_on_list(session->group, "source", &stages->mine, session->source_digest, &list, NULL, stages->deadline, error);
}

/* ---- agreement 2 ---- */

static sluice_status resolve(struct stages *stages, slc_buffer *destinations, sluice_error *error)
{
    sluice_engine *engine = stages->engine;
    slc_session *session = stages->session;
    const char *host = engine->host == NULL ? "{}" : engine->host;
    sluice_status status = slc_script_describe_host(session->script, host, strlen(host), error);
    if (status == SLUICE_OK)
        status = slc_resolve(session->script, session->plan, &engine->live, engine->options.rules, &session->arena, &session->resolution,
                             error);
    if (status == SLUICE_OK)
        status = slc_plan_complete(session->plan, error);
    if (status == SLUICE_OK)
        status = slc_coverage_check(session->plan, &engine->live, engine->options.rank, session->resolution.whole_modules, &session->arena,
                                    &session->coverage, error);
    session->totals = slc_plan_count_totals(session->plan);
    if (status == SLUICE_OK)
        status = slc_resolution_check(&session->resolution, &session->coverage, &engine->live, error);
    if (status == SLUICE_OK && session->totals.full > 0 && engine->options.callbacks.load_weights == NULL)
        status = slc_fail(error, SLUICE_INVALID, "destination", "the plan has %zu full parameters and this worker has no load_weights",
                          session->totals.full);
    if (status == SLUICE_OK)
        status = slc_plan_encode_destinations(session->plan, destinations, error);
    return status == SLUICE_OK ? slc_plan_digest_destinations(session->plan, session->destination_digest, error) : status;
}

static void destination_line(const void *context, size_t index, char *text, size_t size)
{
    int used = snprintf(text, size, "'%.200s' ", slc_plan_at(context, index)->name);
    if (used > 0 && (size_t)used < size)
        slc_plan_destination_text(context, index, text + used, size - (size_t)used);
}

static sluice_status agree_on_destination(struct stages *stages, sluice_error *error)
{
    slc_session *session = stages->session;
    slc_buffer destinations = { 0 }, agreed = { 0 };
    if (session->is_worker)
        (void)resolve(stages, &destinations, &stages->mine);
    /* Only rank T's own bytes travel on; the others' digests say that theirs are the same. */
    bool publishes = stages->engine->options.rank == session->info.trainers;
    slc_list list = { .what = "parameter", .count = session->is_worker ? slc_plan_count(session->plan) : SIZE_MAX,
                      .line = destination_line, .context = session->plan, .extra = publishes ? destinations.data : NULL,
                      .extra_length = publishes ? destinations.length : 0 };
    sluice_status status = slc_agree_on_list(session->group, "destination", &stages->mine, session->destination_digest, &list, &agreed,
                                             stages->deadline, error);
    if (status == SLUICE_OK && !session->is_worker) {
        status = slc_plan_decode_destinations(session->plan, agreed.data, agreed.length, &stages->mine);
        if (status == SLUICE_OK)
            status = slc_plan_complete(session->plan, &stages->mine);
        if (status == SLUICE_OK)
            status = slc_plan_digest_destinations(session->plan, session->destination_digest, &stages->mine);
        session->totals = slc_plan_count_totals(session->plan);
        status = SLUICE_OK; /* a rank that cannot read what was agreed says so in the next round */
    }
    slc_buffer_clear(&destinations);
    slc_buffer_clear(&agreed);
    return status;
}

/* ---- compile ---- */

static sluice_status commit(slc_session *session, sluice_error *error)
{
    char both[2 * SLC_DIGEST_TEXT];
    int length = snprintf(both, sizeof both, "%s\n%s", session->source_digest, session->destination_digest);
    return slc_digest(both, (size_t)length, session->commit_token, error);
}

static sluice_status compile(struct stages *stages, sluice_error *error)
{
    sluice_engine *engine = stages->engine;
    slc_session *session = stages->session;
    size_t count = slc_plan_count(session->plan);
    sluice_status status = commit(session, error);
    if (status == SLUICE_OK)
        status = slc_program_compile(session->plan, session->is_worker ? &engine->live : NULL, engine->options.rank, &session->program,
                                     error);
    if (status != SLUICE_OK)
        return status;
    session->delivery = slc_allocate_zeroed(count, sizeof *session->delivery);
    session->asked = slc_allocate_zeroed(count, sizeof *session->asked);
    if (session->delivery == NULL || session->asked == NULL)
        return slc_fail_memory(error, "runtime", "the state of an update", count * 5);
    status = slc_transport_find(engine->options.transport == NULL ? "host" : engine->options.transport, &session->ops, error);
    if (status != SLUICE_OK)
        return status;
    slc_transport_config config = { .rank = engine->options.rank,
                                    .trainers = session->info.trainers,
                                    .workers = session->info.world_size - session->info.trainers,
                                    .plan = session->plan,
                                    .program = &session->program,
                                    .live = session->is_worker ? &engine->live : NULL,
                                    .source = (const void *const *)session->shard,
                                    .region = session->is_worker ? NULL : engine->region,
                                    .nregions = session->is_worker ? 0 : engine->nregions,
                                    .road = engine->options.road,
                                    .log = engine->log };
    status = session->ops->open(&config, &session->transport, error);
    if (status == SLUICE_OK && session->is_worker && session->totals.full > 0)
        status = slc_staging_create(engine, engine->options.staging_slots, session->totals.largest_full_bytes, &session->staging, error);
    return status;
}

/* ---- agreement 3 and 4 ---- */

static sluice_status agree_on_settings(struct stages *stages, sluice_error *error)
{
    slc_session *session = stages->session;
    const sluice_options *options = &stages->engine->options;
    char unique_id[SLC_DIGEST_TEXT] = "none";
    sluice_error failed = SLUICE_ERROR_INIT;
    if (session->info.has_unique_id) /* its digest may be told, the id never */
        (void)slc_digest(session->info.unique_id, sizeof session->info.unique_id, unique_id, &failed);
    slc_buffer lines = { 0 };
    slc_buffer_text(&lines, "library=%s\ntransport=%s\nunique_id=%s\nmax_cta=%d\nbeat_s=%g\n", SLUICE_VERSION_TEXT,
                    options->transport == NULL ? "host" : options->transport, unique_id, session->info.max_cta, options->beat_s);
    if (session->transport != NULL) { /* a rank whose preparation failed says that in the next round, and no settings in this one */
        slc_buffer_text(&lines, "plan=%s\n", session->commit_token);
        if (failed.status == SLUICE_OK)
            (void)session->ops->must_match(session->transport, &lines, &failed);
    } else {
        lines.length = 0;
    }
    if (lines.failed)
        slc_fail_memory(&failed, "data plane", "settings", lines.length);
    sluice_status status = slc_agree_on_settings(session->group, "data plane", &failed, &lines, stages->deadline, error);
    slc_buffer_clear(&lines);
    return status;
}

static sluice_status agree_on_runtime(struct stages *stages, sluice_error *error)
{
    return slc_agree_on_version(stages->engine, &stages->mine, stages->deadline, error);
}

/* ---- connect ---- */

/* A rank that waits for a peer must not wait for one that has given up: it goes on to the round, and hears there. */
static sluice_status check_connecting(void *context, sluice_error *error)
{
    struct stages *stages = context;
    slc_watch watch = slc_engine_watch(stages->engine);
    sluice_status status = watch.check(watch.context, error);
    if (status != SLUICE_OK || !slc_group_recalled(stages->session->group))
        return status;
    stages->recalled = true;
    return slc_fail(error, SLUICE_PEER, "connect", "another rank cannot connect");
}

static sluice_status connect_peers(struct stages *stages, sluice_error *error)
{
    slc_session *session = stages->session;
    const slc_program *program = &session->program;
    slc_buffer card = { 0 }, store = { 0 };
    const unsigned char **cards = slc_allocate_zeroed(program->npeers, sizeof *cards);
    size_t *lengths = slc_allocate_zeroed(program->npeers, sizeof *lengths);
    if (cards == NULL || lengths == NULL)
        slc_fail_memory(&stages->mine, "connect", "cards", program->npeers * 16);
    else
        (void)session->ops->card(session->transport, &card, &stages->mine);
    sluice_status status = slc_group_exchange(session->group, "connect", &stages->mine, card.data, card.length, program->peer,
                                              program->npeers, &store, cards, lengths, stages->deadline, error);
    if (status == SLUICE_OK) {
        enter(stages, "meets its peers");
        slc_watch watch = { .check = check_connecting, .context = stages };
        (void)session->ops->connect(session->transport, cards, lengths, stages->deadline, watch, &stages->mine);
        if (stages->recalled)
            stages->mine = (sluice_error)SLUICE_ERROR_INIT;
        status = slc_group_round(session->group, "connect", &stages->mine, NULL, 0, NULL, NULL, NULL, stages->deadline, error);
    }
    slc_release((void *)cards);
    slc_release(lengths);
    slc_buffer_clear(&card);
    slc_buffer_clear(&store);
    return status;
}

/* ---- the way through ---- */

static sluice_status pass_stages(struct stages *stages, const char *json, size_t length, sluice_error *error)
{
    slc_session *session = stages->session;
    double began = slc_now_s();
    sluice_status status = read_init_info(stages, json, length, error);
    double planning = slc_now_s() - began;
    if (status == SLUICE_OK) {
        enter(stages, "joins");
        status = join(stages, error);
    }
    if (status == SLUICE_OK) {
        enter(stages, "round 1, source");
        status = agree_on_source(stages, error);
    }
    if (status == SLUICE_OK) {
        enter(stages, "round 2, destination");
        status = agree_on_destination(stages, error);
    }
    if (status == SLUICE_OK && stages->mine.status == SLUICE_OK) {
        double compiling = slc_now_s();
        (void)compile(stages, &stages->mine);
        planning += slc_now_s() - compiling;
    }
    if (status == SLUICE_OK) {
        enter(stages, "round 3, data plane");
        status = agree_on_settings(stages, error);
    }
    if (status == SLUICE_OK) {
        enter(stages, "round 4, runtime");
        status = agree_on_runtime(stages, error);
    }
    if (status == SLUICE_OK) {
        enter(stages, "opens the transport");
        status = connect_peers(stages, error);
    }
    session->seconds_planning = planning;
    session->seconds_init = slc_now_s() - began;
    return status;
}

sluice_status sluice_init(sluice_engine *engine, const char *init_info, size_t length, sluice_error *error)
{
    if (engine->state != SLUICE_STATE_NEW)
        return slc_fail(error, SLUICE_STATE, "init", "the engine is %s; call shutdown before a second init", sluice_state_text(engine->state));
    if (slc_flag_raised(&engine->cancelled))
        return slc_fail(error, SLUICE_CANCELLED, "init", "cancelled");
    if (init_info == NULL)
        return slc_fail(error, SLUICE_INVALID, "init", "init_info (NULL) must be JSON");
    slc_session *session = slc_secret_allocate(sizeof *session); /* it holds the unique id */
    if (session == NULL)
        return slc_fail_memory(error, "init", "a session", sizeof *session);
    engine->session = session;
    sluice_error found = SLUICE_ERROR_INIT; /* the caller may not want one; the stages always do */
    struct stages stages = { .engine = engine, .session = session, .mine = SLUICE_ERROR_INIT };
    sluice_status status = pass_stages(&stages, init_info, length, &found);
    if (status != SLUICE_OK) {
        if (session->group == NULL && found.rank < 0)
            found.rank = engine->options.rank; /* nobody was met: it is this rank's own */
        engine->session = NULL;
        slc_session_destroy(session);
        return slc_error_copy(error, &found);
    }
    /* Only a plan is needed from here on: Lua is not on the path of the bytes. What a worker's rules were answers questions. */
    if (session->is_worker)
        slc_script_collect(session->script);
    else {
        slc_script_destroy(session->script);
        session->script = NULL;
    }
    engine->state = SLUICE_STATE_READY;
    slc_take_version(engine);
    slc_say(&engine->log, SLUICE_LOG_INFO, "init: ready in %.3f s (%.3f s planning): %zu direct, %zu full, %zu alias, %zu skipped",
            session->seconds_init, session->seconds_planning, session->totals.direct, session->totals.full, session->totals.alias,
            session->totals.skip);
    return SLUICE_OK;
}

sluice_status sluice_seal_init_info(const char *json, size_t length, char **sealed, sluice_error *error)
{
    *sealed = NULL;
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
