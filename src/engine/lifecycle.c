/* lifecycle.c: how things end: a failure that every rank learns of, abort, cancel, shutdown. */
#include "engine/engine.h"

#include "base/given.h"

#include <string.h>
#include <unistd.h>

slc_deadline slc_engine_deadline(const sluice_engine *engine, double phase_s)
{
    return slc_deadline_in(phase_s > 0 ? phase_s : engine->options.timeout_s);
}

/* ---- who may call ---- */

sluice_status slc_engine_here(const sluice_engine *engine, const char *stage, const char *call, sluice_error *error)
{
    if (engine->process == getpid())
        return SLUICE_OK;
    return slc_fail(error, SLUICE_STATE, stage, "%s in a forked child: the engine is that of process %d", call, (int)engine->process);
}

sluice_status slc_engine_claim(sluice_engine *engine, const char *stage, const char *call, sluice_error *error)
{
    if (!slc_given_error(error)) {
        slc_say(&engine->log, SLUICE_LOG_ERROR, "%s: error.size (%u) must be at least %zu; start from SLUICE_ERROR_INIT", call, error->size,
                sizeof *error);
        return SLUICE_INVALID;
    }
    sluice_status status = slc_engine_here(engine, stage, call, error);
    if (status != SLUICE_OK)
        return status;
    if (__atomic_exchange_n(&engine->busy, true, __ATOMIC_ACQUIRE))
        return slc_fail(error, SLUICE_STATE, stage, "%s within another call of the same engine: a callback must not make it, nor a second thread",
                        call);
    return SLUICE_OK;
}

void slc_engine_leave(sluice_engine *engine)
{
    engine->stage = NULL;
    slc_engine_post(engine);
    __atomic_store_n(&engine->busy, false, __ATOMIC_RELEASE);
}

sluice_status slc_engine_enter(sluice_engine *engine, sluice_state state, const char *stage, const char *call, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, stage, call, error);
    if (status != SLUICE_OK)
        return status;
    if (slc_flag_raised(&engine->cancelled)) {
        sluice_error cause = SLUICE_ERROR_INIT;
        status = slc_fail(&cause, SLUICE_CANCELLED, stage, "cancelled");
        if (engine->state == SLUICE_STATE_READY || engine->state == SLUICE_STATE_UPDATING)
            (void)slc_engine_fail(engine, &cause);
        slc_fail(error, status, stage, "cancelled; only shutdown is allowed");
    } else if (engine->state != state) {
        status = slc_fail(error, SLUICE_STATE, stage, "%s wants the engine %s; it is %s", call, sluice_state_text(state),
                          sluice_state_text(engine->state));
    }
    if (status != SLUICE_OK)
        slc_engine_leave(engine);
    return status;
}

/* ---- the end ---- */

void slc_close_listener(sluice_engine *engine)
{
    if (engine->options.listen_fd >= 0)
        close(engine->options.listen_fd);
    engine->options.listen_fd = -1;
}

sluice_status slc_engine_fail(sluice_engine *engine, const sluice_error *cause)
{
    slc_session *session = engine->session;
    engine->state = SLUICE_STATE_FAILED;
    slc_engine_post(engine);
    if (session->build->transport != NULL)
        session->build->ops->abort(session->build->transport);
    slc_group_abort(session->group, cause);
    return cause->status;
}

void slc_session_destroy(slc_session *session)
{
    slc_recordings_clear(session);
    slc_habit_clear(&session->habit);
    slc_build_clear(session->build);
    slc_group_leave(session->group);
    slc_release((void *)session->shard);
    slc_release(session->delivery);
    slc_release(session->asked);
    slc_secret_release(session, sizeof *session);
}

sluice_status sluice_abort_update(sluice_engine *engine, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, "abort", "abort_update", error);
    if (status != SLUICE_OK)
        return status;
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_fail(&cause, SLUICE_CANCELLED, "abort", "the host gave the update up");
    cause.rank = engine->options.rank;
    if (engine->state == SLUICE_STATE_UPDATING)
        (void)slc_engine_fail(engine, &cause);
    else
        status = slc_fail(error, SLUICE_STATE, "abort", "abort_update wants the engine updating; it is %s",
                          sluice_state_text(engine->state));
    slc_engine_leave(engine);
    return status;
}

void sluice_cancel(sluice_engine *engine)
{
    slc_flag_set(&engine->cancelled, true);
}

void slc_engine_end(sluice_engine *engine)
{
    slc_attach_end(engine);
    if (engine->session != NULL)
        slc_session_destroy(engine->session);
    engine->session = NULL;
    slc_flag_set(&engine->cancelled, false);
    engine->state = SLUICE_STATE_NEW;
}

sluice_status sluice_shutdown(sluice_engine *engine, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, "shutdown", "shutdown", error);
    if (status != SLUICE_OK)
        return status;
    slc_engine_end(engine);
    slc_engine_leave(engine);
    return SLUICE_OK;
}
