/*
 * meet.c: how a trainer and its workers meet, once, in connect: over a Linux abstract socket (nothing in any file system,
 * gone with the process) of which only the card tells. The worker asks, the trainer answers, one answer an ask:
 *
 *     HELLO token, rank, road, whether it maps   ->  sizes; descriptors of the source table and of the ring, if one
 *     REGIONS from the i-th                      ->  where up to 32 regions lie; their descriptors
 *     BYE                                        ->  nothing; both close
 *
 * The kernel vouches for user and process of either end. A stranger is cut off, and the others go on waiting.
 */
#include "transport/host/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MEET_VERSION = 1, MAX_FDS = 32, STRANGERS = 64 };
enum { ASK_HELLO = 1, ASK_REGIONS = 2, ASK_BYE = 3 };

typedef struct ask {
    uint32_t version, what;
    int32_t rank;
    uint32_t road; /* slc_host_road: PULL, RING or NONE */
    uint32_t maps;
    uint32_t first; /* REGIONS */
    unsigned char token[SLC_TOKEN_BYTES];
} ask;

typedef struct answer {
    uint32_t version, what;
    uint64_t table_count;
    uint64_t ring_bytes;
    uint64_t regions;
    uint32_t count; /* of what follows */
    uint32_t reserved;
    struct {
        uint64_t address, bytes;
    } region[MAX_FDS];
} answer;

static sluice_status lost(const slc_host_peer *peer, sluice_error *error, const char *how)
{
    slc_fail(error, SLUICE_PEER, SLC_RUNTIME, "rank %" PRId32 " (pid %" PRId32 ") %s", peer->rank, peer->card.pid, how);
    if (error != NULL)
        error->rank = peer->rank;
    return SLUICE_PEER;
}

/* The same where the peer hung up: its own reason, if it gives one. */
static sluice_status left(const slc_host_peer *peer, slc_host_wait *wait, sluice_error *error, const char *how)
{
    sluice_status status = slc_host_reason(wait, error);
    return status == SLUICE_OK ? lost(peer, error, how) : status;
}

/* The address of an abstract name, and its length. */
static socklen_t abstract(const char *name, struct sockaddr_un *address)
{
    size_t length = strlen(name);
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

sluice_status slc_host_listen(slc_transport *transport, sluice_error *error)
{
    uint64_t word[2];
    if (getrandom(word, sizeof word, 0) != sizeof word)
        return slc_fail_errno(error, errno, SLC_RUNTIME, "host transport: getrandom");
    snprintf(transport->card.socket, sizeof transport->card.socket, "sluice-%016" PRIx64 "%016" PRIx64, word[0], word[1]);
    struct sockaddr_un address;
    socklen_t length = abstract(transport->card.socket, &address);
    transport->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (transport->listener < 0 || bind(transport->listener, (struct sockaddr *)&address, length) != 0 ||
        listen(transport->listener, SOMAXCONN) != 0)
        return slc_fail_errno(error, errno, SLC_RUNTIME, "host transport: the socket where workers meet this rank");
    return SLUICE_OK;
}

/* ---- messages ---- */

static bool send_message(int fd, const void *bytes, size_t length, const int *fds, size_t nfds)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
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

/* One message of at most `length` bytes; the descriptors that came with it are the caller's. -1 with errno, 0 at the end. */
static ssize_t take_message(int fd, void *bytes, size_t length, int fds[MAX_FDS], size_t *nfds)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
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
            for (size_t i = 0; i < count && *nfds < MAX_FDS; i++)
                memcpy(&fds[(*nfds)++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        while (*nfds > 0)
            close(fds[--*nfds]);
        errno = EMFILE;
        return -1;
    }
    return got;
}

static void close_all(const int *fds, size_t nfds)
{
    for (size_t i = 0; i < nfds; i++)
        close(fds[i]);
}

/* ---- the trainer ---- */

/* A connection; peer is SIZE_MAX until its hello. */
typedef struct guest {
    int fd;
    size_t peer;
} guest;

typedef struct party {
    guest *guest;
    struct pollfd *poll;
    size_t count, capacity;
    size_t done; /* peers that said bye */
} party;

static void dismiss(party *p, size_t index)
{
    close(p->guest[index].fd);
    p->guest[index] = p->guest[--p->count];
}

static void admit(slc_transport *transport, party *p)
{
    for (;;) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        struct ucred who;
        socklen_t length = sizeof who;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0 || (who.uid != geteuid() && who.uid != 0) ||
            p->count == p->capacity) {
            slc_say(&transport->config.log, SLUICE_LOG_WARN,
                    "host: a stranger (pid %d, uid %d) at the meeting socket was cut off", (int)who.pid, (int)who.uid);
            close(fd);
            continue;
        }
        p->guest[p->count++] = (guest){ .fd = fd, .peer = SIZE_MAX };
    }
}

