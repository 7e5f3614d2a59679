/*
 * ring.h: a stream of bytes from one trainer to one worker through shared memory: one writer, one reader, futexes to sleep
 * on. The trainer makes the memory, the worker maps it. What the other end writes there is not trusted.
 *
 * Bytes become visible to the other end (and room to the writer) in steps; before either end sleeps on any of its rings it
 * shows all steps of all of them (slc_ring_show), or two ranks could wait for each other.
 */
#ifndef SLC_TRANSPORT_HOST_RING_H
#define SLC_TRANSPORT_HOST_RING_H

#include "transport/transport.h"

struct slc_ring_shared;
struct slc_host_peer;
struct slc_wait;

typedef struct slc_host_ring {
    struct slc_ring_shared *shared; /* NULL: no ring */
    unsigned char *data;
    uint64_t bytes;    /* of data; a power of two */
    uint64_t position; /* of this end */
    uint64_t shown;    /* what the other end knows of it */
    uint64_t limit;    /* as far as this end may go, when it last looked */
    size_t mapped;
    int fd;            /* writer, until it was handed over; else -1 */
} slc_host_ring;

uint64_t slc_ring_size(size_t peers); /* bytes of data for each ring of a trainer with that many */

/* The trainer's end, with the memory, of `bytes` as slc_ring_size gives. */
sluice_status slc_ring_create(uint64_t bytes, slc_host_ring *ring, sluice_error *error);
/* The worker's end of what rank `rank` made; INVALID when the descriptor is not what it must be. Does not close it. */
sluice_status slc_ring_attach(int fd, uint64_t bytes, int32_t rank, slc_host_ring *ring, sluice_error *error);
void slc_ring_close(slc_host_ring *ring); /* a zeroed one is allowed */

/* Sends or receives one copy. `source` and `destination` are addresses here, of the copy's first byte. */
sluice_status slc_ring_send(slc_transport *transport, struct slc_host_peer *peer, const slc_copy *copy, const unsigned char *source,
                            struct slc_wait *wait, sluice_error *error);
sluice_status slc_ring_receive(slc_transport *transport, struct slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                               struct slc_wait *wait, sluice_error *error);

void slc_ring_show(slc_transport *transport); /* on all rings of this rank */
void slc_ring_hang_up(slc_host_ring *ring);   /* the other end's waits end with an error */

#endif
