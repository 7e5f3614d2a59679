/*
 * update.c: an update from start to finish. A batch goes one way: preflight (local, refused at once), agreement, move, done.
 * Nothing moves before every rank agreed on the names; a rank returns only when every rank is done, so that trainers may
 * change sources.
 */
#include "base/text.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

static const int64_t PROGRESS_EVERY_NS = 50000000;

/* ---- what the rest of the engine asks for ---- */

static sluice_status check_watch(void *context, sluice_error *error)
{
    sluice_engine *engine = context;
    if (slc_flag_raised(&engine->cancelled))
        return slc_fail(error, SLUICE_CANCELLED, engine->state == SLUICE_STATE_NEW     ? "init"
                                                 : engine->state == SLUICE_STATE_READY ? "reload"
                                                                                       : "update", "cancelled");
    return slc_group_check(engine->session->group, error);
}

slc_watch slc_engine_watch(sluice_engine *engine)
{
    return (slc_watch){ .check = check_watch, .context = engine };
}

void slc_progress_say(sluice_engine *engine, bool last)
{
    slc_session *session = engine->session;
    if (engine->options.callbacks.progress == NULL)
        return;
    int64_t now = slc_now_ns();
    if (!last && now - session->progress_at_ns < PROGRESS_EVERY_NS)
        return;
    session->progress_at_ns = now;
    engine->options.callbacks.progress(engine->options.callbacks.user, &session->progress);
}

sluice_status slc_move(sluice_engine *engine, uint32_t index, void *slot, slc_deadline deadline, sluice_error *error)
{
    slc_session *session = engine->session;
    const slc_build *build = session->build;
    const slc_segment *segment = &build->program.segment[index];
    sluice_status status = build->ops->run(build->transport, segment, slot, deadline, slc_engine_watch(engine), error);
    if (status != SLUICE_OK)
        return status;
    session->progress.bytes_done += (uint64_t)segment->bytes;
    session->progress.params_done++;
    slc_board_done(&engine->board, session->progress.bytes_done, session->progress.params_done);
    slc_progress_say(engine, false);
    return SLUICE_OK;
}

/* ---- start ---- */

sluice_status sluice_start_update(sluice_engine *engine, bool partial, sluice_error *error)
{
    sluice_status status = slc_engine_enter(engine, SLUICE_STATE_READY, "update", "start_update", error);
    if (status != SLUICE_OK)
        return status;
    slc_session *session = engine->session;
    if (partial && engine->dirty) {
        status = slc_fail(error, SLUICE_STATE, "update", "a partial update is refused until a whole one is finished: %s",
                          session->unfinished);
    } else {
        memset(session->delivery, SLC_UNTOUCHED, slc_plan_count(session->build->plan));
        slc_habit_begin(session);
        session->partial = partial;
        session->reloading = false;
        engine->state = SLUICE_STATE_UPDATING;
    }
    slc_engine_leave(engine);
    return status;
}

/* ---- a batch ---- */

/* What a call asks for: names, or a recording of them; or nothing, and why. */
typedef struct batch {
    const char *const *names;
    size_t count;
    bool replays;
    sluice_recording number;
    const char *refusal;
    /* found by preflight */
    const slc_recording *recording;
    const slc_known *known; /* of the recording, or since the last update asked for these names, too; else NULL */
    bool full;              /* one of them is */
} batch;

static sluice_status index_of(const slc_session *session, const batch *asked, size_t i, size_t *index, sluice_error *error)
{
    if (asked->known != NULL) {
        *index = asked->known->param[i];
        return SLUICE_OK;
    }
    if (asked->names[i] == NULL)
        return slc_fail(error, SLUICE_INVALID, "update", "names[%zu] (NULL) must be a string", i);
    *index = slc_plan_find(session->build->plan, asked->names[i]);
    return *index != SIZE_MAX ? SLUICE_OK : slc_fail(error, SLUICE_INVALID, "update", "names[%zu] ('%.1000s') was not announced at init", i,
                                                     asked->names[i]);
}