/* The peer of a hello, or SIZE_MAX for a stranger or a rank that has come already. */
static size_t known_peer(slc_transport *transport, const party *p, const ask *a)
{
    unsigned char differs = 0;
    for (size_t i = 0; i < SLC_TOKEN_BYTES; i++)
        differs = (unsigned char)(differs | (a->token[i] ^ transport->card.token[i]));
    int32_t number = a->rank - transport->config.trainers;
    if (differs != 0 || a->rank < transport->config.trainers || number >= transport->config.workers ||
        transport->slot[number] == UINT32_MAX || transport->peer[transport->slot[number]].base != SLC_ROAD_BEST)
        return SIZE_MAX;
    for (size_t i = 0; i < p->count; i++)
        if (p->guest[i].peer == transport->slot[number])
            return SIZE_MAX;
    return transport->slot[number];
}

static sluice_status answer_hello(slc_transport *transport, guest *g, const ask *a, sluice_error *error)
{
    slc_host_peer *peer = &transport->peer[g->peer];
    answer reply = { .version = MEET_VERSION, .what = ASK_HELLO, .table_count = transport->table.count };
    int fds[2] = { transport->table.fd, -1 };
    size_t nfds = 1;
    peer->base = (slc_host_road)a->road;
    peer->maps = a->maps != 0;
    if (peer->base != SLC_ROAD_PULL && peer->base != SLC_ROAD_RING && peer->base != SLC_ROAD_NONE)
        return lost(peer, error, "asked for a road that there is not");
    if (peer->maps)
        reply.regions = transport->config.nregions;
    if (peer->base == SLC_ROAD_RING) {
        reply.ring_bytes = slc_ring_size(transport->npeers);
        sluice_status status = slc_ring_create(reply.ring_bytes, &peer->ring, error);
        if (status != SLUICE_OK)
            return status;
        fds[nfds++] = peer->ring.fd;
    }
    bool sent = send_message(g->fd, &reply, offsetof(answer, region), fds, nfds);
    if (peer->ring.shared != NULL) {
        close(peer->ring.fd);
        peer->ring.fd = -1;
    }
    return sent ? SLUICE_OK : lost(peer, error, "left while it was being answered");
}

static sluice_status answer_regions(slc_transport *transport, guest *g, const ask *a, sluice_error *error)
{
    answer reply = { .version = MEET_VERSION, .what = ASK_REGIONS };
    int fds[MAX_FDS];
    for (size_t i = a->first; i < transport->config.nregions && reply.count < MAX_FDS; i++, reply.count++) {
        const slc_region *region = &transport->config.region[i];
        reply.region[reply.count].address = (uint64_t)(uintptr_t)region->data;
        reply.region[reply.count].bytes = region->bytes;
        fds[reply.count] = region->fd;
    }
    return send_message(g->fd, &reply, sizeof reply, fds, reply.count)
               ? SLUICE_OK
               : lost(&transport->peer[g->peer], error, "left while it was being answered");
}

/* Reads what a guest asks and answers; *over says that the connection has ended. */
static sluice_status answer_guest(slc_transport *transport, party *p, guest *g, bool *over, sluice_error *error)
{
    ask a;
    int fds[MAX_FDS];
    size_t nfds;
    *over = false;
    ssize_t got = take_message(g->fd, &a, sizeof a, fds, &nfds);
    close_all(fds, nfds);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return SLUICE_OK;
    bool good = got == sizeof a && a.version == MEET_VERSION;
    if (g->peer == SIZE_MAX) {
        size_t peer = good && a.what == ASK_HELLO ? known_peer(transport, p, &a) : SIZE_MAX;
        *over = peer == SIZE_MAX;
        if (*over) {
            slc_say(&transport->config.log, SLUICE_LOG_WARN, "host: a connection without a good hello was cut off");
            return SLUICE_OK;
        }
        g->peer = peer;
        return answer_hello(transport, g, &a, error);
    }
    if (good && a.what == ASK_REGIONS)
        return answer_regions(transport, g, &a, error);
    *over = true;
    p->done++; /* also one that left early: it says why itself, or is missed on the control connection */
    return got <= 0 || (good && a.what == ASK_BYE) ? SLUICE_OK
                                                   : lost(&transport->peer[g->peer], error, "broke the rules of the meeting");
}

