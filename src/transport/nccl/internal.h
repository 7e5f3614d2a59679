/*
 * internal.h: what the files of the nccl transport share: the transport itself and its peers.
 *
 * A peer is reached by the link or by the wire; of the wire, wire.h tells. Peers on one NVLink domain move bytes with copy
 * engines alone: the trainer maps the memory of the worker's live tensors once, and in each batch writes into it. Two words
 * of device memory order that: `opened`, in the trainer's memory, is raised by the worker's stream when its tensors may be
 * written; `done`, in the worker's memory, by the trainer's stream behind its copies. Neither side's host waits for the other
 * between parameters.
 *
 *     nccl.c    the operations
 *     road.c    which peer is reached how, and what ranks tell each other for that
 *     load.c    CUDA's driver
 *     device.c  a GPU, and what lies behind a pointer
 *     share.c   device memory that another process can use
 *     meet.c    trainer and worker of one machine tell each other where to write
 *     copies.c  copies as the driver takes them, many in a launch
 *     land.c    where each copy lands, as a worker tells it to a trainer
 *     kernels.c strided copies by a kernel, for short rows and for what a communicator moves as one piece
 *     caller.c  the host's own stream, and what is ordered with it
 *     way.c     which copies the kernel gets
 *     comm.c    NCCL, and a communicator
 *     wire.c    a batch over the wire: parts of copies
 *     turns.c   how they are packed, sent, received and unpacked
 *     gate.c    a place for an update in a graph of the host's
 *     record.c  batches that come again and again, made ready once
 *     link.c    a batch over the link: copies in the order asked, and the words that order them
 *
 * Transport m2n (transport/m2n/) is this transport, over a program without what nccl_m2n moves, and that beside it.
 */
#ifndef SLC_TRANSPORT_NCCL_INTERNAL_H
#define SLC_TRANSPORT_NCCL_INTERNAL_H

#include "base/error.h"
#include "transport/host/card.h"
#include "transport/local.h"
#include "transport/nccl/caller.h"
#include "transport/nccl/copies.h"
#include "transport/nccl/kernels.h"
#include "transport/nccl/share.h"
#include "transport/nccl/wire.h"
#include "transport/transport.h"
#include "transport/wait.h"

#define SLC_RUNTIME "runtime" /* stage of errors while opening and connecting */
#define SLC_UPDATE "update"   /* stage of errors while bytes move */

/* In memory that a worker and one of its trainers map. */
typedef struct slc_mailbox {
    _Atomic uint64_t number; /* n; written by the worker after `slot` */
    uint64_t slot;           /* of staging: where the n-th full parameter from this trainer goes */
    _Atomic uint64_t done;   /* batches of which this trainer's GPU has moved all */
    uint64_t unused[5];
} slc_mailbox;

/* Where a parameter's copies begin, for one worker. */
typedef struct slc_begin {
    uint32_t landing, move;
} slc_begin;

typedef struct slc_nccl_peer {
    int32_t rank;
    slc_host_card card;
    bool by_wire;       /* then only what is above, and `wire`, is used */
    slc_wire_peer wire;

    /* by the link */
    bool met;
    slc_peer_memory memory; /* the peer's, as mapped here */
    CUdeviceptr word;       /* trainer: done and staged, two words in the worker; worker: opened, in the trainer */
    uint64_t batches;       /* both ends count the batches in which they met, and the full parameters among them */
    uint64_t staged;
    bool active;            /* in the batch under way */

    /* worker */
    slc_buffer landings; /* what this trainer will be told, until connect is over */

    /* trainer */
    slc_mailbox *mailboxes, *mailbox; /* the worker's, and the one for this rank */
    size_t mailbox_bytes;
    uint64_t slots, slot_bytes, staging; /* of the worker; staging as mapped here */
    slc_landing *landing; /* by parameter */
    size_t nlandings, landing_capacity;
    slc_begin *first; /* by plan index; one more at the end */
    slc_moves moves;  /* what the kernel carries */
    uint64_t *offset; /* of each move's source, from the start of this rank's shard */
    size_t offset_capacity;
    double engine_ns, saved_ns; /* estimates: of everything by copy engines; what the kernel takes off that */
    uint64_t engine_bytes, kernel_bytes, offered_bytes; /* offered: to the kernel, that copy engines could carry */
    CUstream stream;
    slc_copies copies; /* for one launch, which goes when they are `enough` */
    size_t enough, first_move, end_move; /* the moves of that launch */
} slc_nccl_peer;

