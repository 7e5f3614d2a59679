/*
 * group.c: the links of a group (group.h): what comes in over them, what goes out, how a group breaks and how it is left.
 * Owns channels, poller and queued words. Knows nothing of what a round means.
 */
#include "control/group.h"

#include "base/error.h"
#include "base/flag.h"
#include "control/agree.h"
#include "control/keeper.h"
#include "control/word.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 128, FRAMES_AT_ONCE = 4, SLICE_MS = 50, LONG_SLICE_MS = 60000 };

static const char STAGE[] = "control";
static const uint32_t LONGEST_BEAT_MS = 3600000;
static const double LAST_WORDS_S = 1.0; /* how long leaving may take at most */

/* ---- making and freeing ---- */

sluice_status slc_group_create(const slc_rendezvous_options *options, slc_group **group, sluice_error *error)
{
    *group = NULL;
    sluice_status status = SLUICE_OK;
    int32_t nlinks = options->rank == 0 ? options->world_size : 1;
    size_t bytes = (size_t)nlinks * (sizeof(slc_link) + sizeof(slc_channel *));
    slc_group *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, "rendezvous", "a group", sizeof *made);
    made->rank = options->rank;
    made->world_size = options->world_size;
    made->cancelled = options->cancelled;
    made->log = options->log;
    made->cause = (sluice_error)SLUICE_ERROR_INIT;
    made->channel = slc_allocate_zeroed((size_t)nlinks, sizeof *made->channel);
    made->state = slc_allocate_zeroed(1, sizeof *made->state);
    if (made->state != NULL) {
        made->state->poller = -1;
        made->state->nlinks = nlinks;
        bool brief = options->last_words_s > 0 && options->last_words_s < LAST_WORDS_S;
        made->state->last_words_s = brief ? options->last_words_s : LAST_WORDS_S;
        made->state->beat_ns = (int64_t)(options->beat_s * 1e9);
        pthread_mutex_init(&made->state->lock, NULL);
        made->state->link = slc_allocate_zeroed((size_t)nlinks, sizeof *made->state->link);
    }
    if (made->channel == NULL || made->state == NULL || made->state->link == NULL) {
        status = slc_fail_memory(error, "rendezvous", "a group", bytes);
        goto out;
    }
    made->state->poller = epoll_create1(EPOLL_CLOEXEC);
    if (made->state->poller < 0)
        status = slc_fail_errno(error, errno, "rendezvous", "cannot make a poller");
out:
    if (status != SLUICE_OK)
        slc_group_free(made);
    else
        *group = made;
    return status;
}

sluice_status slc_group_link(slc_group *group, int32_t link, slc_channel *channel, const slc_claim *claim, sluice_error *error)
{
    char who[SLC_WHO_TEXT];
    slc_claim_who(claim, slc_channel_peer(channel), who);
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.u32 = (uint32_t)link };
    slc_link *at = &group->state->link[link];
    at->who = slc_duplicate(who);
    if (at->who == NULL || epoll_ctl(group->state->poller, EPOLL_CTL_ADD, slc_channel_fd(channel), &event) < 0) {
        sluice_status status = at->who == NULL ? slc_fail_memory(error, "rendezvous", "a link", sizeof who)
                                               : slc_fail_errno(error, errno, "rendezvous", "cannot watch a connection");
        slc_channel_close(channel);
        return status;
    }
    if (group->rank != 0)
        group->state->beat_ns = claim->beat_ms > LONGEST_BEAT_MS ? (int64_t)LONGEST_BEAT_MS * 1000000 : (int64_t)claim->beat_ms * 1000000;
    slc_channel_bound(channel, 0);
    group->channel[link] = channel;
    return SLUICE_OK;
}

