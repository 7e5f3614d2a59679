/*
 * replica.h: which replica of a source shard feeds which destination. Both sides derive it from the plan alone; trainers
 * of one replica group send about the same number of bytes, over the whole plan and over any stretch of it.
 *
 * A target's pieces are shared out in two steps. First, a piece is cut into as many parts as it takes (and as its size
 * allows: none below a quantum) for the busiest replica to send at most a sixteenth more than the mean. What cannot be
 * shared out evenly is one more part for some replicas that follow each other; the scheduler keeps what each replica has
 * sent beyond its share so far and starts where that is least. Of targets that are cut as far as their size allows such a
 * part is below two quanta; so over any stretch of a plan no replica is further from the mean than a sixteenth and a few
 * quanta. (The sum of squares of the distances from the mean never grows by more than the square of a part, for the
 * neighbours that have sent least have sent no more than the mean.)
 */
#ifndef SLC_PLAN_REPLICA_H
#define SLC_PLAN_REPLICA_H

#include "plan/index.h"
#include "plan/plan.h"

/*
 * The schedule of one target (or of a full parameter). A piece (one source shard's meeting with one destination box) is
 * cut into `parts` along one dim (route.c says which); part i for destination number j comes from replica
 * (first + j * parts + i) mod replicas. Destinations are numbered from 0 for each source shard: those it reaches.
 */
typedef struct slc_schedule {
    int32_t replicas;
    int32_t parts;
    int32_t first;
} slc_schedule;

/* The replica that sends one part of what a destination gets. */
int32_t slc_schedule_replica(slc_schedule schedule, int64_t destination, int32_t part);

/* What the scheduler has to know of a target, as one source shard sees it. */
typedef struct slc_fanout {
    int64_t destinations; /* that one shard reaches, at least 1 */
    int64_t bytes;        /* that leave the shard's replicas, all destinations together */
    bool even;            /* every destination gets the same */
} slc_fanout;

/* Keeps what each replica of each source layout has sent beyond its share, while the plan is walked in order. */
typedef struct slc_scheduler {
    int64_t quantum;
    slc_address_index layouts;
    struct slc_scheduler_group *group; /* one a layout */
    size_t capacity;
    size_t loads; /* replicas that are kept track of, over all groups */
} slc_scheduler;

/* Begins a plan; `quantum` is the plan's, see slc_plan_quantum. Ended by slc_scheduler_end. */
void slc_scheduler_begin(slc_scheduler *scheduler, int64_t quantum);
/* The schedule of the next target in plan order; targets of all parameters must pass through, on every rank. NO_MEMORY. */
sluice_status slc_scheduler_next(slc_scheduler *scheduler, const slc_layout *source, slc_fanout fanout, slc_schedule *schedule,
                                 sluice_error *error);
/* Frees what it has kept. */
void slc_scheduler_end(slc_scheduler *scheduler);

#endif
