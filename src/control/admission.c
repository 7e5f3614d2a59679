/*
 * admission.c: see admission.h. Decides who belongs to the world. Owns the listening sockets and, until the world is whole,
 * all connections.
 */
#include "control/admission.h"

#include "base/error.h"
#include "base/flag.h"
#include "control/agree.h"
#include "control/attendance.h"
#include "control/group.h"
#include "control/listener.h"
#include "control/secure.h"
#include "control/socket.h"
#include "control/text.h"
#include "control/word.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MOST_STRANGERS = 256, /* at once; the oldest makes room */
    ACCEPTS_AT_ONCE = 64,
    EVENTS_AT_ONCE = 256,
    LINES_OF_STRANGERS = 100, /* logged; then every 1000th */
    SPARE_DESCRIPTORS = 16,
    JOIN_LONGEST = 1024,
    SLICE_MS = 50,
    LONG_SLICE_MS = 60000
};

static const char STAGE[] = "rendezvous";
static const double STRANGER_S = 10;
static const double RIVAL_S = 1; /* held that long, so that all ranks of a second deployment hear of each other */

typedef struct admission {
    const slc_rendezvous_options *options;
    const slc_claim *own;
    slc_secure *secure; /* NULL without a key */
    slc_listener listener;
    slc_attendance here;
    slc_deadline next_to_give_up; /* the soonest of the members' deadlines */
    sluice_error failure; /* of rank 0 itself; ends the waiting */
} admission;

/* ---- turning away ---- */

static void note_turned_away(admission *at, const slc_visitor *visitor, const char *why)
{
    at->here.turned_away++;
    slc_line line = slc_line_in(at->here.last_turned_away, sizeof at->here.last_turned_away);
    slc_line_add(&line, "%s: %s", slc_channel_peer(visitor->channel), why);
    if (at->here.turned_away <= LINES_OF_STRANGERS || at->here.turned_away % 1000 == 0)
        slc_say(&at->options->log, SLUICE_LOG_WARN, "rendezvous: turned away %s (%llu so far)", at->here.last_turned_away,
                (unsigned long long)at->here.turned_away);
}

static void turn_away(admission *at, slc_visitor *stranger, const char *why)
{
    note_turned_away(at, stranger, why);
    slc_visitor_drop(&at->here.visitors, stranger);
}

static void refuse_stranger(admission *at, slc_visitor *stranger, sluice_status status, const char *why)
{
    sluice_error told = SLUICE_ERROR_INIT;
    slc_fail(&told, status, STAGE, "refused: %s", why);
    note_turned_away(at, stranger, why);
    slc_visitor_refuse(&at->here.visitors, stranger, &told);
    slc_visitor_drop(&at->here.visitors, stranger);
}

static void refuse_everyone(admission *at, const sluice_error *why)
{
    for (int kind = SLC_MEMBER; kind <= SLC_RIVAL; kind++)
        for (slc_visitor *visitor = at->here.visitors.list[kind].first; visitor != NULL; visitor = visitor->next)
            slc_visitor_refuse(&at->here.visitors, visitor, why);
}

/* ---- members and rivals ---- */

static void reckon_deadline(admission *at)
{
    at->next_to_give_up = at->options->deadline;
    for (const slc_visitor *member = at->here.visitors.list[SLC_MEMBER].first; member != NULL; member = member->next)
        at->next_to_give_up = slc_deadline_sooner(at->next_to_give_up, member->until);
}

static void seat(admission *at, slc_visitor *visitor)
{
    slc_deadline until = slc_word_deadline(visitor->claim.left_ms, visitor->claim.total_ms);
    slc_visitor_becomes(&at->here.visitors, visitor, SLC_MEMBER, until);
    at->here.member[visitor->claim.rank] = visitor;
    at->here.gave_up_ns[visitor->claim.rank] = 0;
    at->next_to_give_up = slc_deadline_sooner(at->next_to_give_up, until);
    slc_say(&at->options->log, SLUICE_LOG_INFO, "rendezvous: rank %d (%s) has come, %d of %d", visitor->claim.rank, visitor->who,
            1 + at->here.visitors.list[SLC_MEMBER].count, at->options->world_size);
}

