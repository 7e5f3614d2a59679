/*
 * staging.c: full parameters. A mover thread runs the batch in the order asked; each full parameter lands in a free slot
 * and waits there until load_weights pulls it, so that the next one moves while the host consumes the current one. The
 * slots are all the memory there is: a mover without a free slot waits for the host.
 *
 * The mover is the only user of the transport and the control connection while it runs; the caller's thread only waits on
 * the condition. Everything in slc_staging below `mutex` is read and written under it.
 */
#include "engine/engine.h"

#include "base/available.h"
#include "base/given.h"
#include "base/thread.h"

#include <pthread.h>
#include <string.h>

enum slot_state { FREE, FILLING, WAITING, LENT, KEPT };

struct slot {
    void *memory; /* the transport's */
    enum slot_state state;
    uint64_t number; /* order of arrival */
    sluice_tensor tensor;
};

struct slc_staging {
    sluice_engine *engine;
    uint32_t nslots;
    struct slot *slot;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    slc_deadline deadline;
    uint64_t arrived, taken, expected; /* full parameters of this batch */
    bool stop, moved; /* the host gave up; the mover is through */
    sluice_error error; /* the mover's */
};

struct sluice_weights {
    struct slc_staging *staging;
};

/* ---- slots ---- */

sluice_status slc_staging_create(sluice_engine *engine, slc_build *build, sluice_error *error)
{
    uint32_t slots = engine->options.staging_slots;
    size_t slot_bytes = (size_t)build->totals.largest_full_bytes;
    struct slc_staging *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, "runtime", "staging", sizeof *made);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    made->engine = engine;
    made->slot = slc_allocate_zeroed(slots, sizeof *made->slot);
    made->nslots = made->slot == NULL ? 0 : slots;
    void **memory = slc_allocate_zeroed(slots, sizeof *memory);
    sluice_status status = made->slot == NULL || memory == NULL
                               ? slc_fail_memory(error, "runtime", "staging slots", slots * sizeof *made->slot)
                               : build->ops->staging(build->transport, slots, slot_bytes, memory, error);
    for (uint32_t i = 0; status == SLUICE_OK && i < slots; i++)
        made->slot[i].memory = memory[i];
    slc_release((void *)memory);
    if (status != SLUICE_OK) {
        slc_staging_destroy(made);
        return status;
    }
    build->staging = made;
    return SLUICE_OK;
}

void slc_staging_destroy(struct slc_staging *staging)
{
    if (staging == NULL)
        return;
    slc_release(staging->slot);
    pthread_cond_destroy(&staging->changed);
    pthread_mutex_destroy(&staging->mutex);
    slc_release(staging);
}

static struct slot *find_slot(struct slc_staging *staging, enum slot_state state)
{
    struct slot *found = NULL;
    for (uint32_t i = 0; i < staging->nslots; i++) {
        struct slot *slot = &staging->slot[i];
        if (slot->state == state && (found == NULL || slot->number < found->number))
            found = slot;
    }
    return found;
}

/* Waits at most 50 ms for a change: every caller has something else to look at, too. Holds the mutex. */
static void wait_a_little(struct slc_staging *staging)
{
    int64_t at = slc_now_ns() + 50000000;
    struct timespec until = { .tv_sec = at / 1000000000, .tv_nsec = at % 1000000000 };
    pthread_cond_timedwait(&staging->changed, &staging->mutex, &until);
}

/* ---- the mover ---- */

static sluice_status take_free_slot(struct slc_staging *staging, struct slot **slot, sluice_error *error)
{
    slc_watch watch = slc_engine_watch(staging->engine);
    sluice_status status = SLUICE_OK;
    *slot = NULL;
    pthread_mutex_lock(&staging->mutex);
    while (status == SLUICE_OK && (*slot = find_slot(staging, FREE)) == NULL) {
        wait_a_little(staging);
        if (staging->stop) {
            status = slc_fail(error, SLUICE_CALLBACK, "update", "load_weights ended before the batch did");
        } else if (slc_deadline_passed(staging->deadline)) {
            status = slc_fail(error, SLUICE_TIMEOUT, "update", "load_weights did not release a staging slot within %g s",
                              staging->deadline.seconds);
        } else {
            pthread_mutex_unlock(&staging->mutex);
            status = watch.check(watch.context, error);
            pthread_mutex_lock(&staging->mutex);
        }
    }
    if (*slot != NULL)
        (*slot)->state = FILLING;
    pthread_mutex_unlock(&staging->mutex);
    return status;
}