static void close_link(slc_group *group, int32_t link)
{
    slc_channel *channel = group->channel[link];
    if (channel == NULL)
        return;
    if (slc_channel_queued(channel) > 0)
        group->state->unsent--;
    /* By name: a forked child of the host may still hold the socket, and its events would come for ever. */
    epoll_ctl(group->state->poller, EPOLL_CTL_DEL, slc_channel_fd(channel), NULL);
    slc_channel_close(channel);
    group->channel[link] = NULL;
}

void slc_group_free(slc_group *group)
{
    if (group == NULL)
        return;
    struct slc_group_state *state = group->state;
    if (state != NULL)
        slc_keeper_stop(group);
    for (int32_t i = 0; state != NULL && state->link != NULL && i < state->nlinks; i++) {
        if (group->channel != NULL)
            close_link(group, i);
        slc_frame_clear(&state->link[i].word);
        slc_release(state->link[i].who);
    }
    if (state != NULL && state->poller >= 0)
        close(state->poller);
    if (state != NULL) {
        pthread_mutex_destroy(&state->lock);
        slc_release(state->link);
    }
    slc_release(state);
    slc_release(group->channel);
    slc_release(group);
}

/* ---- the lock ---- */

void slc_group_lock(slc_group *group)
{
    pthread_mutex_lock(&group->state->lock);
    if (group->state->unsaid)
        slc_say(&group->log, SLUICE_LOG_ERROR, "%s", group->cause.text);
    group->state->unsaid = false;
}

bool slc_group_try_lock(slc_group *group)
{
    if (pthread_mutex_trylock(&group->state->lock) != 0)
        return false;
    group->state->kept = true;
    return true;
}

void slc_group_unlock(slc_group *group)
{
    group->state->kept = false;
    pthread_mutex_unlock(&group->state->lock);
}

bool slc_group_broken(slc_group *group)
{
    slc_group_lock(group);
    bool broken = group->broken;
    slc_group_unlock(group);
    return broken;
}

void slc_group_name(const slc_group *group, int32_t link, char *text, size_t room)
{
    const char *who = group->state->link[link].who;
    if (who != NULL)
        snprintf(text, room, "rank %d (%s)", link, who);
    else
        snprintf(text, room, "rank %d", link);
}

/* ---- breaking ---- */

/* Best effort: whoever cannot be told sees its connection end. */
static void tell(slc_group *group, const sluice_error *error)
{
    slc_buffer bytes = { 0 };
    slc_word_write_error(&bytes, error);
    slc_payload *payload = slc_payload_of(&bytes);
    for (int32_t i = 0; i < group->state->nlinks; i++) {
        if (group->channel[i] == NULL)
            continue;
        sluice_status status = payload == NULL ? SLUICE_NO_MEMORY
                                               : slc_group_put(group, error->stage, i, SLC_FRAME_ABORT, 0, payload, NULL);
        if (status != SLUICE_OK)
            close_link(group, i);
    }
    slc_payload_release(payload);
}

void slc_group_break(slc_group *group, const sluice_error *cause, const sluice_error *told)
{
    if (group->broken)
        return;
    group->broken = true;
    slc_error_copy(&group->cause, cause);
    group->state->unsaid = group->state->kept;
    if (!group->state->kept)
        slc_say(&group->log, SLUICE_LOG_ERROR, "%s", cause->text);
    tell(group, told == NULL ? cause : told);
}

sluice_status slc_group_cause(const slc_group *group, sluice_error *error)
{
    return slc_error_copy(error, &group->cause);
}

/* What a link did breaks the group. */
static void blame(slc_group *group, const char *stage, int32_t link, const char *did, const char *how)
{
    char name[SLC_WHO_TEXT + 32];
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_group_name(group, link, name, sizeof name);
    slc_fail(&cause, SLUICE_PEER, stage, "%s %s: %s", name, did, how);
    cause.rank = link;
    slc_group_break(group, &cause, NULL);
}

static void lose(slc_group *group, const char *stage, int32_t link, const char *how)
{
    bool left = group->state->link[link].left;
    close_link(group, link);
    if (!left && !group->broken)
        blame(group, stage, link, "was lost", how);
}