/* A rank's place is free again: the rival that has waited longest takes it, and claims refused because of it count no more. */
static void unseat(admission *at, slc_visitor *member, sluice_log_level level, const char *why)
{
    int32_t rank = member->claim.rank;
    slc_say(&at->options->log, level, "rendezvous: rank %d (%s) %s; its place is free again", rank, member->who, why);
    at->here.member[rank] = NULL;
    slc_visitor_drop(&at->here.visitors, member);
    reckon_deadline(at);
    slc_visitor *heir = NULL;
    for (slc_visitor *rival = at->here.visitors.list[SLC_RIVAL].first, *next; rival != NULL; rival = next) {
        next = rival->next;
        if (rival->claim.rank != rank)
            continue;
        if (rival->channel == NULL)
            slc_visitor_drop(&at->here.visitors, rival);
        else if (heir == NULL)
            heir = rival;
    }
    if (heir != NULL)
        seat(at, heir);
}

static void consider(admission *at, slc_visitor *visitor)
{
    const slc_claim *claim = &visitor->claim;
    char why[160];
    int32_t proved_rank, proved_world;
    slc_channel_proved(visitor->channel, &proved_rank, &proved_world);
    if (at->secure != NULL && (claim->rank != proved_rank || claim->world_size != proved_world)) {
        snprintf(why, sizeof why, "it joins as rank %d of %d, its handshake was that of rank %d of %d", claim->rank, claim->world_size,
                 proved_rank, proved_world);
        refuse_stranger(at, visitor, SLUICE_DISAGREE, why);
        return;
    }
    if (claim->world_size != at->options->world_size) {
        snprintf(why, sizeof why, "rank %d has world size %d, rank 0 has %d", claim->rank, claim->world_size, at->options->world_size);
        refuse_stranger(at, visitor, SLUICE_DISAGREE, why);
        return;
    }
    if (claim->rank < 0 || claim->rank >= at->options->world_size) {
        snprintf(why, sizeof why, "rank (%d) must be in [0, %d)", claim->rank, at->options->world_size);
        refuse_stranger(at, visitor, SLUICE_INVALID, why);
        return;
    }
    char who[SLC_WHO_TEXT];
    slc_claim_who(claim, slc_channel_peer(visitor->channel), who);
    visitor->who = slc_duplicate(who);
    if (visitor->who == NULL) {
        turn_away(at, visitor, "no memory for its name");
        return;
    }
    slc_visitor *member = at->here.member[claim->rank];
    if (claim->rank > 0 && member == NULL) {
        seat(at, visitor);
    } else if (member != NULL && memcmp(member->claim.nonce, claim->nonce, SLC_NONCE) == 0) {
        at->here.member[claim->rank] = NULL;
        slc_visitor_drop(&at->here.visitors, member);
        seat(at, visitor);
    } else {
        slc_say(&at->options->log, SLUICE_LOG_WARN, "rendezvous: rank %d is claimed by (%s) and (%s)", claim->rank,
                slc_attendance_holder(&at->here, claim->rank), who);
        slc_visitor_becomes(&at->here.visitors, visitor, SLC_RIVAL, slc_deadline_in(RIVAL_S));
    }
}

/* ---- what comes in ---- */

