/*
 * recording.c: lists of parameters that are moved again and again: what can be looked up, checked and made ready is, once. A
 * replay is a batch as any other (update.c); before it, what the recording was made of is held against what there is now.
 * Owns the recordings of a session.
 */
#include "engine/engine.h"

#include <inttypes.h>
#include <string.h>

static const char RECORD[] = "record", UPDATE[] = "update";

sluice_status slc_names_digest(const slc_plan *plan, const uint32_t *param, size_t count, char digest[SLC_DIGEST_TEXT], sluice_error *error)
{
    slc_buffer text = { 0 };
    for (size_t i = 0; i < count; i++)
        slc_buffer_string(&text, slc_plan_at(plan, param[i])->name);
    sluice_status status = text.failed ? slc_fail_memory(error, UPDATE, "the names of a batch", text.length)
                                       : slc_digest(text.data, text.length, digest, error);
    slc_buffer_clear(&text);
    return status;
}

/* ---- the table ---- */

/* Where the engine's `number`-th recording stands; session->nrecordings where it is none that can be replayed. */
static size_t find(const slc_session *session, sluice_recording number)
{
    size_t at = 0;
    while (at < session->nrecordings && session->recording[at]->number != number)
        at++;
    return at;
}

static void release(slc_session *session, slc_recording *recording)
{
    if (recording->record != NULL && recording->plan == session->plans)
        session->build->ops->forget(session->build->transport, recording->record);
    slc_release(recording->list.param);
    slc_release((void *)recording->source);
    slc_release(recording);
}

void slc_recordings_clear(slc_session *session)
{
    for (size_t i = 0; i < session->nrecordings; i++)
        release(session, session->recording[i]);
    slc_release((void *)session->recording);
    session->recording = NULL;
    session->nrecordings = session->recording_capacity = 0;
}

static sluice_status keep(sluice_engine *engine, slc_recording *recording, sluice_error *error)
{
    slc_session *session = engine->session;
    if (!SLC_ROOM(session->recording, session->recording_capacity, session->nrecordings, 8))
        return slc_fail_memory(error, RECORD, "the recordings", (session->nrecordings + 1) * sizeof *session->recording);
    recording->number = ++engine->recordings;
    session->recording[session->nrecordings++] = recording;
    return SLUICE_OK;
}

/* ---- record ---- */

/* Names to indices, none twice; NULL and 0 names the whole plan. */
static sluice_status look_up(const slc_plan *plan, const char *const *names, size_t count, slc_recording *recording, uint8_t *seen,
                             sluice_error *error)
{
    recording->list.count = count;
    for (size_t i = 0; i < count; i++) {
        size_t index = i;
        if (names != NULL && names[i] == NULL)
            return slc_fail(error, SLUICE_INVALID, RECORD, "names[%zu] (NULL) must be a string", i);
        if (names != NULL)
            index = slc_plan_find(plan, names[i]);
        if (index == SIZE_MAX)
            return slc_fail(error, SLUICE_INVALID, RECORD, "names[%zu] ('%.1000s') was not announced at init", i, names[i]);
        if (seen[index])
            return slc_fail(error, SLUICE_INVALID, RECORD, "names[%zu] ('%s') comes a second time", i, names[i]);
        seen[index] = 1;
        recording->list.param[i] = (uint32_t)index;
        recording->list.full = recording->list.full || slc_plan_at(plan, index)->mode == SLC_MODE_FULL;
    }
    return SLUICE_OK;
}

/* While a graph of the host's stands at its place, load_weights could do nothing on the host's stream. */
static sluice_status check_place(const sluice_engine *engine, const slc_recording *made, sluice_error *error)
{
    if (engine->options.callbacks.launch == NULL)
        return slc_fail(error, SLUICE_INVALID, RECORD,
                        "options.stream is being captured, and a recording made there wants callbacks.launch");
    return !made->list.full ? SLUICE_OK
                       : slc_fail(error, SLUICE_INVALID, RECORD,
                                  "options.stream is being captured, and full parameters cannot be recorded there: load_weights would "
                                  "wait for the graph that waits for it");
}

