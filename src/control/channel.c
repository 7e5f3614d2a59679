/*
 * channel.c: see channel.h. Only this file, and secure.c under it, read or write a control socket. Owns the socket, its TLS,
 * the frame that is coming in and the frames that wait to go out.
 */
#include "control/channel.h"

#include "base/error.h"
#include "base/flag.h"
#include "control/secure.h"
#include "control/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    FIRST_PAYLOAD = 64 << 10, /* a header alone buys no more memory than this */
    READ_AT_ONCE = 1 << 20,
    WRITE_AT_ONCE = 4 << 20,
    FRAMES_AT_ONCE = 8,
    RECORD = 16 << 10, /* what TLS writes at once */
    TLS_HANDSHAKE = 0x16,
    SLICE_MS = 50,
    LONG_SLICE_MS = 60000
};

static const char STAGE[] = "control";

struct slc_payload {
    size_t users, length;
    unsigned char *data;
};

typedef struct outgoing {
    struct outgoing *next;
    slc_payload *payload; /* NULL for none */
    unsigned char header[SLC_FRAME_HEADER];
} outgoing;

struct slc_channel {
    int fd;
    slc_secure_link *secure; /* NULL without a key */
    bool dry;
    uint32_t longest, speaks, peer_version;
    char peer[SLC_ADDRESS_TEXT];

    unsigned char head[SLC_FRAME_HEADER];
    size_t head_filled;
    slc_frame_header header; /* decoded once head is full */
    unsigned char *payload;
    size_t filled, capacity;

    outgoing *first, *last;
    size_t sent;   /* bytes of the first one that are out */
    size_t queued; /* bytes of all that are not */
};

/* ---- payloads ---- */

slc_payload *slc_payload_of(slc_buffer *buffer)
{
    slc_payload *payload = buffer->failed ? NULL : slc_allocate(sizeof *payload);
    if (payload == NULL) {
        slc_buffer_clear(buffer);
        return NULL;
    }
    *payload = (slc_payload){ .users = 1, .length = buffer->length, .data = buffer->data };
    *buffer = (slc_buffer){ 0 };
    return payload;
}

void slc_payload_release(slc_payload *payload)
{
    if (payload == NULL || --payload->users > 0)
        return;
    slc_release_wiped(payload->data, payload->length);
    slc_release(payload);
}

void slc_frame_clear(slc_frame *frame)
{
    slc_release_wiped(frame->payload, frame->header.length);
    *frame = (slc_frame){ 0 };
}

/* ---- open and close ---- */

/*
 * Small frames go at once; and before beats begin, the kernel finds out that the other machine is gone, after 30 s without
 * an answer. Refused by sockets that are not TCP, which need none of it.
 */
static void set_options(int fd)
{
    static const struct {
        int level, name, value;
    } option[] = { { IPPROTO_TCP, TCP_NODELAY, 1 },    { SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_KEEPIDLE, 10 },
                   { IPPROTO_TCP, TCP_KEEPINTVL, 5 }, { IPPROTO_TCP, TCP_KEEPCNT, 4 },  { IPPROTO_TCP, TCP_USER_TIMEOUT, 30000 } };
    for (size_t i = 0; i < sizeof option / sizeof option[0]; i++)
        setsockopt(fd, option[i].level, option[i].name, &option[i].value, sizeof option[i].value);
}

sluice_status slc_channel_open(int fd, uint32_t longest, slc_channel **channel, sluice_error *error)
{
    *channel = NULL;
    slc_channel *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL) {
        close(fd);
        return slc_fail_memory(error, STAGE, "a connection", sizeof *made);
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        sluice_status status = slc_fail_errno(error, errno, STAGE, "cannot take over descriptor %d", fd);
        close(fd);
        slc_release(made);
        return status;
    }
    set_options(fd);
    slc_endpoint peer = slc_socket_there(fd);
    slc_address_text(&peer, made->peer);
    made->fd = fd;
    made->longest = longest;
    made->speaks = SLC_PROTOCOL_VERSION;
    *channel = made;
    return SLUICE_OK;
}

static void drop_first(slc_channel *channel)
{
    outgoing *gone = channel->first;
    channel->first = gone->next;
    if (channel->first == NULL)
        channel->last = NULL;
    channel->sent = 0;
    slc_payload_release(gone->payload);
    slc_release(gone);
}

void slc_channel_close(slc_channel *channel)
{
    if (channel == NULL)
        return;
    while (channel->first != NULL)
        drop_first(channel);
    slc_release_wiped(channel->payload, channel->filled);
    slc_secure_close(channel->secure);
    close(channel->fd);
    slc_release(channel);
}