static void hear_stranger(admission *at, slc_visitor *stranger, sluice_status status, bool got, const slc_frame *frame, const sluice_error *error)
{
    char why[160];
    uint32_t version = slc_channel_peer_version(stranger->channel);
    if (status == SLUICE_INVALID && version != 0 && version != SLC_PROTOCOL_VERSION) {
        snprintf(why, sizeof why, "it speaks protocol version %u, rank 0 speaks %u", version, SLC_PROTOCOL_VERSION);
        refuse_stranger(at, stranger, SLUICE_UNSUPPORTED, why);
    } else if (status == SLUICE_UNSUPPORTED) {
        refuse_stranger(at, stranger, SLUICE_DISAGREE, slc_word_bare("control", error->text));
    } else if (status == SLUICE_PEER) {
        turn_away(at, stranger, "it ended before it said who it is");
    } else if (status != SLUICE_OK) {
        turn_away(at, stranger, error->text);
    } else if (got && frame->header.type != SLC_FRAME_JOIN) {
        snprintf(why, sizeof why, "its first frame (%s) must be join", slc_frame_text(frame->header.type));
        turn_away(at, stranger, why);
    } else if (got && !slc_claim_read(frame->payload, frame->header.length, &stranger->claim)) {
        turn_away(at, stranger, "its join frame cannot be read");
    } else if (got) {
        consider(at, stranger);
    }
}

static void hear(admission *at, slc_visitor *visitor)
{
    slc_frame frame;
    bool got;
    sluice_error error = SLUICE_ERROR_INIT;
    if (visitor->channel == NULL)
        return;
    sluice_status status = slc_channel_take(visitor->channel, &frame, &got, &error);
    if (visitor->kind == SLC_STRANGER) {
        hear_stranger(at, visitor, status, got, &frame, &error);
    } else if (status != SLUICE_OK || got) {
        const char *why = status == SLUICE_PEER ? "ended its connection" : "spoke before the world was whole";
        if (visitor->kind == SLC_MEMBER)
            unseat(at, visitor, SLUICE_LOG_WARN, why);
        else
            slc_visitor_drop(&at->here.visitors, visitor);
    }
    slc_frame_clear(&frame);
}

/* Out of descriptors or memory for sockets: a stranger makes room; with none left the world cannot become whole. */
static bool make_room(admission *at, int code)
{
    slc_visitor *oldest = at->here.visitors.list[SLC_STRANGER].first;
    if (oldest != NULL) {
        turn_away(at, oldest, "it made room for another connection");
        return true;
    }
    slc_fail_errno(&at->failure, code, STAGE, "rank 0 cannot accept more than %d of %d ranks (descriptors: ulimit -n)",
                   at->here.visitors.list[SLC_MEMBER].count, at->options->world_size - 1);
    return false;
}

static void accept_some(admission *at, int listener)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            bool exhausted = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
            if (exhausted && make_room(at, errno))
                continue;
            return; /* nobody more, or somebody who went again */
        }
        slc_socket_let_rebind(fd);
        slc_channel *channel;
        slc_visitor *stranger;
        if (slc_channel_open(fd, JOIN_LONGEST, &channel, NULL) != SLUICE_OK)
            continue;
        if (at->secure != NULL && slc_channel_secure(channel, at->secure, NULL) != SLUICE_OK) {
            slc_channel_close(channel);
            continue;
        }
        if (at->here.visitors.list[SLC_STRANGER].count >= MOST_STRANGERS)
            turn_away(at, at->here.visitors.list[SLC_STRANGER].first, "it made room for another connection");
        if (slc_visitors_add(&at->here.visitors, channel, slc_deadline_in(STRANGER_S), &stranger, NULL) == SLUICE_OK)
            hear(at, stranger); /* most have said it all by now */
    }
}

/* A member's deadline is its own: it hears who is missing, and the others go on waiting for theirs. */
static void let_go(admission *at)
{
    while (slc_deadline_passed(at->next_to_give_up) && !slc_deadline_passed(at->options->deadline)) {
        slc_visitor *member = at->here.visitors.list[SLC_MEMBER].first;
        while (member != NULL && !slc_deadline_passed(member->until))
            member = member->next;
        if (member == NULL)
            return;
        sluice_error told = SLUICE_ERROR_INIT;
        slc_attendance_late(&at->here, member->until, &told);
        slc_visitor_refuse(&at->here.visitors, member, &told);
        at->here.gave_up_ns[member->claim.rank] = slc_now_ns();
        /* No warning: where all have one deadline, each does so, and the failure names who is missing. */
        unseat(at, member, SLUICE_LOG_INFO, "waited for as long as it may");
    }
}

