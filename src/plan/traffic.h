/*
 * traffic.h: how many bytes a whole plan moves between every trainer and every worker, without compiling any rank's program.
 * Parameters that are cut alike are counted once: what is left to tell them apart is the replica at which their schedule
 * begins. The sums are those of the compiled programs, copy for copy. Pure arithmetic; owns the tables it fills.
 */
#ifndef SLC_PLAN_TRAFFIC_H
#define SLC_PLAN_TRAFFIC_H

#include "plan/plan.h"

#define SLC_TRAFFIC_RANKS 8192 /* of a world that is counted: a table of trainers by workers is kept */

/* How a world lies: in world order ranks fill GPUs, GPUs fill link domains, and on their own account nodes. Each at least 1. */
typedef struct slc_places {
    int32_t ranks_a_gpu, gpus_a_domain, gpus_a_node;
} slc_places;

/*
 * What single ranks, GPUs and nodes send and receive. A pair of ranks on one GPU moves within it, one within a domain over the
 * link of both GPUs, any other over the network cards of both nodes.
 */
typedef struct slc_load {
    int32_t world, gpus, nodes;
    int64_t *rank; /* [world]: a trainer's bytes sent, a worker's received */
    int64_t *link_out, *link_in; /* [gpus] */
    int64_t *card_out, *card_in; /* [nodes] */
    /* Filled by slc_traffic_load alone: */
    int64_t *copies; /* [world]: those that stay within the domain */
    int64_t *peers, *card_peers; /* [world]: all, and those behind the network cards */
    int64_t *card; /* [world]: bytes of `rank` that go through the cards */
    int64_t *memory; /* all of the above lies here */
} slc_load;

/* Parameters (or targets) that are cut alike, and what the first of them puts on the busiest of each. */
typedef struct slc_kind {
    int64_t count, bytes; /* bytes of one, all workers together */
    int64_t rank, link, card;
} slc_kind;

typedef struct slc_traffic {
    int32_t trainers, workers;
    int64_t *bytes; /* [trainer * workers + worker] */
    uint32_t *copies; /* the same */
    int64_t *gathered; /* [trainer]: what rank 0 would get of each to hold every parameter that moves, one after the other */
    int64_t parameters, whole, largest; /* that move: how many, their bytes, those of the largest */
    size_t nkinds;
    slc_kind *kind;
    /*
     * The same update where a piece that several workers get goes to the first of them and on from worker to worker: in `rank` a
     * trainer's bytes sent and a worker's received and sent on, in `copies` those of every sender.
     */
    bool forwards; /* whether there is such a piece */
    slc_load forwarded;
} slc_traffic;

/*
 * Counts a complete plan. Cost grows with the kinds of parameters and the pairs that each moves between. INVALID: more than
 * SLC_TRAFFIC_RANKS ranks, places below 1, sums that do not fit. Ended by slc_traffic_clear, also after a failure.
 */
sluice_status slc_traffic_count(const slc_plan *plan, const slc_places *places, slc_traffic *traffic, sluice_error *error);
void slc_traffic_clear(slc_traffic *traffic); /* a cleared one may be cleared again */

/* Sums the table up. Ended by slc_load_clear. NO_MEMORY. */
sluice_status slc_traffic_load(const slc_traffic *traffic, const slc_places *places, slc_load *load, sluice_error *error);
void slc_load_clear(slc_load *load); /* the same */

#endif