/* Every name known, none twice in this update. Marks what is asked; forget_batch takes that back. */
static sluice_status mark(slc_session *session, const batch *asked, sluice_error *error)
{
    for (size_t i = 0; i < asked->count; i++) {
        size_t index;
        sluice_status status = index_of(session, asked, i, &index, error);
        if (status != SLUICE_OK)
            return status;
        if (session->delivery[index] != SLC_UNTOUCHED)
            return slc_fail(error, SLUICE_INVALID, "update", "names[%zu] ('%s') comes a second time in this update", i,
                            slc_plan_at(session->build->plan, index)->name);
        session->delivery[index] = SLC_ASKED;
        session->asked[session->nasked++] = (uint32_t)index;
        session->progress.bytes_total += (uint64_t)session->build->program.segment[index].bytes;
    }
    return SLUICE_OK;
}

static bool batch_has(const slc_session *session, slc_mode mode)
{
    for (size_t i = 0; i < session->nasked; i++)
        if (slc_plan_at(session->build->plan, session->asked[i])->mode == mode)
            return true;
    return false;
}

/* All that can be said of a batch before anybody is asked. */
static sluice_status preflight(slc_session *session, batch *asked, sluice_error *error)
{
    const slc_build *build = session->build;
    sluice_status status = SLUICE_OK;
    session->nasked = 0;
    session->progress = (sluice_progress){ .params_total = asked->count };
    if (asked->refusal != NULL) {
        status = slc_fail(error, SLUICE_INVALID, "update", "%.2000s", asked->refusal);
    } else if (asked->replays) {
        status = slc_recording_find(session, asked->number, &asked->recording, error);
        asked->known = status == SLUICE_OK ? &asked->recording->list : NULL;
        asked->count = status == SLUICE_OK ? asked->known->count : 0;
        session->progress.params_total = asked->count;
    } else if (asked->names == NULL && asked->count > 0) {
        status = slc_fail(error, SLUICE_INVALID, "update", "names (NULL) must be a list of %zu strings", asked->count);
    } else {
        asked->known = slc_habit_find(session, asked->names, asked->count);
    }
    if (status == SLUICE_OK)
        status = mark(session, asked, error);
    asked->full = asked->known != NULL ? asked->known->full : batch_has(session, SLC_MODE_FULL);
    return status == SLUICE_OK ? build->ops->ready(build->transport, session->asked, session->nasked, error) : status;
}

static void forget_batch(slc_session *session)
{
    for (size_t i = 0; i < session->nasked; i++)
        session->delivery[session->asked[i]] = SLC_UNTOUCHED;
    session->nasked = 0;
}

static void name_line(const void *context, size_t index, char *text, size_t size)
{
    const slc_session *session = context;
    snprintf(text, size, "'%s'", slc_plan_at(session->build->plan, session->asked[index])->name);
}

/* Over the batch's number and the digest of its names, which may be known already. */
static sluice_status digest_batch(const slc_session *session, const slc_known *known, char names[SLC_DIGEST_TEXT],
                                  char digest[SLC_DIGEST_TEXT], sluice_error *error)
{
    char text[SLC_DIGEST_TEXT + 32];
    if (known != NULL) {
        memcpy(names, known->names, SLC_DIGEST_TEXT);
    } else {
        sluice_status status = slc_names_digest(session->build->plan, session->asked, session->nasked, names, error);
        if (status != SLUICE_OK)
            return status;
    }
    int length = snprintf(text, sizeof text, "%llu\n%s", (unsigned long long)session->batch, names);
    return slc_digest(text, (size_t)length, digest, error);
}

/* The same names in the same order as the same batch on every rank, or a refusal that changes nothing. */
static sluice_status agree_on_batch(sluice_engine *engine, const batch *asked, const sluice_error *mine, slc_deadline deadline,
                                    sluice_error *error)
{
    slc_session *session = engine->session;
    char names[SLC_DIGEST_TEXT], digest[SLC_DIGEST_TEXT] = "";
    sluice_error failed = SLUICE_ERROR_INIT;
    if (mine->status != SLUICE_OK)
        slc_error_copy(&failed, mine);
    else
        (void)digest_batch(session, asked->known, names, digest, &failed);
    slc_list list = { .what = "name", .count = session->nasked, .line = name_line, .context = session };
    if (digest[0] == '\0') /* an error is said in place of a list */
        list.count = SIZE_MAX;
    sluice_status status = slc_agree_on_list(session->group, "update", &failed, digest, &list, NULL, deadline, error);
    if (status == SLUICE_OK && asked->recording == NULL)
        slc_habit_keep(session, asked->known, asked->full, names);
    return status;
}

