/*
 * internal.h: what the files of the host transport share: the transport itself, its peers, and its waits.
 *
 * A worker keeps one peer for each trainer of its program, a trainer one for each worker. The base road of a peer is pull
 * or ring; shards that lie in regions which the worker mapped bypass it. Both ends judge that by the same table of source
 * addresses, which the trainer publishes in shared memory at the beginning of each batch, so that they always agree.
 */
#ifndef SLC_TRANSPORT_HOST_INTERNAL_H
#define SLC_TRANSPORT_HOST_INTERNAL_H

#include "transport/host/host.h"

#include "base/error.h"
#include "transport/host/card.h"
#include "transport/host/map.h"
#include "transport/host/pull.h"
#include "transport/host/ring.h"
#include "transport/wait.h"

#define SLC_RUNTIME "runtime" /* stage of errors while opening and connecting */
#define SLC_UPDATE "update"   /* stage of errors while bytes move */

/* The road asked for, and how a peer is reached where no mapping helps. */
typedef enum slc_host_road { SLC_ROAD_BEST, SLC_ROAD_NONE, SLC_ROAD_MAP, SLC_ROAD_PULL, SLC_ROAD_RING } slc_host_road;

typedef struct slc_host_peer {
    int32_t rank;
    slc_host_card card;
    slc_host_road base;      /* NONE where only mapped shards can be reached */
    const char *road;        /* its name for the plan; "" before connect */
    bool maps;               /* the worker's end mapped the trainer's regions */
    slc_host_regions region; /* worker: the trainer's, mapped here */
    slc_host_table table;    /* worker: where the trainer's shards lie, by plan index */
    slc_host_ring ring;
    slc_pull_queue queue;    /* worker */
} slc_host_peer;

struct slc_transport {
    slc_transport_config config;
    bool worker;
    bool aborted;
    int64_t next_tick_ns;    /* when a wait asks its watch again */
    slc_host_road asked;
    slc_host_card card;      /* this process' */
    unsigned char *mark;     /* SLC_MARK_BYTES random bytes that peers read to know this memory */
    int listener;            /* trainer: the meeting socket until connect is over; else -1 */
    size_t npeers;
    slc_host_peer *peer;     /* in the order of program->peer */
    uint32_t *slot;          /* by rank on the other side: index in peer, or SLC_NO_PEER */
    slc_host_table table;    /* trainer: what it publishes */
    slc_host_regions region; /* trainer: its own, sorted */
    slc_pull_bounce bounce;  /* worker */
    void **staging;          /* worker: slots of full parameters */
    size_t nstaging;
};

/* A wait of one call into the transport; errors get `stage`. */
static inline slc_wait slc_host_wait_begin(slc_transport *transport, slc_deadline deadline, slc_watch watch, const char *stage)
{
    return (slc_wait){ .deadline = deadline, .watch = watch, .stage = stage, .next_ns = &transport->next_tick_ns };
}

/* The parameter's name for messages. */
const char *slc_host_param(const slc_transport *transport, uint32_t param);

/* Bytes from a copy's first source byte to behind its last. */
static inline int64_t slc_copy_span(const slc_copy *copy)
{
    int64_t span = slc_copy_source_run(copy);
    uint32_t ndim = copy->grid == NULL ? copy->ndim : copy->ndim - 2;
    for (uint32_t i = 0; i < ndim; i++)
        span += (copy->dim[i].count - 1) * copy->dim[i].source;
    for (int i = 0; i < 2 && copy->grid != NULL; i++) /* where scales land, more is read than they step over */
        span += (copy->grid->extent[i] - 1) * copy->grid->step[i];
    return span;
}

/* Parameters of the plan. */
static inline size_t slc_host_params(const slc_transport *transport)
{
    return transport->config.program->count;
}

/* The peer of a rank that a copy names. */
static inline slc_host_peer *slc_host_peer_of(slc_transport *transport, int32_t rank)
{
    return &transport->peer[transport->slot[transport->worker ? rank : rank - transport->config.trainers]];
}

/* source.c: writes the table of source addresses for the workers; memory that is new since the last time must be readable. */
sluice_status slc_host_publish(slc_transport *transport, const char *stage, sluice_error *error);

/* connect.c */
const char *slc_host_road_name(slc_host_road road);
sluice_status slc_host_connect_worker(slc_transport *transport, slc_wait *wait, sluice_error *error);
sluice_status slc_host_connect_trainer(slc_transport *transport, slc_wait *wait, sluice_error *error);
/* The shared region through which a copy goes, or NULL: both ends of a copy come to the same answer. */
const slc_host_region *slc_host_region_for(const slc_transport *transport, const slc_host_peer *peer, uint32_t param, const slc_copy *copy);
/* The error for a shard that no road reaches: not registered, or outside of regions under a forced map. */
sluice_status slc_host_outside(const slc_transport *transport, const slc_host_peer *peer, uint32_t param, const char *stage,
                               sluice_error *error);

/* meet.c: the two sides of the meeting. */
sluice_status slc_host_listen(slc_transport *transport, sluice_error *error);
sluice_status slc_host_serve(slc_transport *transport, slc_wait *wait, sluice_error *error);
sluice_status slc_host_greet(slc_transport *transport, slc_host_peer *peer, slc_wait *wait, sluice_error *error);

#endif