static void expire(admission *at)
{
    let_go(at);
    slc_visitor *oldest;
    while ((oldest = at->here.visitors.list[SLC_STRANGER].first) != NULL && slc_deadline_passed(oldest->until))
        turn_away(at, oldest, "it did not say who it is within 10 s");
    for (slc_visitor *rival = at->here.visitors.list[SLC_RIVAL].first; rival != NULL; rival = rival->next) {
        if (rival->channel == NULL)
            continue;
        if (!slc_deadline_passed(rival->until))
            break;
        sluice_error told = SLUICE_ERROR_INIT;
        slc_attendance_rivals(&at->here, &told);
        slc_visitor_refuse(&at->here.visitors, rival, &told);
    }
}

static int longest_wait(const admission *at)
{
    slc_deadline next = slc_deadline_sooner(at->options->deadline, at->next_to_give_up);
    const slc_visitor *stranger = at->here.visitors.list[SLC_STRANGER].first, *rival = at->here.visitors.list[SLC_RIVAL].first;
    if (stranger != NULL)
        next = slc_deadline_sooner(next, stranger->until);
    while (rival != NULL && rival->channel == NULL)
        rival = rival->next;
    if (rival != NULL)
        next = slc_deadline_sooner(next, rival->until);
    return slc_deadline_poll_ms(next, at->options->cancelled == NULL ? LONG_SLICE_MS : SLICE_MS);
}

static void pump(admission *at, int wait_ms)
{
    struct epoll_event event[EVENTS_AT_ONCE];
    int count = epoll_wait(at->here.visitors.poller, event, EVENTS_AT_ONCE, wait_ms);
    if (count < 0 && errno != EINTR)
        slc_fail_errno(&at->failure, errno, STAGE, "cannot watch the connections");
    for (int i = 0; i < count; i++) {
        bool listening = false;
        for (size_t k = 0; k < at->listener.count && !listening; k++) {
            listening = event[i].data.ptr == &at->listener.fd[k];
            if (listening)
                accept_some(at, at->listener.fd[k]);
        }
        if (!listening)
            hear(at, event[i].data.ptr);
    }
    slc_visitors_sweep(&at->here.visitors);
}

/* ---- beginning and end ---- */

static sluice_status check_descriptors(int32_t world_size, sluice_error *error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return SLUICE_OK;
    rlim_t wanted = (rlim_t)world_size + SPARE_DESCRIPTORS;
    if (wanted > limit.rlim_cur)
        return slc_fail(error, SLUICE_SYSTEM, STAGE, "a world of %d ranks wants %llu file descriptors on rank 0, the limit is %llu (ulimit -n)",
                        world_size, (unsigned long long)wanted, (unsigned long long)limit.rlim_cur);
    return SLUICE_OK;
}

static sluice_status open_doors(admission *at, sluice_error *error)
{
    sluice_status status = slc_listener_open(at->options, &at->listener, error);
    if (status == SLUICE_OK)
        status = check_descriptors(at->options->world_size, error);
    if (status == SLUICE_OK && at->options->key != NULL)
        status = slc_secure_create(at->options->key, 0, at->options->world_size, &at->secure, error);
    if (status != SLUICE_OK)
        return status;
    size_t ranks = (size_t)at->options->world_size;
    at->here.member = slc_allocate_zeroed(ranks, sizeof *at->here.member);
    at->here.gave_up_ns = slc_allocate_zeroed(ranks, sizeof *at->here.gave_up_ns);
    if (at->here.member == NULL || at->here.gave_up_ns == NULL)
        return slc_fail_memory(error, STAGE, "the ranks", ranks * (sizeof *at->here.member + sizeof *at->here.gave_up_ns));
    at->here.visitors.poller = epoll_create1(EPOLL_CLOEXEC);
    if (at->here.visitors.poller < 0)
        return slc_fail_errno(error, errno, STAGE, "cannot make a poller");
    for (size_t i = 0; i < at->listener.count; i++) {
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = &at->listener.fd[i] };
        if (epoll_ctl(at->here.visitors.poller, EPOLL_CTL_ADD, at->listener.fd[i], &event) < 0)
            return slc_fail_errno(error, errno, STAGE, "cannot watch %s", at->listener.text);
    }
    at->here.listening = at->listener.text;
    slc_claim_who(at->own, at->listener.text, at->here.own_who);
    slc_say(&at->options->log, SLUICE_LOG_INFO, "rendezvous: rank 0 listens on %s for %d ranks", at->listener.text,
            at->options->world_size - 1);
    return SLUICE_OK;
}

