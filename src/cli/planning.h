/* planning.h: a job's plan before its destinations, made in this process without any network or live memory. */
#ifndef SLC_CLI_PLANNING_H
#define SLC_CLI_PLANNING_H

#include "cli/job.h"
#include "plan/view.h"
#include "script/init_info.h"

typedef struct slc_planning {
    slc_script *script; /* the host is described to it */
    slc_plan *plan;
    slc_init_info info;
    slc_live_set live; /* of the job's worker, at addresses that nobody reads or writes */
    double seconds_init_info, seconds_live;
} slc_planning;

/* Call slc_planning_end whatever comes back. */
sluice_status slc_planning_begin(slc_planning *planning, const slc_job *job, sluice_error *error);
void slc_planning_end(slc_planning *planning);

#endif