sluice_status slc_callback_failed(const char *stage, const char *call, sluice_error *said, sluice_error *error)
{
    said->text[sizeof said->text - 1] = '\0'; /* it is the host that wrote it */
    return slc_fail(error, SLUICE_CALLBACK, stage, "%s failed%s%s", call, said->text[0] == '\0' ? "" : ": ", said->text);
}

static sluice_status begin_reload(sluice_engine *engine, sluice_error *error)
{
    slc_session *session = engine->session;
    const sluice_callbacks *callbacks = &engine->options.callbacks;
    if (session->reloading || callbacks->reload_begin == NULL)
        return SLUICE_OK;
    sluice_error said = SLUICE_ERROR_INIT;
    if (callbacks->reload_begin(callbacks->user, &said) != SLUICE_OK)
        return slc_callback_failed("update", "reload_begin", &said, error);
    session->reloading = true;
    return SLUICE_OK;
}

/* All at once, out of what was made ready. */
static sluice_status replay(sluice_engine *engine, slc_record *record, slc_deadline deadline, sluice_error *error)
{
    slc_session *session = engine->session;
    const slc_build *build = session->build;
    sluice_status status = build->ops->replay(build->transport, record, deadline, slc_engine_watch(engine), error);
    if (status == SLUICE_OK) {
        session->progress.bytes_done = session->progress.bytes_total;
        session->progress.params_done = session->progress.params_total;
    }
    return status;
}

static sluice_status launch_host(sluice_engine *engine, const slc_recording *recording, sluice_error *error)
{
    const sluice_callbacks *callbacks = &engine->options.callbacks;
    sluice_error said = SLUICE_ERROR_INIT;
    return callbacks->launch(callbacks->user, recording->number, &said) == SLUICE_OK
               ? SLUICE_OK
               : slc_callback_failed("update", "launch", &said, error);
}

/* The transport's batch is open on a trainer already: its sources had to be final before anybody agreed. */
static sluice_status move_batch(sluice_engine *engine, const batch *asked, slc_deadline deadline, sluice_error *error)
{
    const slc_recording *recording = asked->recording;
    slc_session *session = engine->session;
    const slc_build *build = session->build;
    slc_watch watch = slc_engine_watch(engine);
    bool pulls = session->is_worker && asked->full;
    sluice_status status = SLUICE_OK;
    if (pulls)
        status = begin_reload(engine, error);
    if (status == SLUICE_OK && recording != NULL && recording->placed)
        status = build->ops->gate(build->transport, error);
    if (status == SLUICE_OK && session->is_worker)
        status = build->ops->begin(build->transport, deadline, watch, error);
    if (status == SLUICE_OK && recording != NULL && recording->placed)
        status = launch_host(engine, recording, error);
    if (status != SLUICE_OK)
        return status;
    if (pulls)
        return slc_staging_run(engine, deadline, error);
    if (recording != NULL && recording->record != NULL && !asked->full)
        status = replay(engine, recording->record, deadline, error);
    else
        for (size_t i = 0; i < session->nasked && status == SLUICE_OK; i++)
            status = slc_move(engine, session->asked[i], NULL, deadline, error);
    return status == SLUICE_OK ? build->ops->end(build->transport, deadline, watch, error) : status;
}

/*
 * What is wrong with this rank's own call is known before it waits for anybody. The others hear it in the round that they
 * come to.
 */
static sluice_status refuse_here(sluice_engine *engine, const sluice_error *mine, slc_deadline deadline, sluice_error *error)
{
    if (slc_group_say(engine->session->group, mine->stage, mine, deadline, error) != SLUICE_OK)
        return slc_engine_fail(engine, error);
    slc_error_copy(error, mine);
    error->rank = engine->options.rank;
    return error->status;
}

/* A refused batch leaves the update open; a group that broke on the way does not. */
static sluice_status refuse_batch(sluice_engine *engine, bool begun, slc_deadline deadline, sluice_error *error)
{
    slc_session *session = engine->session;
    const slc_build *build = session->build;
    sluice_error ended = SLUICE_ERROR_INIT;
    if (slc_group_broken(session->group))
        return slc_engine_fail(engine, error);
    forget_batch(session);
    if (begun && build->ops->end(build->transport, deadline, slc_engine_watch(engine), &ended) != SLUICE_OK) {
        slc_error_copy(error, &ended);
        return slc_engine_fail(engine, error);
    }
    return error->status;
}