static sluice_status move_full(struct slc_staging *staging, uint32_t index, sluice_error *error)
{
    const slc_param *param = slc_plan_at(staging->engine->session->build->plan, index);
    struct slot *slot;
    sluice_status status = take_free_slot(staging, &slot, error);
    if (status == SLUICE_OK)
        status = slc_move(staging->engine, index, slot->memory, staging->deadline, error);
    if (status != SLUICE_OK)
        return status;
    pthread_mutex_lock(&staging->mutex);
    slot->tensor = (sluice_tensor){ .size = sizeof slot->tensor, .name = param->name, .dtype = param->dtype->name,
                                    .ndim = (uint32_t)param->ndim, .shape = param->shape, .data = slot->memory,
                                    .bytes = (size_t)param->bytes };
    slot->number = staging->arrived++;
    slot->state = WAITING;
    pthread_cond_broadcast(&staging->changed);
    pthread_mutex_unlock(&staging->mutex);
    return SLUICE_OK;
}

static void *move_batch(void *argument)
{
    struct slc_staging *staging = argument;
    sluice_engine *engine = staging->engine;
    slc_session *session = engine->session;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < session->nasked && status == SLUICE_OK; i++) {
        uint32_t index = session->asked[i];
        if (slc_plan_at(session->build->plan, index)->mode == SLC_MODE_FULL)
            status = move_full(staging, index, &error);
        else
            status = slc_move(engine, index, NULL, staging->deadline, &error);
    }
    if (status == SLUICE_OK)
        status = session->build->ops->end(session->build->transport, staging->deadline, slc_engine_watch(engine), &error);
    pthread_mutex_lock(&staging->mutex);
    if (status != SLUICE_OK)
        slc_error_copy(&staging->error, &error);
    staging->moved = true;
    pthread_cond_broadcast(&staging->changed);
    pthread_mutex_unlock(&staging->mutex);
    return NULL;
}

/* ---- the sequence ---- */

static struct slot *slot_of(struct slc_staging *staging, const sluice_tensor *tensor)
{
    for (uint32_t i = 0; i < staging->nslots; i++)
        if (&staging->slot[i].tensor == tensor)
            return &staging->slot[i];
    return NULL;
}

static void give_back(struct slc_staging *staging, struct slot *slot)
{
    const slc_build *build = staging->engine->session->build;
    build->ops->given_back(build->transport, slot->memory);
    slot->state = FREE;
    pthread_cond_broadcast(&staging->changed);
}

sluice_status sluice_weights_next(sluice_weights *weights, const sluice_tensor **tensor, sluice_error *error)
{
    if (!slc_given_error(error))
        return SLUICE_INVALID;
    struct slc_staging *staging = weights->staging;
    struct slot *slot = NULL;
    *tensor = NULL;
    sluice_status status = slc_engine_here(staging->engine, "update", "weights_next", error); /* a child has no mover */
    if (status != SLUICE_OK)
        return status;
    pthread_mutex_lock(&staging->mutex);
    struct slot *lent = find_slot(staging, LENT);
    if (lent != NULL)
        give_back(staging, lent);
    while (status == SLUICE_OK && staging->taken < staging->expected && (slot = find_slot(staging, WAITING)) == NULL) {
        if (staging->error.status != SLUICE_OK)
            status = slc_error_copy(error, &staging->error);
        else if (slc_flag_raised(&staging->engine->cancelled))
            status = slc_fail(error, SLUICE_CANCELLED, "update", "cancelled");
        else
            wait_a_little(staging); /* the mover watches the deadline */
    }
    if (slot != NULL) {
        slot->state = LENT;
        staging->taken++;
        *tensor = &slot->tensor;
    }
    pthread_mutex_unlock(&staging->mutex);
    return status;
}