typedef enum slc_road { SLC_ROAD_ANY, SLC_ROAD_LINK, SLC_ROAD_WIRE } slc_road;

struct slc_transport {
    slc_transport_config config;
    slc_road road; /* as asked for */
    bool worker, aborted;
    bool entered; /* see slc_nccl_enter */
    int64_t next_tick_ns;
    int64_t launching_ns; /* trainer: when the first segment of the batch under way came; 0 outside of one */
    slc_cuda cuda;
    slc_device device;
    slc_kernels kernels; /* not loaded where this GPU has none: kernels.device is NULL */
    slc_caller caller;
    CUuuid uuid;
    slc_host_card card;
    slc_wire wire;
    bool everyone; /* every rank of the world is a member of the communicator, whatever its roads */
    struct slc_reshards *reshards; /* of transport m2n, see transport/m2n/m2n.c; else NULL */
    int listener; /* worker: the meeting socket until connect is over; else -1 */
    size_t npeers;
    slc_nccl_peer *peer; /* in the order of program->peer */
    uint32_t *slot;      /* by rank on the other side: index in peer, or SLC_NO_PEER */
    slc_record *record;    /* all that were made */
    slc_record *recording; /* being made: what link.c would launch goes there */
    CUdeviceptr words;   /* trainer: opened, one a peer; worker: done and staged, two a peer */
    CUstream stream;     /* worker: clears padding and waits for `done` */
    CUstream rescue;     /* raises words that nobody else will, see abort; looks at words */
    uint64_t *seen;      /* worker: room for its words */

    /* worker */
    struct slc_home *home; /* what each live tensor lies in, at connect */
    uint64_t looked;       /* how often batches' tensors were looked at */
    slc_pieces pieces;
    sluice_error unshared; /* why no other process can map its tensors, if so */
    CUdeviceptr staging;
    size_t slots, slot_bytes;
    slc_mailbox *mailbox; /* one a peer */
    size_t mailbox_bytes;
    int mailbox_fd;
};

/* A wait of one call into the transport; errors get `stage`. */
static inline slc_wait slc_nccl_wait(slc_transport *transport, slc_deadline deadline, slc_watch watch, const char *stage)
{
    return (slc_wait){ .deadline = deadline, .watch = watch, .stage = stage, .next_ns = &transport->next_tick_ns };
}

/* The peer of a rank that a copy names. */
static inline slc_nccl_peer *slc_nccl_peer_of(slc_transport *transport, int32_t rank)
{
    return &transport->peer[transport->slot[transport->worker ? rank : rank - transport->config.trainers]];
}

/* What sends enters the device where it comes to the driver, if its caller has not; the caller leaves it. */
static inline sluice_status slc_nccl_enter(slc_transport *transport, const char *stage, sluice_error *error)
{
    sluice_status status = transport->entered ? SLUICE_OK : slc_device_enter(&transport->device, stage, error);
    transport->entered = status == SLUICE_OK;
    return status;
}

/* The other end of it; not entered is allowed. */
static inline void slc_nccl_leave(slc_transport *transport)
{
    if (transport->entered)
        slc_device_leave(&transport->device);
    transport->entered = false;
}

/* The driver's error, of this transport's driver. */
static inline sluice_status slc_nccl_check(const slc_transport *transport, CUresult result, const char *stage, const char *what,
                                           sluice_error *error)
{
    return slc_cuda_check(&transport->cuda, result, stage, what, error);
}

/*
 * land.c: a worker appends to each peer's `landings`; a trainer reads one worker's, checked against its own program and what
 * that worker shares.
 */
sluice_status slc_landings_write(slc_transport *transport, sluice_error *error);
sluice_status slc_landings_read(const slc_transport *transport, slc_nccl_peer *peer, const void *bytes, size_t length,
                                sluice_error *error);

/*
 * way.c, on a trainer. converts: refuses a conversion of a parameter that this rank cannot do. convert: a copy that only a
 * kernel can do. offer: one that became the landings from `first` on; `to` as mapped here. settle: after the last offer,
 * decides what the kernel carries and puts its table on the device. aimed: whether a parameter's moves read from there. aim:
 * makes all read from where config.source says, while no launch of them is under way, nor a capture.
 */
sluice_status slc_way_converts(const slc_transport *transport, uint32_t param, slc_cast cast, sluice_error *error);
sluice_status slc_way_convert(const slc_transport *transport, slc_nccl_peer *peer, uint32_t param, const slc_copy *copy,
                              uint64_t to, sluice_error *error);
