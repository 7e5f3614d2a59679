/* local.c: see local.h. Owns the connections of a party while it is served. */
#include "transport/local.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

sluice_status slc_local_lost(const slc_local_peer *peer, const char *stage, const char *how, sluice_error *error)
{
    slc_fail(error, SLUICE_PEER, stage, "rank %" PRId32 " (pid %" PRId32 ") %s", peer->rank, peer->pid, how);
    if (error != NULL)
        error->rank = peer->rank;
    return SLUICE_PEER;
}

sluice_status slc_local_left(const slc_local_peer *peer, slc_wait *wait, const char *how, sluice_error *error)
{
    sluice_status status = slc_wait_reason(wait, error);
    return status == SLUICE_OK ? slc_local_lost(peer, wait->stage, how, error) : status;
}

/* The address of an abstract name, and its length. */
static socklen_t abstract(const char *name, struct sockaddr_un *address)
{
    size_t length = strlen(name);
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

sluice_status slc_local_listen(const char *stage, char name[SLC_LOCAL_NAME], int *listener, sluice_error *error)
{
    uint64_t word[2];
    *listener = -1;
    if (getrandom(word, sizeof word, 0) != sizeof word)
        return slc_fail_errno(error, errno, stage, "meeting on this machine: getrandom");
    snprintf(name, SLC_LOCAL_NAME, "sluice-%016" PRIx64 "%016" PRIx64, word[0], word[1]);
    struct sockaddr_un address;
    socklen_t length = abstract(name, &address);
    *listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*listener < 0 || bind(*listener, (struct sockaddr *)&address, length) != 0 || listen(*listener, SOMAXCONN) != 0)
        return slc_fail_errno(error, errno, stage, "the socket where peers of this machine meet this rank");
    return SLUICE_OK;
}

int slc_local_accept(int listener, const slc_log *log)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return -1;
        struct ucred who = { 0 };
        socklen_t length = sizeof who;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == 0 && (who.uid == geteuid() || who.uid == 0))
            return fd;
        slc_say(log, SLUICE_LOG_WARN, "a stranger (pid %d, uid %d) at the meeting socket was cut off", (int)who.pid,
                (int)who.uid);
        close(fd);
    }
}

sluice_status slc_local_dial(const slc_local_peer *peer, int *connection, slc_wait *wait, sluice_error *error)
{
    struct sockaddr_un address;
    socklen_t length = abstract(peer->socket, &address);
    *connection = -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return slc_fail_errno(error, errno, wait->stage, "meeting rank %" PRId32 ": socket", peer->rank);
    sluice_status status = SLUICE_OK;
    while (status == SLUICE_OK && connect(fd, (struct sockaddr *)&address, length) != 0) {
        if (errno == ECONNREFUSED || errno == ENOENT)
            status = slc_local_left(peer, wait, "does not listen where its card says", error);
        else if (errno != EAGAIN && errno != EINTR)
            status = slc_fail_errno(error, errno, wait->stage, "meeting rank %" PRId32, peer->rank);
        else if (poll(NULL, 0, 1) >= 0 || errno == EINTR) /* its queue is full of others for now */
            status = slc_wait_tick(wait, "meeting", peer->rank, error);
    }
    struct ucred who;
    socklen_t size = sizeof who;
    if (status == SLUICE_OK && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid != peer->pid))
        status = slc_local_lost(peer, wait->stage, "is not who listens where its card says", error);
    if (status == SLUICE_OK)
        *connection = fd;
    else
        close(fd);
    return status;
}

/* ---- messages ---- */

bool slc_local_send(int fd, const void *bytes, size_t length, const int *fds, size_t nfds)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(SLC_LOCAL_FDS * sizeof(int))];
    } control;
    struct iovec vector = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = length };
    struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1 };
    if (nfds > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.space;
        message.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(header), fds, nfds * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)length;
}

ssize_t slc_local_take(int fd, void *bytes, size_t length, int fds[SLC_LOCAL_FDS], size_t *nfds)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(SLC_LOCAL_FDS * sizeof(int))];
    } control;
    struct iovec vector = { .iov_base = bytes, .iov_len = length };
    struct msghdr message = {
        .msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space
    };
    *nfds = 0;
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0)
        return got;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
            size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count && *nfds < SLC_LOCAL_FDS; i++)
                memcpy(&fds[(*nfds)++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        slc_local_close(fds, *nfds);
        *nfds = 0;
        errno = EMFILE;
        return -1;
    }
    return got;
}

void slc_local_close(const int *fds, size_t nfds)
{
    for (size_t i = 0; i < nfds; i++)
        close(fds[i]);
}

