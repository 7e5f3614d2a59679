/*
 * meet.c: how a trainer and its workers meet, once, in connect. The worker asks, the trainer answers, one answer an ask:
 *
 *     HELLO token, rank, road, whether it maps   ->  sizes; descriptors of the source table and of the ring, if one
 *     REGIONS from the i-th                      ->  where up to 32 regions lie; their descriptors
 *     BYE                                        ->  nothing; both close
 *
 * A stranger is cut off, and the others go on waiting.
 */
#include "transport/host/internal.h"
#include "transport/local.h"
#include "transport/peers.h"

#include <string.h>
#include <unistd.h>

enum { MEET_VERSION = 1 };
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
    } region[SLC_LOCAL_FDS];
} answer;

_Static_assert(sizeof((slc_host_card){ 0 }.socket) == SLC_LOCAL_NAME, "a card holds the whole name of a meeting socket");

static slc_local_peer met(const slc_host_peer *peer)
{
    return (slc_local_peer){ .rank = peer->rank, .pid = peer->card.pid, .socket = peer->card.socket };
}

static sluice_status lost(const slc_host_peer *peer, sluice_error *error, const char *how)
{
    slc_local_peer who = met(peer);
    return slc_local_lost(&who, SLC_RUNTIME, how, error);
}

sluice_status slc_host_listen(slc_transport *transport, sluice_error *error)
{
    return slc_local_listen(SLC_RUNTIME, transport->card.socket, &transport->listener, error);
}

/* ---- the trainer ---- */

/* The peer of a hello, or SIZE_MAX for a stranger or a rank that has come already: what it asked for is kept from the first on. */
static size_t known_peer(const slc_transport *transport, const ask *a)
{
    unsigned char differs = 0;
    for (size_t i = 0; i < SLC_TOKEN_BYTES; i++)
        differs = (unsigned char)(differs | (a->token[i] ^ transport->card.token[i]));
    int32_t number = a->rank - transport->config.trainers;
    if (differs != 0 || a->rank < transport->config.trainers || number >= transport->config.workers ||
        transport->slot[number] == SLC_NO_PEER || transport->peer[transport->slot[number]].base != SLC_ROAD_BEST)
        return SIZE_MAX;
    return transport->slot[number];
}

static sluice_status answer_hello(slc_transport *transport, const slc_local_guest *guest, const ask *a, sluice_error *error)
{
    slc_host_peer *peer = &transport->peer[guest->peer];
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
    bool sent = slc_local_send(guest->fd, &reply, offsetof(answer, region), fds, nfds);
    if (peer->ring.shared != NULL) {
        close(peer->ring.fd);
        peer->ring.fd = -1;
    }
    return sent ? SLUICE_OK : lost(peer, error, "left while it was being answered");
}

static sluice_status answer_regions(const slc_transport *transport, const slc_local_guest *guest, const ask *a, sluice_error *error)
{
    answer reply = { .version = MEET_VERSION, .what = ASK_REGIONS };
    int fds[SLC_LOCAL_FDS];
    for (size_t i = a->first; i < transport->config.nregions && reply.count < SLC_LOCAL_FDS; i++, reply.count++) {
        const slc_region *region = &transport->config.region[i];
        reply.region[reply.count].address = (uint64_t)(uintptr_t)region->data;
        reply.region[reply.count].bytes = region->bytes;
        fds[reply.count] = region->fd;
    }
    return slc_local_send(guest->fd, &reply, sizeof reply, fds, reply.count)
               ? SLUICE_OK
               : lost(&transport->peer[guest->peer], error, "left while it was being answered");
}

static sluice_status answer_guest(void *context, slc_local_guest *guest, const void *message, size_t length, bool *over, sluice_error *error)
{
    slc_transport *transport = context;
    const ask *a = message;
    bool good = length == sizeof *a && a->version == MEET_VERSION;
    if (guest->peer == SIZE_MAX) {
        guest->peer = good && a->what == ASK_HELLO ? known_peer(transport, a) : SIZE_MAX;
        *over = guest->peer == SIZE_MAX;
        return *over ? SLUICE_OK : answer_hello(transport, guest, a, error);
    }
    if (good && a->what == ASK_REGIONS)
        return answer_regions(transport, guest, a, error);
    *over = true;
    return length == 0 || (good && a->what == ASK_BYE) ? SLUICE_OK
                                                       : lost(&transport->peer[guest->peer], error, "broke the rules of the meeting");
}