static sluice_status serve(slc_transport *transport, party *p, slc_host_wait *wait, sluice_error *error)
{
    while (p->done < transport->npeers) {
        p->poll[0] = (struct pollfd){ .fd = transport->listener, .events = POLLIN };
        size_t count = p->count;
        for (size_t i = 0; i < count; i++)
            p->poll[i + 1] = (struct pollfd){ .fd = p->guest[i].fd, .events = POLLIN };
        int ready = poll(p->poll, (nfds_t)(count + 1), SLC_TICK_MS);
        if (ready < 0 && errno != EINTR)
            return slc_fail_errno(error, errno, SLC_RUNTIME, "host transport: poll");
        for (size_t i = count; ready > 0 && i > 0; i--) { /* from the end: dismiss moves the last one forward */
            bool over;
            if (p->poll[i].revents == 0)
                continue;
            sluice_status status = answer_guest(transport, p, &p->guest[i - 1], &over, error);
            if (status != SLUICE_OK)
                return status;
            if (over)
                dismiss(p, i - 1);
        }
        if (ready > 0 && p->poll[0].revents != 0)
            admit(transport, p);
        int32_t missing = transport->peer[0].rank;
        for (size_t i = 0; i < transport->npeers; i++)
            if (transport->peer[i].base == SLC_ROAD_BEST) {
                missing = transport->peer[i].rank;
                break;
            }
        sluice_status status = slc_host_tick(wait, "meeting", missing, error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

sluice_status slc_host_serve(slc_transport *transport, slc_host_wait *wait, sluice_error *error)
{
    party p = { .capacity = transport->npeers + STRANGERS };
    p.guest = slc_allocate_zeroed(p.capacity, sizeof *p.guest);
    p.poll = slc_allocate_zeroed(p.capacity + 1, sizeof *p.poll);
    sluice_status status = p.guest == NULL || p.poll == NULL
                               ? slc_fail_memory(error, SLC_RUNTIME, "connections of workers", p.capacity * sizeof *p.poll)
                               : serve(transport, &p, wait, error);
    while (p.count > 0)
        dismiss(&p, p.count - 1);
    slc_release(p.guest);
    slc_release(p.poll);
    return status;
}

/* ---- the worker ---- */

static sluice_status dial(const slc_host_peer *peer, int *connection, slc_host_wait *wait, sluice_error *error)
{
    struct sockaddr_un address;
    socklen_t length = abstract(peer->card.socket, &address);
    *connection = -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return slc_fail_errno(error, errno, SLC_RUNTIME, "host transport: socket");
    sluice_status status = SLUICE_OK;
    while (status == SLUICE_OK && connect(fd, (struct sockaddr *)&address, length) != 0) {
        if (errno == ECONNREFUSED || errno == ENOENT)
            status = left(peer, wait, error, "does not listen where its card says");
        else if (errno != EAGAIN && errno != EINTR)
            status = slc_fail_errno(error, errno, SLC_RUNTIME, "meeting rank %" PRId32, peer->rank);
        else if (poll(NULL, 0, 1) >= 0 || errno == EINTR) /* its queue is full of others for now */
            status = slc_host_tick(wait, "meeting", peer->rank, error);
    }
    struct ucred who;
    socklen_t size = sizeof who;
    if (status == SLUICE_OK && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0 || who.pid != peer->card.pid))
        status = lost(peer, error, "is not who listens where its card says");
    if (status == SLUICE_OK)
        *connection = fd;
    else
        close(fd);
    return status;
}

/* Asks, and waits for the answer with the descriptors that must come with it. */
static sluice_status inquire(const slc_host_peer *peer, int fd, const ask *question, answer *reply, int fds[MAX_FDS],
                             size_t *nfds, slc_host_wait *wait, sluice_error *error)
{
    *nfds = 0;
    if (!send_message(fd, question, sizeof *question, NULL, 0))
        return left(peer, wait, error, "cut this rank off while meeting: do both run as one user?");
    for (;;) {
        ssize_t got = take_message(fd, reply, sizeof *reply, fds, nfds);
        if (got >= (ssize_t)offsetof(answer, region) && reply->version == MEET_VERSION && reply->what == question->what)
            return SLUICE_OK;
        if (got > 0) {
            close_all(fds, *nfds);
            return lost(peer, error, "broke the rules of the meeting");
        }
        if (got < 0 && errno == EMFILE)
            return slc_fail_errno(error, errno, SLC_RUNTIME, "taking descriptors from rank %" PRId32, peer->rank);
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            return left(peer, wait, error, "cut this rank off while meeting: do both run as one user?");
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        (void)poll(&ready, 1, SLC_TICK_MS);
        sluice_status status = slc_host_tick(wait, "meeting", peer->rank, error);
        if (status != SLUICE_OK)
            return status;
    }
}

static sluice_status take_hello(slc_host_peer *peer, const answer *reply, const int *fds, size_t nfds, size_t params,
                                sluice_error *error)
{
    if (nfds != (peer->base == SLC_ROAD_RING ? 2u : 1u) || reply->table_count != params)
        return lost(peer, error, "answered with another plan");
    void *data;
    size_t bytes = slc_host_pages(params * sizeof(uint64_t));
    sluice_status status = slc_host_map(fds[0], bytes, false, peer->rank, "source table", &data, error);
    if (status != SLUICE_OK)
        return status;
    peer->table = (slc_host_table){ .address = data, .count = params, .mapped = bytes, .fd = -1 };
    return peer->base == SLC_ROAD_RING ? slc_ring_attach(fds[1], reply->ring_bytes, peer->rank, &peer->ring, error) : SLUICE_OK;
}

static sluice_status take_regions(slc_host_peer *peer, const answer *reply, const int *fds, size_t nfds, size_t total,
                                  sluice_error *error)
{
    if (reply->count == 0 || reply->count > MAX_FDS || reply->count != nfds || reply->count > total - peer->region.count)
        return lost(peer, error, "did not send the regions it has");
    for (size_t i = 0; i < nfds; i++) {
        slc_host_region region = { .address = reply->region[i].address, .bytes = reply->region[i].bytes };
        if (region.bytes == 0 || region.bytes > SIZE_MAX / 2)
            return lost(peer, error, "sent a region of a size that cannot be");
        sluice_status status =
            slc_host_map(fds[i], (size_t)region.bytes, false, peer->rank, "shared region", &region.data, error);
        if (status != SLUICE_OK)
            return status;
        peer->region.item[peer->region.count++] = region;
    }
    return SLUICE_OK;
}

static sluice_status fetch_regions(slc_host_peer *peer, int fd, uint64_t total, slc_host_wait *wait, sluice_error *error)
{
    size_t bytes;
    if (total == 0)
        return SLUICE_OK;
    if (total > UINT32_MAX || !slc_multiply_size((size_t)total, sizeof *peer->region.item, &bytes))
        return lost(peer, error, "says that it shares more regions than there can be");
    sluice_status status = SLUICE_OK;
    for (size_t capacity = 0; status == SLUICE_OK && peer->region.count < total;) {
        if (capacity - peer->region.count < MAX_FDS) { /* grows with what came, not with what was promised */
            capacity = capacity == 0 ? MAX_FDS : capacity * 2;
            slc_host_region *item = slc_reallocate(peer->region.item, capacity * sizeof *item);
            if (item == NULL)
                return slc_fail_memory(error, SLC_RUNTIME, "regions of a peer", capacity * sizeof *item);
            peer->region.item = item;
        }
        ask question = { .version = MEET_VERSION, .what = ASK_REGIONS, .first = (uint32_t)peer->region.count };
        answer reply;
        int fds[MAX_FDS];
        size_t nfds;
        status = inquire(peer, fd, &question, &reply, fds, &nfds, wait, error);
        if (status != SLUICE_OK)
            break;
        status = take_regions(peer, &reply, fds, nfds, (size_t)total, error);
        close_all(fds, nfds);
    }
    return status == SLUICE_OK ? slc_host_regions_sort(&peer->region, peer->rank, error) : status;
}

sluice_status slc_host_greet(slc_transport *transport, slc_host_peer *peer, slc_host_wait *wait, sluice_error *error)
{
    int fd;
    sluice_status status = dial(peer, &fd, wait, error);
    if (status != SLUICE_OK)
        return status;
    ask question = { .version = MEET_VERSION,
                     .what = ASK_HELLO,
                     .rank = transport->config.rank,
                     .road = (uint32_t)peer->base,
                     .maps = peer->maps };
    memcpy(question.token, peer->card.token, sizeof question.token);
    answer reply;
    int fds[MAX_FDS];
    size_t nfds;
    status = inquire(peer, fd, &question, &reply, fds, &nfds, wait, error);
    if (status == SLUICE_OK) {
        status = take_hello(peer, &reply, fds, nfds, slc_host_params(transport), error);
        close_all(fds, nfds);
    }
    if (status == SLUICE_OK)
        status = fetch_regions(peer, fd, peer->maps ? reply.regions : 0, wait, error);
    if (status == SLUICE_OK) {
        question = (ask){ .version = MEET_VERSION, .what = ASK_BYE };
        if (!send_message(fd, &question, sizeof question, NULL, 0))
            status = left(peer, wait, error, "left before this rank was connected");
    }
    close(fd);
    return status;
}
