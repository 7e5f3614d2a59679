/* ring.c: see ring.h. */
#include "transport/host/ring.h"

#include "transport/host/internal.h"
#include "transport/host/strided.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 4096,
    STEP_BYTES = 64 << 10, /* shown at least this often */
    SMALLEST_RING = 256 << 10, /* several steps */
    LARGEST_RING = 4 << 20,
    ALL_RINGS = 32 << 20, /* of one trainer, about */
    SPINS = 200,
};

/* What one end tells the other: how far it came, and whether it sleeps until the other comes further. */
struct ring_end {
    _Alignas(64) _Atomic uint64_t position;
    _Atomic uint32_t sleeps; /* the futex: 1 while this end sleeps */
    _Atomic int32_t blames; /* 1 + the rank that this end's rank waits for, on whichever ring; 0 for none */
};

struct slc_ring_shared {
    struct ring_end writer, reader;
    _Alignas(64) _Atomic uint32_t hung_up;
};

uint64_t slc_ring_size(size_t peers)
{
    uint64_t bytes = LARGEST_RING;
    while (bytes > SMALLEST_RING && bytes * peers > ALL_RINGS)
        bytes /= 2;
    return bytes;
}

static void set_up(slc_host_ring *ring, void *mapped, uint64_t bytes, size_t total, int fd)
{
    *ring = (slc_host_ring){
        .shared = mapped, .data = (unsigned char *)mapped + HEADER_BYTES, .bytes = bytes, .mapped = total, .fd = fd
    };
}

sluice_status slc_ring_create(uint64_t bytes, slc_host_ring *ring, sluice_error *error)
{
    *ring = (slc_host_ring){ .fd = -1 };
    size_t total = HEADER_BYTES + (size_t)bytes;
    int fd;
    sluice_status status = slc_host_memfd("sluice-ring", total, &fd, error);
    if (status != SLUICE_OK)
        return status;
    void *mapped = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        status = slc_fail_errno(error, errno, SLC_RUNTIME, "mapping a ring (%zu bytes)", total);
        close(fd);
        return status;
    }
    set_up(ring, mapped, bytes, total, fd);
    ring->limit = bytes;
    return SLUICE_OK;
}

sluice_status slc_ring_attach(int fd, uint64_t bytes, int32_t rank, slc_host_ring *ring, sluice_error *error)
{
    *ring = (slc_host_ring){ .fd = -1 };
    if (bytes < SMALLEST_RING || bytes > LARGEST_RING || (bytes & (bytes - 1)) != 0)
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME,
                        "ring of rank %" PRId32 ": size (%" PRIu64 ") must be a power of two from %d to %d", rank, bytes,
                        SMALLEST_RING, LARGEST_RING);
    size_t total = HEADER_BYTES + (size_t)bytes;
    void *mapped;
    sluice_status status = slc_host_map(fd, total, true, rank, "ring", &mapped, error);
    if (status == SLUICE_OK)
        set_up(ring, mapped, bytes, total, -1);
    return status;
}

void slc_ring_close(slc_host_ring *ring)
{
    if (ring->shared != NULL) {
        slc_ring_hang_up(ring);
        munmap(ring->shared, ring->mapped);
        if (ring->fd >= 0)
            close(ring->fd);
    }
    *ring = (slc_host_ring){ .fd = -1 };
}