static int32_t missing(void *context)
{
    const slc_transport *transport = context;
    for (size_t i = 0; i < transport->npeers; i++)
        if (transport->peer[i].base == SLC_ROAD_BEST)
            return transport->peer[i].rank;
    return transport->peer[0].rank;
}

sluice_status slc_host_serve(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    const slc_local_party party = { .listener = transport->listener, .expected = transport->npeers, .log = &transport->config.log,
                                    .context = transport, .answer = answer_guest, .missing = missing };
    return slc_local_serve(&party, wait, error);
}

/* ---- the worker ---- */

/* Asks, and waits for the answer with the descriptors that must come with it. */
static sluice_status inquire(const slc_host_peer *peer, int fd, const ask *question, answer *reply, int fds[SLC_LOCAL_FDS],
                             size_t *nfds, slc_wait *wait, sluice_error *error)
{
    slc_local_peer who = met(peer);
    *nfds = 0;
    if (!slc_local_send(fd, question, sizeof *question, NULL, 0))
        return slc_local_left(&who, wait, "cut this rank off while meeting: do both run as one user?", error);
    sluice_status status = slc_local_await(&who, fd, reply, offsetof(answer, region), sizeof *reply, fds, nfds, wait, error);
    if (status != SLUICE_OK || (reply->version == MEET_VERSION && reply->what == question->what))
        return status;
    slc_local_close(fds, *nfds);
    return lost(peer, error, "broke the rules of the meeting");
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
    if (reply->count == 0 || reply->count > SLC_LOCAL_FDS || reply->count != nfds || reply->count > total - peer->region.count)
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

static sluice_status fetch_regions(slc_host_peer *peer, int fd, uint64_t total, slc_wait *wait, sluice_error *error)
{
    size_t bytes;
    if (total == 0)
        return SLUICE_OK;
    if (total > UINT32_MAX || !slc_multiply_size((size_t)total, sizeof *peer->region.item, &bytes))
        return lost(peer, error, "says that it shares more regions than there can be");
    sluice_status status = SLUICE_OK;
    for (size_t capacity = 0; status == SLUICE_OK && peer->region.count < total;) {
        if (capacity - peer->region.count < SLC_LOCAL_FDS) { /* grows with what came, not with what was promised */
            capacity = capacity == 0 ? SLC_LOCAL_FDS : capacity * 2;
            slc_host_region *item = slc_reallocate(peer->region.item, capacity * sizeof *item);
            if (item == NULL)
                return slc_fail_memory(error, SLC_RUNTIME, "regions of a peer", capacity * sizeof *item);
            peer->region.item = item;
        }
        ask question = { .version = MEET_VERSION, .what = ASK_REGIONS, .first = (uint32_t)peer->region.count };
        answer reply;
        int fds[SLC_LOCAL_FDS];
        size_t nfds;
        status = inquire(peer, fd, &question, &reply, fds, &nfds, wait, error);
        if (status != SLUICE_OK)
            break;
        status = take_regions(peer, &reply, fds, nfds, (size_t)total, error);
        slc_local_close(fds, nfds);
    }
    return status == SLUICE_OK ? slc_host_regions_sort(&peer->region, peer->rank, error) : status;
}

sluice_status slc_host_greet(slc_transport *transport, slc_host_peer *peer, slc_wait *wait, sluice_error *error)
{
    int fd;
    slc_local_peer who = met(peer);
    sluice_status status = slc_local_dial(&who, &fd, wait, error);
    if (status != SLUICE_OK)
        return status;
    ask question = { .version = MEET_VERSION,
                     .what = ASK_HELLO,
                     .rank = transport->config.rank,
                     .road = (uint32_t)peer->base,
                     .maps = peer->maps };
    memcpy(question.token, peer->card.token, sizeof question.token);
    answer reply;
    int fds[SLC_LOCAL_FDS];
    size_t nfds;
    status = inquire(peer, fd, &question, &reply, fds, &nfds, wait, error);
    if (status == SLUICE_OK) {
        status = take_hello(peer, &reply, fds, nfds, slc_host_params(transport), error);
        slc_local_close(fds, nfds);
    }
    if (status == SLUICE_OK)
        status = fetch_regions(peer, fd, peer->maps ? reply.regions : 0, wait, error);
    if (status == SLUICE_OK) {
        question = (ask){ .version = MEET_VERSION, .what = ASK_BYE };
        if (!slc_local_send(fd, &question, sizeof question, NULL, 0))
            status = slc_local_left(&who, wait, "left before this rank was connected", error);
    }
    close(fd);
    return status;
}