sluice_status slc_channel_secure(slc_channel *channel, struct slc_secure *secure, sluice_error *error)
{
    return slc_secure_open(secure, channel->fd, channel->peer, &channel->secure, error);
}

void slc_channel_proved(const slc_channel *channel, int32_t *rank, int32_t *world_size)
{
    *rank = -1;
    *world_size = 0;
    if (channel->secure != NULL)
        slc_secure_proved(channel->secure, rank, world_size);
}

int slc_channel_fd(const slc_channel *channel)
{
    return channel->fd;
}

void slc_channel_bound(slc_channel *channel, uint32_t longest)
{
    channel->longest = longest;
}

const char *slc_channel_peer(const slc_channel *channel)
{
    return channel->peer;
}

uint32_t slc_channel_peer_version(const slc_channel *channel)
{
    return channel->peer_version;
}

void slc_channel_speak(slc_channel *channel, uint32_t version)
{
    channel->speaks = version;
}

/* ---- out ---- */

static size_t payload_length(const outgoing *item)
{
    return item->payload == NULL ? 0 : item->payload->length;
}

sluice_status slc_channel_put_payload(slc_channel *channel, slc_frame_type type, uint32_t tag, slc_payload *payload, sluice_error *error)
{
    size_t length = payload == NULL ? 0 : payload->length;
    if (length > slc_frame_longest(type))
        return slc_fail(error, SLUICE_INVALID, STAGE, "a %s frame of %zu bytes must have at most %u", slc_frame_text(type), length,
                        slc_frame_longest(type));
    outgoing *item = slc_allocate(sizeof *item);
    if (item == NULL)
        return slc_fail_memory(error, STAGE, "a frame", sizeof *item);
    item->next = NULL;
    item->payload = payload;
    if (payload != NULL)
        payload->users++;
    slc_frame_header header = { .version = channel->speaks, .type = type, .tag = tag, .length = (uint32_t)length };
    slc_frame_encode(&header, item->header);
    if (channel->last == NULL)
        channel->first = item;
    else
        channel->last->next = item;
    channel->last = item;
    channel->queued += SLC_FRAME_HEADER + length;
    return SLUICE_OK;
}

sluice_status slc_channel_put(slc_channel *channel, slc_frame_type type, uint32_t tag, const void *payload, size_t length, sluice_error *error)
{
    slc_buffer bytes = { 0 };
    slc_payload *copy = NULL;
    if (length > 0) {
        slc_buffer_append(&bytes, payload, length);
        copy = slc_payload_of(&bytes);
        if (copy == NULL)
            return slc_fail_memory(error, STAGE, "a frame", length);
    }
    sluice_status status = slc_channel_put_payload(channel, type, tag, copy, error);
    slc_payload_release(copy);
    return status;
}

size_t slc_channel_queued(const slc_channel *channel)
{
    return channel->queued;
}

static sluice_status ended(const slc_channel *channel, int code, sluice_error *error)
{
    if (code == 0 || code == ECONNRESET || code == EPIPE)
        return slc_fail(error, SLUICE_PEER, STAGE, "%s ended the connection", channel->peer);
    slc_fail_errno(error, code, STAGE, "the connection to %s failed", channel->peer);
    if (error != NULL)
        error->status = SLUICE_PEER;
    return SLUICE_PEER;
}

static size_t gather_parts(const slc_channel *channel, struct iovec part[2 * FRAMES_AT_ONCE])
{
    size_t count = 0, skip = channel->sent;
    for (const outgoing *item = channel->first; item != NULL && count + 2 <= 2 * FRAMES_AT_ONCE; item = item->next) {
        if (skip < SLC_FRAME_HEADER) {
            part[count++] = (struct iovec){ .iov_base = (void *)(item->header + skip), .iov_len = SLC_FRAME_HEADER - skip };
            skip = 0;
        } else {
            skip -= SLC_FRAME_HEADER;
        }
        if (payload_length(item) > skip)
            part[count++] = (struct iovec){ .iov_base = item->payload->data + skip, .iov_len = payload_length(item) - skip };
        skip = 0;
    }
    return count;
}

static void count_sent(slc_channel *channel, size_t bytes)
{
    channel->queued -= bytes;
    channel->sent += bytes;
    while (channel->first != NULL && channel->sent >= SLC_FRAME_HEADER + payload_length(channel->first)) {
        size_t beyond = channel->sent - SLC_FRAME_HEADER - payload_length(channel->first);
        drop_first(channel);
        channel->sent = beyond;
    }
}