/* A transport that cannot tell whom it waited for ends a little early: the round behind the batch shows who does not come. */
static void name_the_late(slc_session *session, slc_deadline deadline, sluice_error *error)
{
    sluice_error mine = *error;
    (void)slc_group_round(session->group, "update", &mine, NULL, 0, NULL, NULL, NULL, deadline, error);
}

static sluice_status run_batch(sluice_engine *engine, batch *asked, sluice_error *error)
{
    slc_session *session = engine->session;
    const slc_build *build = session->build;
    slc_deadline deadline = slc_engine_deadline(engine, engine->options.timeouts.update);
    sluice_error mine = SLUICE_ERROR_INIT;
    if (preflight(session, asked, &mine) != SLUICE_OK) {
        forget_batch(session);
        return refuse_here(engine, &mine, deadline, error);
    }
    bool begun = !session->is_worker && build->ops->begin(build->transport, deadline, slc_engine_watch(engine), &mine) == SLUICE_OK;
    if (agree_on_batch(engine, asked, &mine, deadline, error) != SLUICE_OK)
        return refuse_batch(engine, begun, deadline, error);
    session->batch++;
    /* From here on a worker may write, and a trainer into it, any part of the batch, whether this rank learns of it or not. */
    for (size_t i = 0; i < session->nasked; i++)
        session->delivery[session->asked[i]] = SLC_TORN;
    engine->dirty = engine->dirty || asked->full || batch_has(session, SLC_MODE_DIRECT);
    slc_engine_post(engine);
    if (move_batch(engine, asked, deadline, error) != SLUICE_OK) {
        /* A peer that is gone may have ended because of what the group knows already: then that is the cause. */
        if (error->status == SLUICE_TIMEOUT && error->rank < 0)
            name_the_late(session, deadline, error);
        else if (error->status == SLUICE_PEER || error->status == SLUICE_TIMEOUT)
            (void)slc_group_check(session->group, error);
        else if (error->rank < 0)
            error->rank = engine->options.rank;
        return slc_engine_fail(engine, error);
    }
    if (slc_group_round(session->group, "update", NULL, NULL, 0, NULL, NULL, NULL, deadline, error) != SLUICE_OK)
        return slc_engine_fail(engine, error);
    for (size_t i = 0; i < session->nasked; i++)
        session->delivery[session->asked[i]] = SLC_COMPLETE;
    slc_progress_say(engine, true);
    return SLUICE_OK;
}

static sluice_status run(sluice_engine *engine, const char *call, batch asked, sluice_error *error)
{
    sluice_status status = slc_engine_enter(engine, SLUICE_STATE_UPDATING, "update", call, error);
    if (status != SLUICE_OK)
        return status;
    sluice_error found = SLUICE_ERROR_INIT;
    status = run_batch(engine, &asked, &found);
    slc_engine_leave(engine);
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &found);
}

sluice_status sluice_update(sluice_engine *engine, const char *const *names, size_t count, sluice_error *error)
{
    return run(engine, "update", (batch){ .names = names, .count = count }, error);
}

sluice_status sluice_replay(sluice_engine *engine, sluice_recording recording, sluice_error *error)
{
    return run(engine, "replay", (batch){ .number = recording, .replays = true }, error);
}

sluice_status sluice_refuse_update(sluice_engine *engine, const char *why, sluice_error *error)
{
    bool said = why != NULL && *why != '\0' && slc_text_is_utf8(why);
    return run(engine, "refuse_update", (batch){ .refusal = said ? why : "refused by the host, which gave no reason in UTF-8" }, error);
}

/* ---- finish ---- */

