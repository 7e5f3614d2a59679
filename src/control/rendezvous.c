/* rendezvous.c: joining, and the side of the ranks that come to rank 0. Owns nothing beyond a call. */
#include "control/rendezvous.h"

#include "base/error.h"
#include "base/flag.h"
#include "control/admission.h"
#include "control/agree.h"
#include "control/group.h"
#include "control/keeper.h"
#include "control/secure.h"
#include "control/socket.h"
#include "control/word.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_PAUSE_MS = 20, LONGEST_PAUSE_MS = 400, ANSWER_LONGEST = 65536 };

static const char STAGE[] = "rendezvous";
static const double ATTEMPT_S = 3; /* for one endpoint, before the next is tried */

static sluice_status check_options(const slc_rendezvous_options *options, sluice_error *error)
{
    if (options->world_size < 1)
        return slc_fail(error, SLUICE_INVALID, STAGE, "world size (%d) must be at least 1", options->world_size);
    if (options->rank < 0 || options->rank >= options->world_size)
        return slc_fail(error, SLUICE_INVALID, STAGE, "rank (%d) must be in [0, %d)", options->rank, options->world_size);
    bool brought = options->rank == 0 && options->listen_fd >= 0;
    if (!brought && options->address == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "an address must be given");
    if (!brought && options->port == 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "port (0) must be in [1, 65535]");
    return SLUICE_OK;
}

/* Sleeps for a while that grows from attempt to attempt; ranks differ a little, so that thousands do not come in step. */
static void pause_for(const slc_rendezvous_options *options, int *pause_ms)
{
    int64_t until = slc_now_ns() + (int64_t)(*pause_ms + options->rank % 16) * 1000000;
    while (slc_now_ns() < until && !slc_deadline_passed(options->deadline) && !slc_flag_raised(options->cancelled))
        poll(NULL, 0, slc_deadline_poll_ms(options->deadline, 10));
    *pause_ms = *pause_ms * 2 > LONGEST_PAUSE_MS ? LONGEST_PAUSE_MS : *pause_ms * 2;
}

static sluice_status take_answer(const slc_frame *frame, slc_claim *leader, bool *final, sluice_error *error)
{
    *final = true;
    if (frame->header.type == SLC_FRAME_WELCOME && slc_claim_read(frame->payload, frame->header.length, leader))
        return SLUICE_OK;
    if (frame->header.type == SLC_FRAME_REFUSE || frame->header.type == SLC_FRAME_ABORT) {
        slc_reader reader = { .data = frame->payload, .length = frame->header.length };
        sluice_error said = SLUICE_ERROR_INIT;
        slc_word_read_error(&reader, &said);
        if (!reader.failed)
            return slc_error_copy(error, &said);
    }
    *final = false;
    return slc_fail(error, SLUICE_PEER, STAGE, "the answer (%s) cannot be read", slc_frame_text(frame->header.type));
}

/* What the other end says of keys holds: trying again would not change it. */
static sluice_status shake_hands(const slc_rendezvous_options *options, slc_channel *channel, slc_secure *secure, bool *final,
                                 sluice_error *error)
{
    sluice_error found = SLUICE_ERROR_INIT;
    sluice_status status = slc_channel_secure(channel, secure, &found);
    if (status == SLUICE_OK)
        status = slc_channel_handshake(channel, options->deadline, options->cancelled, &found);
    *final = status == SLUICE_INVALID || status == SLUICE_UNSUPPORTED;
    if (*final)
        return slc_fail(error, SLUICE_DISAGREE, STAGE, "rank 0 at %s: %s", slc_channel_peer(channel), slc_word_bare("control", found.text));
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &found);
}

/* Rank 0 may hold its world to be whole already: so that it can tell the others why this rank is not in it. */
static void decline(const slc_rendezvous_options *options, slc_channel *channel, const sluice_error *why)
{
    slc_buffer bytes = { 0 };
    sluice_error told = SLUICE_ERROR_INIT;
    slc_fail(&told, SLUICE_PEER, STAGE, "the answer of rank 0 cannot be read: %.2000s",
             slc_word_bare(STAGE, why->text));
    slc_word_write_error(&bytes, &told);
    if (!bytes.failed)
        (void)slc_channel_send(channel, SLC_FRAME_ABORT, 0, bytes.data, bytes.length,
                               slc_deadline_sooner(options->deadline, slc_deadline_in(ATTEMPT_S)), options->cancelled, NULL);
    slc_buffer_clear(&bytes);
}

static sluice_status hear_answer(const slc_rendezvous_options *options, slc_channel *channel, slc_claim *leader, bool *final,
                                 sluice_error *error)
{
    slc_frame frame = { 0 };
    sluice_status status = slc_channel_receive(channel, &frame, slc_word_patience(options->deadline), options->cancelled, error);
    bool damaged = status == SLUICE_INVALID;
    if (status == SLUICE_OK) {
        status = take_answer(&frame, leader, final, error);
        damaged = status != SLUICE_OK && !*final;
    }
    if (damaged)
        decline(options, channel, error);
    slc_frame_clear(&frame);
    return status;
}

