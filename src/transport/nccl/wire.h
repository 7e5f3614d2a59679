/*
 * wire.h: the road to peers that no copy engine reaches: NCCL's sends and receives, in turns.
 *
 * For each pair, both ends derive the same parts from the plan: the copies of a batch in the order asked, each cut where a
 * turn is full. A part that is large is a message of its own, from or into the tensor itself where it lies there in one
 * piece; small ones of one turn that follow each other are one message. What is not in one piece goes through a buffer, by
 * a kernel or copies on this GPU. There are two buffers: while one is on the wire, copies fill or empty the other.
 *
 * All ranks go through their turns in step: a full parameter ends a row of turns, so does the batch. A rank's n-th turn of a
 * row has what it has in its n-th turn with each peer, so that no two ranks wait for each other's next.
 */
#ifndef SLC_TRANSPORT_NCCL_WIRE_H
#define SLC_TRANSPORT_NCCL_WIRE_H

#include "transport/nccl/comm.h"
#include "transport/nccl/copies.h"
#include "transport/nccl/kernels.h"

enum { SLC_WIRE_BUFFERS = 2 };

typedef struct slc_wire_part {
    const slc_copy *copy;
    CUdeviceptr base;     /* where the copy begins on this side */
    int64_t first, bytes; /* of the bytes that the copy has, in their order */
    uint32_t turn;
    bool large, whole; /* whole: in one piece on this side */
    uint64_t at;       /* in a buffer; a large whole part has no room there */
} slc_wire_part;

/* Bytes from one step of a copy's dim to the next, on this side. */
static inline int64_t slc_wire_stride(bool worker, const slc_stride *dim) { return worker ? dim->destination : dim->source; }

typedef struct slc_wire_peer {
    int32_t member;         /* its number in the communicator */
    uint64_t share;         /* bytes of a turn that it would take */
    bool whole;             /* all its copies are in one piece there */
    uint64_t window, small; /* bytes of a turn; below this a part is small */
    uint64_t room;          /* bytes of each buffer */
    CUdeviceptr buffer[SLC_WIRE_BUFFERS];
    slc_wire_part *part; /* of the row of turns that is being gathered */
    size_t nparts, capacity;
    size_t posted, copied; /* how many of them are sent or received, and packed or unpacked */
    uint32_t turn;
    uint64_t filled, used; /* of the turn; of the buffer in it */
} slc_wire_peer;

typedef struct slc_wire {
    slc_nccl nccl;
    slc_comm comm;
    uint64_t bytes; /* of a turn with all peers, see SLUICE_WIRE_BYTES */
    bool open;      /* the streams and events are made */
    bool active;    /* in the batch under way */
    CUstream moving, copying;
    CUevent moved[SLC_WIRE_BUFFERS], copied[SLC_WIRE_BUFFERS];
    CUdeviceptr memory;
    slc_moves moves[SLC_WIRE_BUFFERS]; /* a kernel packs and unpacks by these; where there is none, copy engines by `copies` */
    size_t most_moves;
    slc_copies copies;
    uint64_t turns;
    const void **known; /* trainer: by plan index, the source that was found to lie on this GPU */
} slc_wire;

/* Bytes of a turn: SLUICE_WIRE_BYTES, or what is good for most. */
sluice_status slc_wire_bytes(uint64_t *bytes, sluice_error *error);

/* Whether all copies of this rank are in one piece here: then turns with others like it are larger, and take no more memory. */
bool slc_wire_is_whole(const slc_transport *transport);

/* Buffers and streams for the peers that are by_wire, if there are any. */
sluice_status slc_wire_prepare(slc_transport *transport, sluice_error *error);
/* Joins the communicator, unless wire.comm is one already, and sends or receives a few bytes with each of those peers. */
sluice_status slc_wire_join(slc_transport *transport, const unsigned char *id, const int32_t *rank, size_t count, slc_wait *wait,
                            sluice_error *error);

/*
 * INVALID where a trainer's source does not lie on this GPU: a kernel that reads such memory takes the whole process' context
 * with it. `known`, by plan index: what was found to, and need not be asked again.
 */
sluice_status slc_wire_check_source(const slc_transport *transport, const void **known, uint32_t param, sluice_error *error);

/* A segment; the device is entered. A full parameter is in its slot on return. */
sluice_status slc_wire_move(slc_transport *transport, const slc_segment *segment, void *staging, slc_wait *wait, sluice_error *error);
sluice_status slc_wire_end(slc_transport *transport, slc_wait *wait, sluice_error *error);
/* turns.c: all that is gathered. A worker has it when this returns; a trainer's GPU may still be at it. */
sluice_status slc_wire_flush(slc_transport *transport, slc_wait *wait, sluice_error *error);
/* Until the GPU has come to an event, or NCCL has met an error. */
sluice_status slc_wire_await(slc_transport *transport, CUevent event, slc_wait *wait, sluice_error *error);

/* What is under way ends, and the communicator with it. */
void slc_wire_abort(slc_transport *transport);
void slc_wire_close(slc_transport *transport); /* when its streams have come to rest */

#endif