bool slc_group_cancelled(slc_group *group, const char *stage)
{
    if (!slc_flag_raised(group->cancelled))
        return false;
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_fail(&cause, SLUICE_CANCELLED, stage, "cancelled");
    cause.rank = group->rank;
    slc_group_give_up(group, &cause);
    return true;
}

/* What others hear of a rank that gives up. */
static void given_up(const char *name, int32_t rank, const sluice_error *why, sluice_error *told)
{
    bool kept = why->status == SLUICE_CANCELLED || why->status == SLUICE_TIMEOUT;
    const char *stage = why->stage[0] == '\0' ? STAGE : why->stage;
    slc_fail(told, kept ? why->status : SLUICE_PEER, stage, "%s gave up: %s", name, slc_word_bare(stage, why->text));
    told->rank = rank;
}

void slc_group_abort(slc_group *group, const sluice_error *why)
{
    slc_group_lock(group);
    if (group->broken && why != NULL && strcmp(group->cause.text, why->text) != 0)
        slc_say(&group->log, SLUICE_LOG_ERROR, "%s", why->text);
    slc_group_give_up(group, why);
    slc_group_unlock(group);
}

void slc_group_give_up(slc_group *group, const sluice_error *why)
{
    sluice_error cause = SLUICE_ERROR_INIT, told = SLUICE_ERROR_INIT;
    slc_fail(&cause, SLUICE_CANCELLED, STAGE, "this rank gave up");
    if (why != NULL && why->status != SLUICE_OK)
        slc_error_copy(&cause, why);
    given_up("rank 0", 0, &cause, &told);
    slc_group_break(group, &cause, group->rank == 0 ? &told : NULL);
}

/* ---- out ---- */

static void watch_output(slc_group *group, int32_t link, bool wanted)
{
    slc_link *at = &group->state->link[link];
    if (at->watches_output == wanted)
        return;
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | (wanted ? EPOLLOUT : 0u), .data.u32 = (uint32_t)link };
    if (epoll_ctl(group->state->poller, EPOLL_CTL_MOD, slc_channel_fd(group->channel[link]), &event) == 0)
        at->watches_output = wanted;
}

/* Leaves a dead link alone: what its end said last is still to be read, and reading finds the end. */
static void flush(slc_group *group, int32_t link)
{
    slc_channel *channel = group->channel[link];
    size_t before = slc_channel_queued(channel), left = before;
    sluice_status status = slc_channel_flush(channel, &left, NULL);
    group->state->unsent += (left > 0) - (before > 0);
    watch_output(group, link, status == SLUICE_OK && left > 0);
}

sluice_status slc_group_put(slc_group *group, const char *stage, int32_t link, slc_frame_type type, uint32_t tag,
                            slc_payload *payload, sluice_error *error)
{
    slc_channel *channel = group->channel[link];
    if (channel == NULL)
        return slc_fail(error, SLUICE_PEER, stage, "the connection to rank %d is closed", link);
    bool was_empty = slc_channel_queued(channel) == 0;
    sluice_status status = slc_channel_put_payload(channel, type, tag, payload, error);
    if (status != SLUICE_OK)
        return status;
    group->state->link[link].sent_tick = group->state->tick;
    group->state->unsent += was_empty;
    if (was_empty)
        flush(group, link);
    return SLUICE_OK;
}

/* ---- in ---- */

static void nonsense(slc_group *group, const char *stage, int32_t link, const char *what)
{
    if (group->broken)
        close_link(group, link); /* it was told already and goes on */
    blame(group, stage, link, "broke the protocol", what);
}

void slc_group_recall(slc_group *group, uint32_t round)
{
    struct slc_group_state *state = group->state;
    if (state->recalled > round)
        return;
    state->recalled = round + 1;
    for (int32_t i = 1; i < state->nlinks; i++)
        if (group->channel[i] != NULL && !state->link[i].has_word && !state->link[i].left)
            (void)slc_group_put(group, STAGE, i, SLC_FRAME_RECALL, round, NULL, NULL);
}