/* One connection: JOIN out, WELCOME or REFUSE in. *final: the answer holds, do not try again. */
static sluice_status attempt(const slc_rendezvous_options *options, const slc_endpoint *endpoint, slc_secure *secure,
                             const slc_claim *own, slc_group *group, bool *final, sluice_error *error)
{
    int fd;
    slc_channel *channel = NULL;
    slc_buffer bytes = { 0 };
    slc_claim leader, joining = *own;
    *final = false;
    slc_deadline soon = slc_deadline_sooner(options->deadline, slc_deadline_in(ATTEMPT_S));
    sluice_status status = slc_socket_connect(endpoint, soon, options->cancelled, &fd, error);
    if (status == SLUICE_OK)
        status = slc_channel_open(fd, ANSWER_LONGEST, &channel, error);
    if (status == SLUICE_OK && secure != NULL)
        status = shake_hands(options, channel, secure, final, error);
    joining.left_ms = slc_word_left_ms(options->deadline);
    slc_claim_write(&bytes, &joining);
    if (status == SLUICE_OK && bytes.failed)
        status = slc_fail_memory(error, STAGE, "a join frame", sizeof joining);
    if (status == SLUICE_OK)
        status = slc_channel_send(channel, SLC_FRAME_JOIN, 0, bytes.data, bytes.length, options->deadline, options->cancelled, error);
    if (status == SLUICE_OK)
        status = hear_answer(options, channel, &leader, final, error);
    if (status == SLUICE_OK) {
        status = slc_group_link(group, 0, channel, &leader, error);
        channel = NULL;
    }
    /* Lack of memory or descriptors is this rank's own and final; so are cancel and deadline, which the caller words. */
    if (status != SLUICE_PEER && status != SLUICE_INVALID && status != SLUICE_TIMEOUT && status != SLUICE_CANCELLED)
        *final = true;
    slc_buffer_clear(&bytes);
    slc_channel_close(channel);
    return status;
}

static sluice_status gave_up(const slc_rendezvous_options *options, const sluice_error *last, sluice_error *error)
{
    if (slc_flag_raised(options->cancelled)) {
        slc_fail(error, SLUICE_CANCELLED, STAGE, "cancelled on rank %d", options->rank);
        if (error != NULL)
            error->rank = options->rank;
        return SLUICE_CANCELLED;
    }
    slc_fail(error, SLUICE_TIMEOUT, STAGE, "rank %d got no welcome from rank 0 at %s port %u within %.3g s; the last attempt: %s",
             options->rank, options->address, options->port, options->deadline.seconds,
             last->text[0] == '\0' ? "none" : last->text + (strncmp(last->text, "rendezvous: ", 12) == 0 ? 12 : 0));
    if (error != NULL)
        error->rank = 0;
    return SLUICE_TIMEOUT;
}

static sluice_status follow(const slc_rendezvous_options *options, const slc_claim *own, slc_group **group, sluice_error *error)
{
    slc_endpoint *endpoint = NULL;
    size_t count = 0;
    slc_group *made = NULL;
    slc_secure *secure = NULL;
    sluice_error last = SLUICE_ERROR_INIT;
    int pause_ms = FIRST_PAUSE_MS;
    sluice_status status = slc_address_resolve(options->address, options->port, options->deadline, options->cancelled, &endpoint, &count, error);
    if (status == SLUICE_OK)
        status = slc_secure_rule(options->key != NULL, options->insecure, endpoint, count, error);
    if (status == SLUICE_OK && options->key != NULL)
        status = slc_secure_create(options->key, options->rank, options->world_size, &secure, error);
    if (status == SLUICE_OK)
        status = slc_group_create(options, &made, error);
    if (status != SLUICE_OK)
        goto out;
    for (size_t i = 0;; i = (i + 1) % count) {
        sluice_error now = SLUICE_ERROR_INIT;
        bool final;
        status = attempt(options, &endpoint[i], secure, own, made, &final, &now);
        if (status == SLUICE_OK)
            break;
        if (final) {
            slc_error_copy(error, &now);
            break;
        }
        bool over = slc_deadline_passed(options->deadline) || slc_flag_raised(options->cancelled);
        if (!over || last.text[0] == '\0') /* the deadline itself says less than what went before it */
            slc_error_copy(&last, &now);
        if (over) {
            status = gave_up(options, &last, error);
            break;
        }
        slc_say(&options->log, SLUICE_LOG_DEBUG, "%s; tries again", now.text);
        if (i + 1 == count)
            pause_for(options, &pause_ms);
    }
out:
    slc_release(endpoint);
    slc_secure_release(secure);
    if (status == SLUICE_OK)
        *group = made;
    else
        slc_group_free(made);
    return status;
}

sluice_status slc_rendezvous_join(const slc_rendezvous_options *options, slc_group **group, sluice_error *error)
{
    *group = NULL;
    slc_claim own;
    sluice_status status = check_options(options, error);
    if (status == SLUICE_OK)
        status = slc_claim_make(options->rank, options->world_size, options->deadline, options->beat_s, &own, error);
    if (status == SLUICE_OK && options->rank == 0)
        status = slc_admission_run(options, &own, group, error);
    else if (options->listen_fd >= 0)
        close(options->listen_fd);
    if (status == SLUICE_OK && options->rank > 0)
        status = follow(options, &own, group, error);
    sluice_error alone = SLUICE_ERROR_INIT;
    if (status == SLUICE_OK && slc_keeper_start(*group, &alone) != SLUICE_OK)
        status = slc_error_copy(error, &alone);
    if (status != SLUICE_OK && *group != NULL) {
        slc_group_abort(*group, &alone);
        slc_group_leave(*group);
        *group = NULL;
    }
    return status;
}
