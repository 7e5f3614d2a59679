/*
 * pull.h: reading another process' memory. Copies are gathered into calls of up to 1024 vectors a peer; rows too short for
 * a vector of their own are read with what lies between them into a small buffer and spread from there.
 *
 * What was queued is in place after slc_pull_drain; a queue that fills up is flushed on the way.
 */
#ifndef SLC_TRANSPORT_HOST_PULL_H
#define SLC_TRANSPORT_HOST_PULL_H

#include "transport/transport.h"

#include <sys/uio.h>

enum { SLC_PULL_VECTORS = 1024 }; /* IOV_MAX */

/* Of one peer: where bytes come from and go to. Both lists hold the same bytes in the same order, cut differently. */
typedef struct slc_pull_queue {
    struct iovec *local, *remote; /* SLC_PULL_VECTORS each */
    uint32_t nlocal, nremote;
    size_t bytes;
} slc_pull_queue;

enum {
    SLC_BOUNCE_BYTES = 256 << 10, /* stays in the second cache */
    SLC_PULL_SPREADS = 1024,
};

/* Something in the bounce buffer and where it goes. */
struct slc_pull_spread {
    unsigned char *destination;
    const unsigned char *source;
    slc_copy copy; /* by the two below */
    slc_stride dim[SLC_MAX_DIMS];
    slc_grid grid;
};

/* Of the transport: bytes on their way to short rows. */
typedef struct slc_pull_bounce {
    unsigned char *data;
    size_t used;
    struct slc_pull_spread *spread;
    uint32_t nspreads;
} slc_pull_bounce;

struct slc_host_peer;
struct slc_wait;

sluice_status slc_pull_open(slc_pull_queue *queue, sluice_error *error); /* empty */
void slc_pull_close(slc_pull_queue *queue);                              /* a zeroed one is allowed, here and below */
sluice_status slc_pull_bounce_open(slc_pull_bounce *bounce, sluice_error *error); /* empty */
void slc_pull_bounce_close(slc_pull_bounce *bounce);                              /* drops what it holds */

/* Queues one copy: `source` is the address of its first byte in the peer, `destination` here. */
sluice_status slc_pull_copy(slc_transport *transport, struct slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                            uint64_t source, struct slc_wait *wait, sluice_error *error);

/* Everything that was queued is in place. */
sluice_status slc_pull_drain(slc_transport *transport, struct slc_wait *wait, sluice_error *error);

/* For pull_grids.c. push: bytes from the peer to `destination`. note: what the bounce buffer will hold from `used` on, to be filled in;
   there must be room. next: the next combination of the `ndim` outer indices; false after the last. */
sluice_status slc_pull_push(slc_transport *transport, struct slc_host_peer *peer, unsigned char *destination, uint64_t source,
                            size_t bytes, struct slc_wait *wait, sluice_error *error);
struct slc_pull_spread *slc_pull_note(slc_pull_bounce *bounce, const slc_copy *copy, unsigned char *destination);
bool slc_pull_next(const slc_stride *dim, uint32_t ndim, int64_t *index, int64_t *source, int64_t *destination);

/* pull_grids.c: slc_pull_copy of a copy that has a grid. */
sluice_status slc_pull_grids(slc_transport *transport, struct slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                             uint64_t source, struct slc_wait *wait, sluice_error *error);

/* Whether the peer is still the process of its card and lets itself be read: reads its mark. *cause is 0, an errno, or -1 for another mark. */
bool slc_pull_try(const struct slc_host_peer *peer, int *cause);

/* The same, as an error. */
sluice_status slc_pull_check(const struct slc_host_peer *peer, struct slc_wait *wait, sluice_error *error);

/* Why process_vm_readv may be refused on this machine, as words to follow its errno: "" or "; kernel.yama.ptrace_scope is 1". */
void slc_pull_hint(char *text, size_t size);

#endif