sluice_status sluice_weights_keep(sluice_weights *weights, const sluice_tensor *tensor, sluice_error *error)
{
    if (!slc_given_error(error))
        return SLUICE_INVALID;
    struct slc_staging *staging = weights->staging;
    sluice_status status = slc_engine_here(staging->engine, "update", "weights_keep", error);
    if (status != SLUICE_OK)
        return status;
    pthread_mutex_lock(&staging->mutex);
    struct slot *slot = slot_of(staging, tensor);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < staging->nslots; i++)
        kept += staging->slot[i].state == KEPT;
    if (slot == NULL || slot->state != LENT)
        status = slc_fail(error, SLUICE_INVALID, "update", "weights_keep wants the tensor that weights_next returned last");
    else if (kept + 1 >= staging->nslots)
        status = slc_fail(error, SLUICE_INVALID, "update", "%u of %u staging slots are kept; release one, or raise options.staging_slots",
                          kept, staging->nslots);
    else
        slot->state = KEPT;
    pthread_mutex_unlock(&staging->mutex);
    return status;
}

void sluice_weights_release(sluice_weights *weights, const sluice_tensor *tensor)
{
    struct slc_staging *staging = weights->staging;
    if (slc_engine_here(staging->engine, "update", "weights_release", NULL) != SLUICE_OK)
        return;
    pthread_mutex_lock(&staging->mutex);
    struct slot *slot = slot_of(staging, tensor);
    if (slot != NULL && (slot->state == KEPT || slot->state == LENT))
        give_back(staging, slot);
    pthread_mutex_unlock(&staging->mutex);
}

/* ---- a batch ---- */

static void reset(struct slc_staging *staging, slc_deadline deadline)
{
    const slc_session *session = staging->engine->session;
    staging->deadline = deadline;
    staging->arrived = staging->taken = staging->expected = 0;
    staging->stop = staging->moved = false;
    staging->error = (sluice_error)SLUICE_ERROR_INIT;
    for (size_t i = 0; i < session->nasked; i++)
        staging->expected += slc_plan_at(session->build->plan, session->asked[i])->mode == SLC_MODE_FULL;
    for (uint32_t i = 0; i < staging->nslots; i++)
        staging->slot[i].state = FREE;
}

static sluice_status call_host(struct slc_staging *staging, sluice_error *error)
{
    const sluice_callbacks *callbacks = &staging->engine->options.callbacks;
    sluice_weights weights = { .staging = staging };
    sluice_error said = SLUICE_ERROR_INIT;
    sluice_status status = callbacks->load_weights(callbacks->user, &weights, &said);
    return status == SLUICE_OK ? SLUICE_OK : slc_callback_failed("update", "load_weights", &said, error);
}

sluice_status slc_staging_run(sluice_engine *engine, slc_deadline deadline, sluice_error *error)
{
    struct slc_staging *staging = engine->session->build->staging;
    pthread_t mover;
    reset(staging, deadline);
    int failed = slc_thread_start(&mover, false, move_batch, staging);
    if (failed != 0)
        return slc_fail_errno(error, failed, "update", "cannot start the mover thread");
    sluice_error host = SLUICE_ERROR_INIT;
    sluice_status status = call_host(staging, &host);
    pthread_mutex_lock(&staging->mutex);
    uint64_t taken = staging->taken, expected = staging->expected;
    if (status == SLUICE_OK && taken < expected && staging->error.status == SLUICE_OK)
        status = slc_fail(&host, SLUICE_CALLBACK, "update", "load_weights returned after %llu of %llu full parameters; it must pull all",
                          (unsigned long long)taken, (unsigned long long)expected);
    if (status != SLUICE_OK && slc_flag_raised(&engine->cancelled)) /* weights_next said so to the host, which passes it on */
        status = slc_fail(&host, SLUICE_CANCELLED, "update", "cancelled");
    /* What the host still holds is no longer lent; with an error the mover must not wait for slots that nobody will free. */
    staging->stop = status != SLUICE_OK;
    for (uint32_t i = 0; i < staging->nslots; i++)
        if (staging->slot[i].state == LENT || staging->slot[i].state == KEPT)
            give_back(staging, &staging->slot[i]);
    pthread_mutex_unlock(&staging->mutex);
    pthread_join(mover, NULL);
    /* The mover's error comes first: a host that failed because its sequence failed only passes it on. */
    if (staging->error.status != SLUICE_OK && !(staging->stop && staging->error.status == SLUICE_CALLBACK))
        return slc_error_copy(error, &staging->error);
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &host);
}
