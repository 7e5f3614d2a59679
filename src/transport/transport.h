/*
 * transport.h: the one interface of everything that executes a program. A transport knows segments, addresses and peers;
 * it knows no rules, no JSON and no control connection: the engine carries its cards, and `watch` ends its waits.
 *
 * Life, on every rank:  open, card, connect, { begin, run ..., end } ..., close.  abort may come at any point after open.
 * Where roads lead through a communicator, it is made between connect and the first batch.
 *
 * While rules are reloaded a rank has two of them, over the same memory: one in use, between batches, and the next one up to
 * connect. Then one of the two is closed, on each rank in its own time, and the other goes on.
 */
#ifndef SLC_TRANSPORT_TRANSPORT_H
#define SLC_TRANSPORT_TRANSPORT_H

#include "base/clock.h"
#include "base/log.h"
#include "plan/program.h"

typedef struct slc_transport slc_transport;
typedef struct slc_record slc_record;

/* Called during waits, at least every 50 ms: OK to go on, anything else ends the wait with that error. NULL: never ends one. */
typedef struct slc_watch {
    sluice_status (*check)(void *context, sluice_error *error);
    void *context;
} slc_watch;

/* A region of memory that peers can map, see sluice_memory_alloc. */
typedef struct slc_region {
    void *data;
    size_t bytes;
    int fd; /* memfd */
} slc_region;

/* What one transport leaves for later ones of the same engine; released when the engine is destroyed. */
typedef struct slc_keep {
    void *what; /* NULL: nothing yet */
    void (*release)(void *what);
} slc_keep;

typedef struct slc_transport_config {
    int32_t rank, trainers, workers;
    const slc_plan *plan;
    const slc_program *program;   /* stays valid until close */
    const slc_live_set *live;     /* worker; NULL on a trainer */
    const void *const *source;    /* trainer: the shard of each parameter, by plan index; NULL where none. The engine may
                                     change it between batches */
    const slc_region *region;     /* trainer: shared regions; fixed from open to close */
    size_t nregions;
    const char *road;             /* NULL: the best that works; else the one asked for */
    void *stream;                 /* of the host, see sluice_options; NULL where it gave none */
    slc_keep *keep;
    bool no_sm;                   /* GPUs: nothing by kernels, whose work is done by SMs */
    bool mix, grouped;            /* m2n: nccl carries what it cannot; a batch's reshards are one group */
    int32_t max_cta;              /* blocks that a communicator's kernels may take; 0: its own choice */
    slc_log log;
} slc_transport_config;

typedef struct slc_ways {
    uint64_t engine_bytes, kernel_bytes;
} slc_ways;

/* A rank of a communicator, as the engine gathers them. */
typedef struct slc_member {
    int32_t rank; /* in the world */
    const unsigned char *card;
    size_t length;
} slc_member;

#define SLC_COMMUNICATOR_ID_BYTES 128

/*
 * A communicator of those ranks that need one for a peer. The engine asks every rank, has rank 0 check the answers, carries
 * the id from its lowest member to the others, and lets all members join.
 */
typedef struct slc_communicator_ops {
    /* What rank 0 has to know of this rank; nothing is appended where none of its peers needs a communicator. */
    sluice_status (*card)(slc_transport *transport, slc_buffer *card, sluice_error *error);
    /* Whether these can form one, in rank order. Pure; a card may hold anything. */
    sluice_status (*check)(const slc_member *member, size_t count, sluice_error *error);
    /* An id that has not been used; a secret. */
    sluice_status (*make_id)(slc_transport *transport, unsigned char id[SLC_COMMUNICATOR_ID_BYTES], sluice_error *error);
    /* At the same time on all members, which are rank[0 .. count), ascending. */
    sluice_status (*join)(slc_transport *transport, const unsigned char id[SLC_COMMUNICATOR_ID_BYTES], const int32_t *rank,
                          size_t count, slc_deadline deadline, slc_watch watch, sluice_error *error);
    /* The library behind it, for the plan; NULL where this rank is in none. */
    const char *(*library)(const slc_transport *transport);
} slc_communicator_ops;