static sluice_status check_label(const char *version, sluice_error *error)
{
    size_t length = version == NULL ? 0 : strnlen(version, SLUICE_LABEL_BYTES);
    bool plain = length >= 1 && length < SLUICE_LABEL_BYTES && slc_text_is_utf8(version);
    for (size_t i = 0; i < length && plain; i++)
        plain = (unsigned char)version[i] >= 0x20 && version[i] != 0x7f;
    if (!plain)
        return slc_fail(error, SLUICE_INVALID, "finish", "version must be a label of 1 to 255 bytes of UTF-8 without control characters");
    if (strcmp(version, "dirty") == 0)
        return slc_fail(error, SLUICE_INVALID, "finish", "version ('dirty') is the label of an unfinished update; choose another");
    return SLUICE_OK;
}

/* A quantized weight with the scale of an earlier update, or the other way round, is worse than neither. */
static sluice_status check_companions(const slc_session *session, sluice_error *error)
{
    const slc_plan *plan = session->build->plan;
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        bool came = session->delivery[i] == SLC_COMPLETE;
        for (size_t k = 0; k < param->ncompanions; k++) {
            const slc_param *other = slc_plan_at(plan, param->companion[k]);
            if (came != (session->delivery[param->companion[k]] == SLC_COMPLETE))
                return slc_fail(error, SLUICE_INVALID, "finish", "'%s' has come in this update, '%s' has not; they are companions (%s)",
                                came ? param->name : other->name, came ? other->name : param->name, param->where);
        }
    }
    return SLUICE_OK;
}

static sluice_status check_complete(const slc_session *session, sluice_error *error)
{
    size_t missing = 0, first = 0, count = slc_plan_count(session->build->plan);
    for (size_t i = 0; i < count; i++)
        if (session->delivery[i] != SLC_COMPLETE && missing++ == 0)
            first = i;
    if (session->partial)
        return check_companions(session, error);
    if (missing == 0)
        return SLUICE_OK;
    return slc_fail(error, SLUICE_INVALID, "finish", "%zu of %zu parameters have not come in this update, the first is '%s'", missing, count,
                    slc_plan_at(session->build->plan, first)->name);
}

/* Workers end the host's reload; the last round tells every rank, trainers too, whether that went well everywhere. */
static sluice_status end_reload(sluice_engine *engine, slc_deadline deadline, sluice_error *error)
{
    slc_session *session = engine->session;
    const sluice_callbacks *callbacks = &engine->options.callbacks;
    if (session->build->totals.full == 0)
        return SLUICE_OK;
    sluice_error mine = SLUICE_ERROR_INIT, said = SLUICE_ERROR_INIT;
    if (session->reloading && callbacks->reload_end != NULL && callbacks->reload_end(callbacks->user, &said) != SLUICE_OK)
        slc_callback_failed("finish", "reload_end", &said, &mine);
    session->reloading = false;
    return slc_group_round(session->group, "finish", &mine, NULL, 0, NULL, NULL, NULL, deadline, error);
}

static sluice_status finish(sluice_engine *engine, const char *version, sluice_error *error)
{
    slc_session *session = engine->session;
    slc_deadline deadline = slc_engine_deadline(engine, engine->options.timeouts.finish);
    sluice_error mine = SLUICE_ERROR_INIT;
    slc_buffer lines = { 0 };
    if (check_label(version, &mine) != SLUICE_OK || check_complete(session, &mine) != SLUICE_OK)
        return refuse_here(engine, &mine, deadline, error);
    if (!slc_buffer_text(&lines, "version=%s\npartial=%d\n", version, session->partial))
        slc_fail_memory(&mine, "finish", "a label", SLUICE_LABEL_BYTES);
    sluice_status status = slc_agree_on_settings(session->group, "finish", &mine, &lines, deadline, error);
    slc_buffer_clear(&lines);
    if (status != SLUICE_OK)
        return slc_group_broken(session->group) ? slc_engine_fail(engine, error) : status;
    status = end_reload(engine, deadline, error);
    if (status != SLUICE_OK)
        return slc_engine_fail(engine, error);
    slc_label_set(engine, version);
    engine->dirty = false;
    engine->state = SLUICE_STATE_READY;
    return SLUICE_OK;
}

sluice_status sluice_finish_update(sluice_engine *engine, const char *version, sluice_error *error)
{
    sluice_status status = slc_engine_enter(engine, SLUICE_STATE_UPDATING, "update", "finish_update", error);
    if (status != SLUICE_OK)
        return status;
    sluice_error found = SLUICE_ERROR_INIT;
    status = finish(engine, version, &found);
    slc_engine_leave(engine);
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &found);
}
