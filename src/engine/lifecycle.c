/* lifecycle.c: how things end: a failure that every rank learns of, abort, cancel, shutdown. */
#include "engine/engine.h"

#include <string.h>
#include <unistd.h>

slc_deadline slc_engine_deadline(const sluice_engine *engine, double phase_s)
{
    return slc_deadline_in(phase_s > 0 ? phase_s : engine->options.timeout_s);
}

sluice_status slc_engine_must_be(const sluice_engine *engine, sluice_state state, const char *stage, const char *call, sluice_error *error)
{
    if (slc_flag_raised(&engine->cancelled))
        return slc_fail(error, SLUICE_CANCELLED, stage, "cancelled; only shutdown is allowed");
    if (engine->state == state)
        return SLUICE_OK;
    return slc_fail(error, SLUICE_STATE, stage, "%s wants the engine %s; it is %s", call, sluice_state_text(state),
                    sluice_state_text(engine->state));
}

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
    slc_say(&engine->log, SLUICE_LOG_ERROR, "%s", cause->text);
    if (session->build->transport != NULL)
        session->build->ops->abort(session->build->transport);
    slc_group_abort(session->group, cause);
    return cause->status;
}

void slc_session_destroy(slc_session *session)
{
    slc_build_clear(session->build);
    slc_group_leave(session->group);
    slc_release((void *)session->shard);
    slc_release(session->delivery);
    slc_release(session->asked);
    slc_secret_release(session, sizeof *session);
}

sluice_status sluice_abort_update(sluice_engine *engine, sluice_error *error)
{
    if (engine->state != SLUICE_STATE_UPDATING)
        return slc_fail(error, SLUICE_STATE, "abort", "abort_update wants the engine updating; it is %s", sluice_state_text(engine->state));
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_fail(&cause, SLUICE_CANCELLED, "abort", "rank %d gave the update up", engine->options.rank);
    cause.rank = engine->options.rank;
    (void)slc_engine_fail(engine, &cause);
    return SLUICE_OK;
}

void sluice_cancel(sluice_engine *engine)
{
    slc_flag_set(&engine->cancelled, true);
}

sluice_status sluice_shutdown(sluice_engine *engine, sluice_error *error)
{
    (void)error; /* nothing that is released here can fail; what cannot be said to a peer any more is logged */
    if (engine->session != NULL)
        slc_session_destroy(engine->session);
    engine->session = NULL;
    slc_flag_set(&engine->cancelled, false);
    engine->state = SLUICE_STATE_NEW;
    return SLUICE_OK;
}