/* Waits until every rank is here; else what everyone is to hear. */
static sluice_status gather(admission *at, sluice_error *error)
{
    int32_t others = at->options->world_size - 1;
    const slc_visitor_list *list = at->here.visitors.list;
    for (;;) {
        /* A claim may have lain in the queue longer than its rank lived: whose end is there already, is not. */
        if (list[SLC_MEMBER].count == others)
            pump(at, 0);
        if (list[SLC_MEMBER].count == others)
            return SLUICE_OK;
        if (at->failure.status != SLUICE_OK)
            return slc_error_copy(error, &at->failure);
        if (list[SLC_MEMBER].count + list[SLC_RIVAL].count >= others) {
            slc_attendance_overfull(&at->here, error);
            return error->status;
        }
        if (slc_flag_raised(at->options->cancelled)) {
            slc_fail(error, SLUICE_CANCELLED, STAGE, "cancelled on rank 0");
            error->rank = 0;
            return error->status;
        }
        if (slc_deadline_passed(at->options->deadline)) {
            slc_attendance_late(&at->here, at->options->deadline, error);
            return error->status;
        }
        pump(at, longest_wait(at));
        expire(at);
    }
}

/* Nobody hears WELCOME before all links stand. */
static sluice_status make_group(admission *at, slc_group **group, sluice_error *error)
{
    slc_group *made;
    slc_buffer bytes = { 0 };
    sluice_status status = slc_group_create(at->options, &made, error);
    for (int32_t i = 1; i < at->options->world_size && status == SLUICE_OK; i++) {
        slc_channel *channel = slc_visitor_release(&at->here.visitors, at->here.member[i]);
        status = slc_group_link(made, i, channel, &at->here.member[i]->claim, error);
    }
    slc_claim_write(&bytes, at->own);
    slc_payload *welcome = slc_payload_of(&bytes);
    if (status == SLUICE_OK && welcome == NULL)
        status = slc_fail_memory(error, STAGE, "a welcome", sizeof *at->own);
    for (int32_t i = 1; i < at->options->world_size && status == SLUICE_OK; i++)
        status = slc_group_put(made, STAGE, i, SLC_FRAME_WELCOME, 0, welcome, error);
    slc_payload_release(welcome);
    if (status == SLUICE_OK) {
        *group = made;
        return SLUICE_OK;
    }
    if (made != NULL)
        slc_group_abort(made, error);
    slc_group_leave(made);
    return status;
}

sluice_status slc_admission_run(const slc_rendezvous_options *options, const slc_claim *own, slc_group **group, sluice_error *error)
{
    *group = NULL;
    admission at = { .options = options, .own = own, .next_to_give_up = options->deadline, .failure = SLUICE_ERROR_INIT };
    at.here = (slc_attendance){ .world_size = options->world_size, .visitors = { .poller = -1 } };
    sluice_error why = SLUICE_ERROR_INIT;
    sluice_status status = open_doors(&at, &why);
    if (status == SLUICE_OK)
        status = gather(&at, &why);
    if (status == SLUICE_OK)
        status = make_group(&at, group, &why);
    if (status != SLUICE_OK) {
        refuse_everyone(&at, &why);
        slc_error_copy(error, &why);
    }
    slc_visitors_clear(&at.here.visitors);
    if (at.here.visitors.poller >= 0)
        close(at.here.visitors.poller);
    slc_secure_release(at.secure);
    slc_listener_close(&at.listener);
    slc_release(at.here.member);
    slc_release(at.here.gave_up_ns);
    return status;
}
