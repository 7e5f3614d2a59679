/* keeper.c: see keeper.h. Owns the keeper's thread. */
#include "control/keeper.h"

#include "base/error.h"
#include "base/thread.h"
#include "control/round.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

struct slc_keeper {
    pthread_t thread;
    pthread_mutex_t lock; /* of `stop`; never held together with the group's */
    pthread_cond_t changed;
    bool stop;
    slc_group *group;
};

static const char STAGE[] = "control";

/* ---- ticks ---- */

static int64_t tick_ns(const slc_group *group)
{
    return group->state->beat_ns / SLC_TICKS_A_BEAT;
}

/* How long a wait may be so that no tick is missed. */
static int patience(const slc_group *group, int wait_ms)
{
    const struct slc_group_state *state = group->state;
    if (state->beat_ns == 0)
        return wait_ms;
    int64_t left_ms = (state->next_tick_ns - slc_now_ns() + 999999) / 1000000;
    return left_ms < 0 ? 0 : left_ms < wait_ms ? (int)left_ms : wait_ms;
}

/*
 * Ranks that are at it answer within tens of microseconds, and a thread that sleeps is late by as much again. Where there are
 * processors enough to look some times first, that is taken from nobody.
 */
static bool may_look(const slc_group *group)
{
    cpu_set_t mine;
    return sched_getaffinity(0, sizeof mine, &mine) == 0 && group->world_size <= CPU_COUNT(&mine) / 2;
}

int slc_keeper_wait(slc_group *group, struct epoll_event *event, int most, int wait_ms)
{
    enum { LOOKS = 200 };
    int poller = group->state->poller, count = 0;
    int looks = wait_ms > 0 && may_look(group) ? LOOKS : 0;
    for (int i = 0; i < looks && count == 0; i++)
        count = epoll_wait(poller, event, most, 0);
    return count != 0 ? count : epoll_wait(poller, event, most, patience(group, wait_ms));
}

static void lose_silent(slc_group *group, const char *stage, int32_t link)
{
    char name[SLC_WHO_TEXT + 32];
    sluice_error cause = SLUICE_ERROR_INIT;
    double beat = (double)group->state->beat_ns * 1e-9;
    slc_group_name(group, link, name, sizeof name);
    slc_fail(&cause, SLUICE_PEER, stage, "%s has not been heard for %.3g s (%d beats of %.3g s)", name,
             (double)(slc_now_ns() - group->state->link[link].heard_ns) * 1e-9, SLC_BEATS_TO_BE_LOST, beat);
    cause.rank = link;
    slc_group_break(group, &cause, NULL);
}

static void send_beat(slc_group *group, const char *stage, int32_t link)
{
    /* One that waits already says as much; a peer that reads nothing must not gather beats. */
    if (slc_channel_queued(group->channel[link]) == 0)
        (void)slc_group_put(group, stage, link, SLC_FRAME_BEAT, 0, NULL, NULL);
}

void slc_keeper_tick(slc_group *group, const char *stage)
{
    struct slc_group_state *state = group->state;
    int64_t now = slc_now_ns();
    if (state->beat_ns == 0 || group->broken || now < state->next_tick_ns)
        return;
    state->next_tick_ns = now + tick_ns(group);
    state->tick++;
    for (int32_t i = 0; i < state->nlinks && !group->broken; i++) {
        const slc_link *at = &state->link[i];
        if (group->channel[i] == NULL || at->left)
            continue;
        if (state->tick - at->heard_tick > SLC_TICKS_A_BEAT * SLC_BEATS_TO_BE_LOST)
            lose_silent(group, stage, i);
        else if (state->tick - at->sent_tick >= SLC_TICKS_A_BEAT)
            send_beat(group, stage, i);
    }
}

/* ---- the thread ---- */

/* Waits for a tick's time; true when the keeper is to end. */
static bool rest(struct slc_keeper *keeper, int64_t pause_ns)
{
    int64_t at = slc_now_ns() + pause_ns;
    struct timespec until = { .tv_sec = at / 1000000000, .tv_nsec = at % 1000000000 };
    pthread_mutex_lock(&keeper->lock);
    while (!keeper->stop && slc_now_ns() < at)
        pthread_cond_timedwait(&keeper->changed, &keeper->lock, &until);
    bool stop = keeper->stop;
    pthread_mutex_unlock(&keeper->lock);
    return stop;
}

static void *keep(void *argument)
{
    struct slc_keeper *keeper = argument;
    slc_group *group = keeper->group;
    while (!rest(keeper, tick_ns(group))) {
        if (!slc_group_try_lock(group))
            continue; /* somebody pumps */
        slc_group_pump(group, STAGE, 0);
        slc_round_settle(group);
        slc_group_unlock(group);
    }
    return NULL;
}

static int start_thread(struct slc_keeper *keeper)
{
    int code = slc_thread_start(&keeper->thread, false, keep, keeper);
    if (code == 0)
        pthread_setname_np(keeper->thread, "sluice-beat");
    return code;
}

static void free_keeper(struct slc_keeper *keeper)
{
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->lock);
    slc_release(keeper);
}

sluice_status slc_keeper_start(slc_group *group, sluice_error *error)
{
    struct slc_group_state *state = group->state;
    if (state->beat_ns == 0)
        return SLUICE_OK;
    struct slc_keeper *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, "rendezvous", "the thread of beats", sizeof *made);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&made->lock, NULL);
    made->group = group;
    state->next_tick_ns = slc_now_ns() + tick_ns(group);
    for (int32_t i = 0; i < state->nlinks; i++)
        state->link[i].heard_ns = slc_now_ns();
    int code = start_thread(made);
    if (code != 0) {
        free_keeper(made);
        return slc_fail_errno(error, code, "rendezvous", "no thread for beats");
    }
    state->keeper = made;
    return SLUICE_OK;
}

void slc_keeper_stop(slc_group *group)
{
    struct slc_keeper *keeper = group->state->keeper;
    if (keeper == NULL)
        return;
    pthread_mutex_lock(&keeper->lock);
    keeper->stop = true;
    pthread_cond_signal(&keeper->changed);
    pthread_mutex_unlock(&keeper->lock);
    pthread_join(keeper->thread, NULL);
    free_keeper(keeper);
    group->state->keeper = NULL;
}