static void wake(_Atomic uint32_t *word)
{
    atomic_store(word, 0);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void slc_ring_hang_up(slc_host_ring *ring)
{
    if (ring->shared == NULL)
        return;
    atomic_store(&ring->shared->hung_up, 1);
    wake(&ring->shared->writer.sleeps);
    wake(&ring->shared->reader.sleeps);
}

/* ---- one end ---- */

static struct ring_end *my_end(const slc_transport *transport, const slc_host_ring *ring)
{
    return transport->worker ? &ring->shared->reader : &ring->shared->writer;
}

static struct ring_end *other_end(const slc_transport *transport, const slc_host_ring *ring)
{
    return transport->worker ? &ring->shared->writer : &ring->shared->reader;
}

static void show(const slc_transport *transport, slc_host_ring *ring)
{
    if (ring->shared == NULL || ring->shown == ring->position)
        return;
    atomic_store(&my_end(transport, ring)->position, ring->position);
    ring->shown = ring->position;
    struct ring_end *other = other_end(transport, ring);
    if (atomic_load(&other->sleeps) != 0)
        wake(&other->sleeps);
}

void slc_ring_show(slc_transport *transport)
{
    for (size_t i = 0; i < transport->npeers; i++)
        show(transport, &transport->peer[i].ring);
}

/* Looks how far this end may go now; false when what the other end says cannot be. */
static bool look(const slc_transport *transport, slc_host_ring *ring)
{
    uint64_t other = atomic_load(&other_end(transport, ring)->position);
    ring->limit = transport->worker ? other : other + ring->bytes;
    return ring->limit - ring->position <= ring->bytes;
}

static sluice_status damaged(const slc_host_peer *peer, sluice_error *error)
{
    slc_fail(error, SLUICE_PEER, SLC_UPDATE, "ring of rank %" PRId32 " is damaged: its end is where it cannot be", peer->rank);
    if (error != NULL)
        error->rank = peer->rank;
    return SLUICE_PEER;
}

/* Sleeps until the other end moves, at most one tick. */
static void doze(const slc_transport *transport, slc_host_ring *ring)
{
    struct ring_end *mine = my_end(transport, ring);
    uint64_t seen = transport->worker ? ring->limit : ring->limit - ring->bytes;
    atomic_store(&mine->sleeps, 1);
    if (atomic_load(&other_end(transport, ring)->position) == seen && atomic_load(&ring->shared->hung_up) == 0) {
        const struct timespec tick = { .tv_nsec = SLC_TICK_MS * 1000000L };
        syscall(SYS_futex, &mine->sleeps, FUTEX_WAIT, 1, &tick, NULL, 0);
    }
    atomic_store(&mine->sleeps, 0);
}

/* Tells all peers whom this rank waits for, so that a wait that ends for another rank's sake can name that one. */
static void blame(slc_transport *transport, int32_t rank)
{
    for (size_t i = 0; i < transport->npeers; i++)
        if (transport->peer[i].ring.shared != NULL)
            atomic_store(&my_end(transport, &transport->peer[i].ring)->blames, rank + 1);
}

static const char *doing(const slc_transport *transport)
{
    return transport->worker ? "receiving from" : "sending to";
}

static sluice_status pause_for(slc_transport *transport, slc_host_peer *peer, slc_wait *wait, sluice_error *error)
{
    slc_host_ring *ring = &peer->ring;
    if (atomic_load(&ring->shared->hung_up) != 0 && look(transport, ring) && ring->limit == ring->position) {
        sluice_status status = slc_wait_reason(wait, error);
        if (status != SLUICE_OK)
            return status;
        slc_fail(error, SLUICE_PEER, SLC_UPDATE, "rank %" PRId32 " closed its end of the ring", peer->rank);
        if (error != NULL)
            error->rank = peer->rank;
        return SLUICE_PEER;
    }
    doze(transport, ring);
    int32_t blamed = atomic_load(&other_end(transport, ring)->blames) - 1;
    sluice_status status = slc_wait_tick(wait, doing(transport), peer->rank, error);
    if (status == SLUICE_TIMEOUT && blamed >= 0 && blamed != transport->config.rank) {
        slc_fail(error, SLUICE_TIMEOUT, wait->stage,
                 "%s rank %" PRId32 ", which waits for rank %" PRId32 ", took longer than %g s", doing(transport), peer->rank,
                 blamed, wait->deadline.seconds);
        if (error != NULL)
            error->rank = blamed;
    }
    return status;
}

/* Waits until this end can go on; *bytes says how far in one piece, and *at where. */
static sluice_status wait_for(slc_transport *transport, slc_host_peer *peer, unsigned char **at, int64_t *bytes,
                              slc_wait *wait, sluice_error *error)
{
    slc_host_ring *ring = &peer->ring;
    for (int spins = 0; ring->limit == ring->position; spins++) {
        if (!look(transport, ring))
            return damaged(peer, error);
        if (ring->limit != ring->position)
            break;
        if (spins == 0)
            slc_ring_show(transport);
        if (spins < SPINS)
            continue;
        if (spins == SPINS)
            blame(transport, peer->rank);
        sluice_status status = pause_for(transport, peer, wait, error);
        if (status != SLUICE_OK)
            return status;
    }
    if (atomic_load(&my_end(transport, ring)->blames) != 0)
        blame(transport, -1);
    uint64_t offset = ring->position & (ring->bytes - 1), whole = ring->limit - ring->position;
    uint64_t piece = ring->bytes - offset < whole ? ring->bytes - offset : whole;
    *at = ring->data + offset;
    *bytes = piece > STEP_BYTES ? STEP_BYTES : (int64_t)piece;
    return SLUICE_OK;
}

static sluice_status stream(slc_transport *transport, slc_host_peer *peer, slc_strided_cursor *cursor, slc_wait *wait,
                            sluice_error *error)
{
    slc_host_ring *ring = &peer->ring;
    while (cursor->left > 0) {
        unsigned char *at;
        int64_t bytes;
        sluice_status status = wait_for(transport, peer, &at, &bytes, wait, error);
        if (status != SLUICE_OK)
            return status;
        ring->position += (uint64_t)slc_strided_step(cursor, at, bytes);
        if (ring->position - ring->shown >= STEP_BYTES) {
            show(transport, ring);
            if ((status = slc_wait_tick(wait, doing(transport), peer->rank, error)) != SLUICE_OK)
                return status;
        }
    }
    return SLUICE_OK;
}

sluice_status slc_ring_send(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, const unsigned char *source,
                            slc_wait *wait, sluice_error *error)
{
    slc_strided_cursor cursor;
    slc_strided_read(&cursor, copy, source);
    return stream(transport, peer, &cursor, wait, error);
}

sluice_status slc_ring_receive(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                               slc_wait *wait, sluice_error *error)
{
    slc_strided_cursor cursor;
    slc_strided_write(&cursor, copy, destination);
    return stream(transport, peer, &cursor, wait, error);
}