static void take_word(slc_group *group, const char *stage, int32_t link, slc_frame *frame)
{
    slc_link *at = &group->state->link[link];
    char what[160];
    bool refused = false;
    /* Others hear a verdict only to an envelope of theirs; rank 0 may hear of the next round while it is in none. */
    bool awaited = frame->header.tag == at->next && (group->rank == 0 || at->next < group->rounds);
    if (at->has_word || !awaited) {
        snprintf(what, sizeof what, "a%s %s frame of round %u, in round %u", frame->header.type == SLC_FRAME_ENVELOPE ? "n" : "",
                 slc_frame_text(frame->header.type), frame->header.tag, at->next);
        nonsense(group, stage, link, what);
        return;
    }
    if (group->rank == 0) {
        slc_envelope envelope;
        sluice_error said = SLUICE_ERROR_INIT;
        if (!slc_word_read_envelope(frame->payload, frame->header.length, &envelope, &said)) {
            nonsense(group, stage, link, "an envelope that cannot be read");
            return;
        }
        refused = envelope.status != SLUICE_OK;
        slc_deadline until = slc_word_deadline(envelope.left_ms, envelope.total_ms);
        group->state->until = group->state->words == 0 ? until : slc_deadline_sooner(group->state->until, until);
    }
    at->word = *frame;
    *frame = (slc_frame){ 0 };
    at->has_word = true;
    at->next++;
    group->state->words++;
    if (refused)
        slc_group_recall(group, at->next - 1);
}

static void take_abort(slc_group *group, const char *stage, int32_t link, const slc_frame *frame)
{
    char name[SLC_WHO_TEXT + 32];
    slc_reader reader = { .data = frame->payload, .length = frame->header.length };
    sluice_error why = SLUICE_ERROR_INIT, cause = SLUICE_ERROR_INIT;
    slc_word_read_error(&reader, &why);
    if (reader.failed) {
        nonsense(group, stage, link, "an abort frame that cannot be read");
        return;
    }
    slc_group_name(group, link, name, sizeof name);
    close_link(group, link); /* it knows */
    if (group->rank == 0)
        given_up(name, link, &why, &cause);
    else
        slc_error_copy(&cause, &why);
    slc_group_break(group, &cause, NULL);
}

static void dispatch(slc_group *group, const char *stage, int32_t link, slc_frame *frame)
{
    char what[64];
    slc_link *at = &group->state->link[link];
    uint32_t word = group->rank == 0 ? SLC_FRAME_ENVELOPE : SLC_FRAME_VERDICT;
    if (group->broken)
        return;
    if (frame->header.type == word && !at->left) {
        take_word(group, stage, link, frame);
    } else if (frame->header.type == SLC_FRAME_ABORT) {
        take_abort(group, stage, link, frame);
    } else if (frame->header.type == SLC_FRAME_LEAVE && !at->left) {
        at->left = true;
        group->state->leavers++;
    } else if (frame->header.type == SLC_FRAME_RECALL && group->rank != 0) {
        group->state->recalled = frame->header.tag + 1;
    } else if (frame->header.type != SLC_FRAME_BEAT) {
        snprintf(what, sizeof what, "a%s %s frame", frame->header.type == SLC_FRAME_ENVELOPE ? "n" : "",
                 slc_frame_text(frame->header.type));
        nonsense(group, stage, link, what);
    }
}

