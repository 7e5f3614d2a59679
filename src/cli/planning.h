/* planning.h: a job's plan, before and with its destinations, made in this process without any network or live memory. */
#ifndef SLC_CLI_PLANNING_H
#define SLC_CLI_PLANNING_H

#include "cli/job.h"
#include "plan/coverage.h"
#include "plan/view.h"
#include "script/init_info.h"
#include "script/resolve.h"

typedef struct slc_planning {
    slc_script *script; /* the host is described to it */
    slc_plan *plan;
    slc_init_info info;
    slc_live_set live; /* of the job's worker, at addresses that nobody reads or writes */
    slc_resolution resolution; /* this and the next from slc_planning_resolve on */
    slc_coverage coverage;
    slc_arena arena;
    double seconds_init_info, seconds_live, seconds_resolve, seconds_check;
} slc_planning;

/* Call slc_planning_end whatever comes back. */
sluice_status slc_planning_begin(slc_planning *planning, const slc_job *job, sluice_error *error);
/* The destinations as the job's worker finds them, complete and checked. */
sluice_status slc_planning_resolve(slc_planning *planning, const slc_job *job, sluice_error *error);
void slc_planning_end(slc_planning *planning);

#endif