static sluice_status make(sluice_engine *engine, const char *const *names, size_t count, slc_recording *made, sluice_error *error)
{
    const slc_session *session = engine->session;
    const slc_build *build = session->build;
    uint8_t *seen = slc_allocate_zeroed(slc_plan_count(build->plan), 1);
    made->list.param = slc_allocate_zeroed(count, sizeof *made->list.param);
    made->source = slc_allocate_zeroed(count, sizeof *made->source);
    made->plan = session->plans;
    sluice_status status = seen == NULL || made->list.param == NULL || made->source == NULL
                               ? slc_fail_memory(error, RECORD, "a recording", count * (sizeof *made->list.param + sizeof *made->source))
                               : look_up(build->plan, names, count, made, seen, error);
    slc_release(seen);
    for (size_t i = 0; i < count && status == SLUICE_OK && !session->is_worker; i++)
        made->source[i] = session->shard[made->list.param[i]];
    if (status == SLUICE_OK)
        status = slc_names_digest(build->plan, made->list.param, count, made->list.names, error);
    if (status == SLUICE_OK)
        status = build->ops->captured(build->transport, &made->placed, error);
    if (status == SLUICE_OK && made->placed)
        status = check_place(engine, made, error);
    if (status == SLUICE_OK)
        status = build->ops->record(build->transport, made->list.param, count, &made->record, error);
    return status == SLUICE_OK && made->placed ? build->ops->place(build->transport, error) : status;
}

static sluice_status record(sluice_engine *engine, const char *const *names, size_t count, sluice_recording *number, sluice_error *error)
{
    slc_session *session = engine->session;
    if (names == NULL && count > 0)
        return slc_fail(error, SLUICE_INVALID, RECORD, "names (NULL) must be a list of %zu strings, or count 0 for the whole plan", count);
    if (count > slc_plan_count(session->build->plan))
        return slc_fail(error, SLUICE_INVALID, RECORD, "names (%zu) must be no more than the parameters announced (%zu)", count,
                        slc_plan_count(session->build->plan));
    slc_recording *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, RECORD, "a recording", sizeof *made);
    sluice_status status = make(engine, names, names == NULL ? slc_plan_count(session->build->plan) : count, made, error);
    if (status == SLUICE_OK)
        status = keep(engine, made, error);
    if (status == SLUICE_OK)
        *number = made->number;
    else
        release(session, made);
    return status;
}

/* Between batches, whether an update is open or not. */
static sluice_status enter(sluice_engine *engine, const char *call, sluice_error *error)
{
    return slc_engine_enter(engine, engine->state == SLUICE_STATE_UPDATING ? SLUICE_STATE_UPDATING : SLUICE_STATE_READY, RECORD, call,
                            error);
}

sluice_status sluice_record(sluice_engine *engine, const char *const *names, size_t count, sluice_recording *recording,
                            sluice_error *error)
{
    if (recording == NULL)
        return slc_fail(error, SLUICE_INVALID, RECORD, "recording (NULL) must point to where the recording goes");
    *recording = 0;
    sluice_status status = enter(engine, "record", error);
    if (status != SLUICE_OK)
        return status;
    status = record(engine, names, count, recording, error);
    slc_engine_leave(engine);
    return status;
}

static sluice_status unknown(sluice_recording number, const char *stage, sluice_error *error)
{
    return slc_fail(error, SLUICE_INVALID, stage,
                    "recording (%" PRIu64 ") is none of this engine's: it was forgotten, or made before a shutdown", number);
}

sluice_status sluice_forget_recording(sluice_engine *engine, sluice_recording recording, sluice_error *error)
{
    sluice_status status = enter(engine, "forget_recording", error);
    if (status != SLUICE_OK)
        return status;
    slc_session *session = engine->session;
    size_t at = find(session, recording);
    if (at == session->nrecordings) {
        status = unknown(recording, RECORD, error);
    } else {
        release(session, session->recording[at]);
        session->recording[at] = session->recording[--session->nrecordings];
    }
    slc_engine_leave(engine);
    return status;
}

/* ---- replay ---- */

sluice_status slc_recording_find(const slc_session *session, sluice_recording number, const slc_recording **recording, sluice_error *error)
{
    size_t at = find(session, number);
    *recording = at < session->nrecordings ? session->recording[at] : NULL;
    if (*recording == NULL)
        return unknown(number, UPDATE, error);
    if ((*recording)->plan != session->plans)
        return slc_fail(error, SLUICE_STATE, UPDATE,
                        "recording (%" PRIu64 ") is of the plan before sluice_reload_rules; forget it and record again", number);
    for (size_t i = 0; i < (*recording)->list.count && !session->is_worker; i++) {
        uint32_t index = (*recording)->list.param[i];
        if ((*recording)->source[i] != session->shard[index])
            return slc_fail(error, SLUICE_STATE, UPDATE,
                            "recording (%" PRIu64 "): source '%s' was registered anew, at %p instead of %p; forget it and record again",
                            number, slc_plan_at(session->build->plan, index)->name, session->shard[index], (*recording)->source[i]);
    }
    return SLUICE_OK;
}