static void take_frames(slc_group *group, const char *stage, int32_t link, size_t most)
{
    for (size_t i = 0; i < most && group->channel[link] != NULL; i++) {
        slc_frame frame;
        bool got;
        sluice_error error = SLUICE_ERROR_INIT;
        sluice_status status = slc_channel_take(group->channel[link], &frame, &got, &error);
        if (status == SLUICE_PEER)
            lose(group, stage, link, "its connection ended");
        else if (status == SLUICE_INVALID)
            nonsense(group, stage, link, error.text);
        else if (status != SLUICE_OK)
            slc_group_give_up(group, &error);
        if (status != SLUICE_OK || !got)
            return;
        dispatch(group, stage, link, &frame);
        slc_frame_clear(&frame);
    }
}

/* What TLS holds afterwards no poller would tell; it is at most a record. */
static void take_in(slc_group *group, const char *stage, int32_t link)
{
    slc_link *at = &group->state->link[link];
    at->heard_tick = group->state->tick;
    at->heard_ns = slc_now_ns();
    take_frames(group, stage, link, FRAMES_AT_ONCE);
    if (group->channel[link] == NULL || !slc_channel_pending(group->channel[link]))
        return;
    slc_channel_dry(group->channel[link], true);
    take_frames(group, stage, link, SIZE_MAX);
    if (group->channel[link] != NULL)
        slc_channel_dry(group->channel[link], false);
}

int slc_group_slice(const slc_group *group, slc_deadline deadline)
{
    return slc_deadline_poll_ms(deadline, group->cancelled == NULL ? LONG_SLICE_MS : SLICE_MS);
}

void slc_group_pump(slc_group *group, const char *stage, int wait_ms)
{
    struct epoll_event event[EVENTS_AT_ONCE];
    /* Frames that came together with the welcome. */
    if (group->rank != 0 && group->channel[0] != NULL && slc_channel_pending(group->channel[0]))
        take_in(group, stage, 0);
    int count = slc_keeper_wait(group, event, EVENTS_AT_ONCE, wait_ms);
    if (count < 0 && errno != EINTR) {
        sluice_error cause = SLUICE_ERROR_INIT;
        slc_fail_errno(&cause, errno, stage, "cannot watch the connections");
        slc_group_give_up(group, &cause);
    }
    for (int i = 0; i < count; i++) {
        int32_t link = (int32_t)event[i].data.u32;
        if (group->channel[link] != NULL && (event[i].events & ~(uint32_t)EPOLLOUT) != 0)
            take_in(group, stage, link);
        if (group->channel[link] != NULL && (event[i].events & EPOLLOUT) != 0)
            flush(group, link);
    }
    if (count < EVENTS_AT_ONCE)
        slc_keeper_tick(group, stage);
}

void slc_group_drop_word(slc_group *group, int32_t link)
{
    slc_link *at = &group->state->link[link];
    if (!at->has_word)
        return;
    slc_frame_clear(&at->word);
    at->has_word = false;
    group->state->words--;
}

/* ---- watching and leaving ---- */

bool slc_group_recalled(slc_group *group)
{
    slc_group_lock(group);
    bool recalled = group->state->recalled > group->rounds;
    slc_group_unlock(group);
    return recalled;
}

sluice_status slc_group_check(slc_group *group, sluice_error *error)
{
    slc_group_lock(group);
    slc_group_pump(group, STAGE, 0);
    sluice_status status = group->broken ? slc_group_cause(group, error) : SLUICE_OK;
    slc_group_unlock(group);
    return status;
}

void slc_group_leave(slc_group *group)
{
    if (group == NULL)
        return;
    slc_keeper_stop(group);
    slc_group_lock(group);
    for (int32_t i = 0; i < group->state->nlinks; i++)
        if (!group->broken && group->channel[i] != NULL && !group->state->link[i].left)
            slc_group_put(group, STAGE, i, SLC_FRAME_LEAVE, 0, NULL, NULL);
    slc_deadline deadline = slc_deadline_in(group->state->last_words_s);
    group->cancelled = NULL;
    while (group->state->unsent > 0 && !slc_deadline_passed(deadline))
        slc_group_pump(group, STAGE, slc_group_slice(group, deadline));
    slc_group_unlock(group);
    slc_group_free(group);
}