sluice_status slc_way_offer(const slc_transport *transport, slc_nccl_peer *peer, uint32_t param, const slc_copy *copy, uint64_t to,
                            size_t first, sluice_error *error);
sluice_status slc_way_settle(slc_transport *transport, slc_nccl_peer *peer, sluice_error *error);
bool slc_way_aimed(const slc_nccl_peer *peer, uint32_t param, CUdeviceptr source);
sluice_status slc_way_aim(slc_transport *transport, slc_nccl_peer *peer, sluice_error *error);

/* road.c: parts of the transport's table, and of open and connect. */
sluice_status slc_road_open(slc_transport *transport, sluice_error *error);
sluice_status slc_road_must_match(slc_transport *transport, slc_buffer *lines, sluice_error *error);
sluice_status slc_road_card(slc_transport *transport, slc_buffer *card, sluice_error *error);
sluice_status slc_road_choose(slc_transport *transport, slc_nccl_peer *peer, const unsigned char *card, size_t length,
                              sluice_error *error); /* from the peer's card alone, the same at both ends */
const char *slc_road_name(const slc_transport *transport, size_t peer);
/* Whether a link that could not be made leaves the wire; if so, the peer is by_wire from here on, and the log says why. */
bool slc_road_falls_back(slc_transport *transport, slc_nccl_peer *peer, const sluice_error *why);
extern const slc_communicator_ops slc_road_communicator;

/*
 * meet.c: both sides of the meeting with the peers that may be linked; a peer may turn out to be one by the wire. The device
 * is entered.
 */
sluice_status slc_nccl_serve(slc_transport *transport, slc_wait *wait, sluice_error *error);
sluice_status slc_nccl_greet(slc_transport *transport, slc_nccl_peer *peer, slc_wait *wait, sluice_error *error);

typedef struct slc_launch {
    slc_copies copies;
    size_t first_move, end_move;
} slc_launch;

/*
 * A record of a trainer holds its launches, by worker. With a driver that knows no batches the copies are a graph, too; where
 * it knows them, a batch was measured to be faster and to cost the host less than a graph of its copies.
 */
typedef struct slc_sending {
    slc_nccl_peer *peer;
    slc_launch *launch;
    size_t count, capacity;
    CUgraphExec graph; /* of the copies of all launches, or NULL */
} slc_sending;

struct slc_record {
    slc_record *next;
    uint32_t *param;
    size_t count;
    slc_sending *to;
    size_t nto;
};

/* record.c: parts of the transport's table. */
sluice_status slc_nccl_captured(slc_transport *transport, bool *captured, sluice_error *error);
sluice_status slc_nccl_place(slc_transport *transport, sluice_error *error);
sluice_status slc_nccl_gate(slc_transport *transport, sluice_error *error);
sluice_status slc_nccl_record(slc_transport *transport, const uint32_t *param, size_t count, slc_record **record, sluice_error *error);
void slc_nccl_forget(slc_transport *transport, slc_record *record);
/* What is gathered for a worker goes into the record that is being made. */
sluice_status slc_record_take(slc_record *record, slc_nccl_peer *peer, sluice_error *error);
void slc_records_clear(slc_transport *transport); /* releases all */
/* What a worker's live tensors lie in: remembered at connect; STATE where those of a batch no longer lie there. */
sluice_status slc_live_remember(slc_transport *transport, sluice_error *error);
sluice_status slc_live_check(slc_transport *transport, const slc_program *program, const uint32_t *param, size_t count,
                             sluice_error *error);

/* link.c: a batch, on either side. The device is entered; slc_link_send enters it itself where it launches. */
sluice_status slc_link_prepare(slc_nccl_peer *peer, size_t nparams, sluice_error *error); /* trainer: room for a launch */
sluice_status slc_link_send(slc_transport *transport, const slc_segment *segment, slc_wait *wait, sluice_error *error);
sluice_status slc_link_replay(slc_transport *transport, slc_record *record, sluice_error *error);
sluice_status slc_link_record_end(slc_transport *transport, sluice_error *error); /* after the last send of a record */
sluice_status slc_link_receive(slc_transport *transport, const slc_segment *segment, void *staging, slc_wait *wait,
                               sluice_error *error);
sluice_status slc_link_end(slc_transport *transport, slc_wait *wait, sluice_error *error);
void slc_link_abort(slc_transport *transport); /* every wait on a word of this rank ends */

#endif