/* *bytes is 0 where nothing can be written now. */
static sluice_status write_parts(slc_channel *channel, const struct iovec *part, size_t count, size_t *bytes, sluice_error *error)
{
    struct msghdr message = { .msg_iov = (struct iovec *)part, .msg_iovlen = count };
    *bytes = 0;
    ssize_t sent;
    do
        sent = sendmsg(channel->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? SLUICE_OK : ended(channel, errno, error);
    *bytes = (size_t)sent;
    return SLUICE_OK;
}

/* One record of as many parts as fit: small frames travel together. */
static sluice_status write_record(slc_channel *channel, const struct iovec *part, size_t count, size_t *bytes, sluice_error *error)
{
    unsigned char record[RECORD];
    size_t filled = 0;
    for (size_t i = 0; i < count && filled < sizeof record; i++) {
        size_t room = sizeof record - filled, length = part[i].iov_len < room ? part[i].iov_len : room;
        memcpy(record + filled, part[i].iov_base, length);
        filled += length;
    }
    return slc_secure_write(channel->secure, record, filled, bytes, error);
}

sluice_status slc_channel_flush(slc_channel *channel, size_t *left, sluice_error *error)
{
    size_t written = 0, bytes = 1;
    sluice_status status = SLUICE_OK;
    while (channel->queued > 0 && written < WRITE_AT_ONCE && bytes > 0 && status == SLUICE_OK) {
        struct iovec part[2 * FRAMES_AT_ONCE];
        size_t count = gather_parts(channel, part);
        status = channel->secure == NULL ? write_parts(channel, part, count, &bytes, error)
                                         : write_record(channel, part, count, &bytes, error);
        count_sent(channel, bytes);
        written += bytes;
    }
    *left = channel->queued;
    return status;
}

/* ---- in ---- */

bool slc_channel_pending(const slc_channel *channel)
{
    return channel->secure != NULL && slc_secure_pending(channel->secure) > 0;
}

void slc_channel_dry(slc_channel *channel, bool dry)
{
    channel->dry = dry;
}

/* *bytes is 0 where nothing is there yet. */
static sluice_status read_some(slc_channel *channel, void *into, size_t room, size_t *bytes, sluice_error *error)
{
    *bytes = 0;
    if (channel->dry && !slc_channel_pending(channel))
        return SLUICE_OK;
    if (channel->secure != NULL)
        return slc_secure_read(channel->secure, into, room, bytes, error);
    for (;;) {
        ssize_t got = recv(channel->fd, into, room, MSG_DONTWAIT);
        if (got > 0) {
            *bytes = (size_t)got;
            return SLUICE_OK;
        }
        if (got == 0)
            return ended(channel, 0, error);
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return SLUICE_OK;
        if (errno != EINTR)
            return ended(channel, errno, error);
    }
}

static sluice_status accept_header(slc_channel *channel, sluice_error *error)
{
    if (channel->secure == NULL && channel->head[0] == TLS_HANDSHAKE && channel->head[1] == 3)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "it has a key, and rank 0 has none");
    sluice_status status = slc_frame_decode(channel->head, &channel->header, error);
    channel->peer_version = channel->header.version;
    if (status == SLUICE_OK && channel->longest != 0 && channel->header.length > channel->longest)
        return slc_fail(error, SLUICE_INVALID, "frame", "length (%u) of type %s must be at most %u here", channel->header.length,
                        slc_frame_text(channel->header.type), channel->longest);
    return status;
}

static sluice_status grow(slc_channel *channel, sluice_error *error)
{
    size_t length = channel->header.length;
    size_t capacity = channel->capacity == 0 ? FIRST_PAYLOAD : channel->capacity * 2;
    if (capacity > length)
        capacity = length;
    unsigned char *larger = slc_reallocate(channel->payload, capacity);
    if (larger == NULL)
        return slc_fail_memory(error, STAGE, "a frame", capacity);
    channel->payload = larger;
    channel->capacity = capacity;
    return SLUICE_OK;
}