sluice_status slc_local_await(const slc_local_peer *peer, int fd, void *bytes, size_t least, size_t length,
                              int fds[SLC_LOCAL_FDS], size_t *nfds, slc_wait *wait, sluice_error *error)
{
    for (;;) {
        ssize_t got = slc_local_take(fd, bytes, length, fds, nfds);
        if (got > 0 && (size_t)got >= least)
            return SLUICE_OK;
        if (got > 0) {
            slc_local_close(fds, *nfds);
            return slc_local_lost(peer, wait->stage, "broke the rules of the meeting", error);
        }
        if (got < 0 && errno == EMFILE)
            return slc_fail_errno(error, errno, wait->stage, "taking descriptors from rank %" PRId32, peer->rank);
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            return slc_local_left(peer, wait, "cut this rank off while meeting: do both run as one user?", error);
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        (void)poll(&ready, 1, SLC_TICK_MS);
        sluice_status status = slc_wait_tick(wait, "meeting", peer->rank, error);
        if (status != SLUICE_OK)
            return status;
    }
}

/* ---- the side that listens ---- */

enum { STRANGERS = 64 }; /* connections beyond those that are waited for */

struct guests {
    slc_local_guest *guest;
    struct pollfd *poll;
    size_t count, capacity, done;
};

static void admit(const slc_local_party *party, struct guests *all)
{
    int fd;
    while ((fd = slc_local_accept(party->listener, party->log)) >= 0) {
        if (all->count < all->capacity)
            all->guest[all->count++] = (slc_local_guest){ .fd = fd, .peer = SIZE_MAX };
        else
            close(fd); /* this user's own, and more than can have business here */
    }
}

static void dismiss(struct guests *all, size_t index)
{
    close(all->guest[index].fd);
    all->guest[index] = all->guest[--all->count];
}

/* Descriptors have no business in this direction. */
static sluice_status hear(const slc_local_party *party, struct guests *all, size_t index, sluice_error *error)
{
    _Alignas(16) unsigned char message[SLC_LOCAL_ASK];
    slc_local_guest *guest = &all->guest[index];
    int fds[SLC_LOCAL_FDS];
    size_t nfds;
    ssize_t got = slc_local_take(guest->fd, message, sizeof message, fds, &nfds);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return SLUICE_OK;
    slc_local_close(fds, nfds);
    bool over = false;
    sluice_status status = party->answer(party->context, guest, message, got < 0 ? 0 : (size_t)got, &over, error);
    if (status != SLUICE_OK || !over)
        return status;
    if (guest->peer == SIZE_MAX)
        slc_say(party->log, SLUICE_LOG_WARN, "a connection without a good hello at the meeting socket was cut off");
    else
        all->done++; /* also one that left early: it says why itself, or is missed on the control connection */
    dismiss(all, index);
    return SLUICE_OK;
}

static sluice_status serve(const slc_local_party *party, struct guests *all, slc_wait *wait, sluice_error *error)
{
    while (all->done < party->expected) {
        all->poll[0] = (struct pollfd){ .fd = party->listener, .events = POLLIN };
        size_t count = all->count;
        for (size_t i = 0; i < count; i++)
            all->poll[i + 1] = (struct pollfd){ .fd = all->guest[i].fd, .events = POLLIN };
        int ready = poll(all->poll, (nfds_t)(count + 1), SLC_TICK_MS);
        if (ready < 0 && errno != EINTR)
            return slc_fail_errno(error, errno, wait->stage, "meeting on this machine: poll");
        sluice_status status = SLUICE_OK;
        for (size_t i = count; ready > 0 && i > 0 && status == SLUICE_OK;
             i--) /* from the end: dismiss moves the last one forward */
            if (all->poll[i].revents != 0)
                status = hear(party, all, i - 1, error);
        if (status == SLUICE_OK && ready > 0 && all->poll[0].revents != 0)
            admit(party, all);
        if (status == SLUICE_OK && all->done < party->expected)
            status = slc_wait_tick(wait, "meeting", party->missing(party->context), error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

sluice_status slc_local_serve(const slc_local_party *party, slc_wait *wait, sluice_error *error)
{
    struct guests all = { .capacity = party->expected + STRANGERS };
    all.guest = slc_allocate_zeroed(all.capacity, sizeof *all.guest);
    all.poll = slc_allocate_zeroed(all.capacity + 1, sizeof *all.poll);
    sluice_status status = all.guest == NULL || all.poll == NULL
                               ? slc_fail_memory(error, wait->stage, "connections of peers", all.capacity * sizeof *all.poll)
                               : serve(party, &all, wait, error);
    while (all.count > 0)
        dismiss(&all, all.count - 1);
    slc_release(all.guest);
    slc_release(all.poll);
    return status;
}