typedef struct slc_transport_ops {
    const char *name;
    const slc_communicator_ops *communicator; /* NULL: no road leads through one */

    /* Local preparation only: devices, libraries, memory. Undone by close; on failure nothing is left. */
    sluice_status (*open)(const slc_transport_config *config, slc_transport **transport, sluice_error *error);

    /*
     * Memory for `slots` full parameters of up to `slot_bytes` each, at memory[0 .. slots), of the kind that this transport
     * moves into; released by close. At most once, on a worker, before card.
     */
    sluice_status (*staging)(slc_transport *transport, size_t slots, size_t slot_bytes, void **memory, sluice_error *error);

    /* What must be the same on every rank, as "name=value" lines (version, limits, environment). May be empty. */
    sluice_status (*must_match)(slc_transport *transport, slc_buffer *lines, sluice_error *error);

    /* What peers need to reach this rank; at most 64 KiB. Sent only to the ranks of program->peer. */
    sluice_status (*card)(slc_transport *transport, slc_buffer *card, sluice_error *error);

    /* Opens the road to each peer; card[i] is that of program->peer[i]. Tries what it will use, so that what cannot work fails here. */
    sluice_status (*connect)(slc_transport *transport, const unsigned char *const *card, const size_t *length, slc_deadline deadline,
                             slc_watch watch, sluice_error *error);

    /* The road to program->peer[i], for the plan ("map", "pull", "ring", ...). Valid after connect. */
    const char *(*road)(const slc_transport *transport, size_t peer);

    /*
     * A list of segments, by plan index, that will be run again and again, all of them in this order: what can be made ready
     * for that is. Local, between batches. *record is NULL where that is nothing, else released by forget or by close.
     */
    sluice_status (*record)(slc_transport *transport, const uint32_t *param, size_t count, slc_record **record, sluice_error *error);
    void (*forget)(slc_transport *transport, slc_record *record);

    /*
     * Recording inside a capture of the host's stream. captured: whether it is being captured now. place: puts a place into the
     * capture. gate: the batch under way, which all have agreed on, moves nothing before a graph comes to its place, and holds
     * it there to the end; before a worker's begin.
     */
    sluice_status (*captured)(slc_transport *transport, bool *captured, sluice_error *error);
    sluice_status (*place)(slc_transport *transport, sluice_error *error);
    sluice_status (*gate)(slc_transport *transport, sluice_error *error);

    /*
     * Before a batch of these segments is agreed on: STATE where this rank could not move it as things are, because memory is
     * no longer what it was at connect, say. Nothing waits, nothing changes.
     */
    sluice_status (*ready)(slc_transport *transport, const uint32_t *param, size_t count, sluice_error *error);

    /*
     * Of the bytes that this rank sends in an update of all, how many go by copy engines and how many by a kernel. Valid
     * after connect; {0} on a worker. NULL where all go the same way.
     */
    slc_ways (*ways)(const slc_transport *transport);

    /*
     * A batch. begin: on a trainer, `source` is final until end; called before the engine lets workers start. run: moves
     * one segment; the same order on all ranks of the batch; `staging` is the slot of a full parameter, else NULL. On a worker
     * it returns when the bytes are in place or, for a transport that queues, when they will be after `end`. end: everything
     * of this batch is done on this rank. replay is all the runs of a record that has no full parameter.
     */
    sluice_status (*begin)(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error);
    sluice_status (*run)(slc_transport *transport, const slc_segment *segment, void *staging, slc_deadline deadline, slc_watch watch,
                         sluice_error *error);
    sluice_status (*replay)(slc_transport *transport, slc_record *record, slc_deadline deadline, slc_watch watch, sluice_error *error);
    sluice_status (*end)(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error);

    /* The host gave a staging slot back: what it has queued on its stream may still read it. From any one thread, beside `run`. */
    void (*given_back)(slc_transport *transport, const void *staging);

    /* From the engine's own thread: nothing moves any more, waits end, only close may follow. */
    void (*abort)(slc_transport *transport);
    void (*close)(slc_transport *transport); /* NULL is allowed */
} slc_transport_ops;

/* Whether there is a transport of that name; *known lists the names. Opens nothing. */
bool slc_transport_known(const char *name, const char **known);

bool slc_transport_on_gpus(const char *name); /* NULL: the default, which is not */

/* The transport of that name; those on GPUs are opened out of their plugin. */
sluice_status slc_transport_find(const char *name, const slc_transport_ops **ops, sluice_error *error);

#endif