/* One end has a key and the other none. Its bytes are taken away, so that closing does not reset what is said to it yet. */
static sluice_status part_ways(slc_channel *channel)
{
    unsigned char bytes[4096];
    for (int i = 0; i < FRAMES_AT_ONCE && recv(channel->fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0;)
        i++;
    slc_secure_close(channel->secure);
    channel->secure = NULL;
    return SLUICE_UNSUPPORTED;
}

static sluice_status take(slc_channel *channel, slc_frame *frame, bool *got, sluice_error *error)
{
    size_t total = 0, bytes;
    while (channel->head_filled < SLC_FRAME_HEADER) {
        sluice_status status = read_some(channel, channel->head + channel->head_filled, SLC_FRAME_HEADER - channel->head_filled, &bytes, error);
        if (status != SLUICE_OK || bytes == 0)
            return status;
        channel->head_filled += bytes;
        if (channel->head_filled == SLC_FRAME_HEADER)
            status = accept_header(channel, error);
        if (status != SLUICE_OK) {
            channel->head_filled = 0;
            return status;
        }
    }
    while (channel->filled < channel->header.length) {
        sluice_status status = channel->filled == channel->capacity ? grow(channel, error) : SLUICE_OK;
        if (status == SLUICE_OK)
            status = read_some(channel, channel->payload + channel->filled, channel->capacity - channel->filled, &bytes, error);
        if (status != SLUICE_OK || bytes == 0)
            return status;
        channel->filled += bytes;
        total += bytes;
        if (total >= READ_AT_ONCE && channel->filled < channel->header.length && !slc_channel_pending(channel))
            return SLUICE_OK;
    }
    *frame = (slc_frame){ .header = channel->header, .payload = channel->payload };
    *got = true;
    channel->payload = NULL;
    channel->head_filled = channel->filled = channel->capacity = 0;
    return SLUICE_OK;
}

sluice_status slc_channel_take(slc_channel *channel, slc_frame *frame, bool *got, sluice_error *error)
{
    *frame = (slc_frame){ 0 };
    *got = false;
    sluice_status status = take(channel, frame, got, error);
    return status == SLUICE_UNSUPPORTED ? part_ways(channel) : status;
}

/* ---- waiting ---- */

static sluice_status wait_for(slc_channel *channel, short events, const char *what, slc_deadline deadline,
                              const volatile bool *cancelled, sluice_error *error)
{
    if (slc_flag_raised(cancelled))
        return slc_fail(error, SLUICE_CANCELLED, STAGE, "cancelled while %s %s", what, channel->peer);
    if (slc_deadline_passed(deadline))
        return slc_fail(error, SLUICE_TIMEOUT, STAGE, "%s %s took longer than %.3g s", what, channel->peer, deadline.seconds);
    struct pollfd wanted = { .fd = channel->fd, .events = events };
    int ready = poll(&wanted, 1, slc_deadline_poll_ms(deadline, cancelled == NULL ? LONG_SLICE_MS : SLICE_MS));
    if (ready < 0 && errno != EINTR)
        return slc_fail_errno(error, errno, STAGE, "%s %s", what, channel->peer);
    return SLUICE_OK;
}

sluice_status slc_channel_handshake(slc_channel *channel, slc_deadline deadline, const volatile bool *cancelled, sluice_error *error)
{
    short wanted = 0;
    sluice_status status = SLUICE_OK;
    do {
        if (wanted != 0)
            status = wait_for(channel, wanted, "the TLS handshake with", deadline, cancelled, error);
        if (status == SLUICE_OK && channel->secure != NULL)
            status = slc_secure_handshake(channel->secure, &wanted, error);
    } while (status == SLUICE_OK && wanted != 0);
    return status;
}

sluice_status slc_channel_send(slc_channel *channel, slc_frame_type type, uint32_t tag, const void *payload, size_t length,
                               slc_deadline deadline, const volatile bool *cancelled, sluice_error *error)
{
    sluice_status status = slc_channel_put(channel, type, tag, payload, length, error);
    size_t left = 0;
    while (status == SLUICE_OK) {
        status = slc_channel_flush(channel, &left, error);
        if (status != SLUICE_OK || left == 0)
            return status;
        status = wait_for(channel, POLLOUT, "sending to", deadline, cancelled, error);
    }
    return status;
}

sluice_status slc_channel_receive(slc_channel *channel, slc_frame *frame, slc_deadline deadline, const volatile bool *cancelled,
                                  sluice_error *error)
{
    for (;;) {
        bool got;
        size_t left = 0;
        sluice_status status = slc_channel_take(channel, frame, &got, error);
        if (status != SLUICE_OK || got)
            return status;
        if (channel->queued > 0)
            status = slc_channel_flush(channel, &left, error);
        if (status == SLUICE_OK)
            status = wait_for(channel, (short)(left > 0 ? POLLIN | POLLOUT : POLLIN), "waiting for", deadline, cancelled, error);
        if (status != SLUICE_OK)
            return status;
    }
}
