/*
 * replica.h: which replica of a source shard feeds which destination. Both sides derive it from the plan alone; trainers
 * of one replica group send about the same number of bytes, over the whole plan and over any stretch of it.
 */
#ifndef SLC_PLAN_REPLICA_H
#define SLC_PLAN_REPLICA_H

#include "plan/plan.h"

/*
 * The schedule of one target (or of a full parameter). A piece (one source shard's meeting with one destination box) is
 * cut into `parts` along its longest dim; part i for destination number j comes from replica
 * (first + j * parts + i) mod replicas.
 */
typedef struct slc_schedule {
    int32_t replicas;
    int32_t parts;
    int32_t first;
} slc_schedule;

int32_t slc_schedule_replica(slc_schedule schedule, int64_t destination, int32_t part);

/* Keeps one byte cursor for each group of replicas, while the plan is walked in order. Initialise with slc_scheduler_begin. */
typedef struct slc_scheduler {
    struct slc_scheduler_group *group;
    size_t ngroups, capacity;
} slc_scheduler;

void slc_scheduler_begin(slc_scheduler *scheduler);
/* The schedule of the next target: `destinations` receivers, `bytes` in all that leave one shard's replicas, about. */
sluice_status slc_scheduler_next(slc_scheduler *scheduler, const slc_layout *source, int64_t destinations, int64_t bytes,
                                 slc_schedule *schedule, sluice_error *error);
void slc_scheduler_end(slc_scheduler *scheduler);

#endif
