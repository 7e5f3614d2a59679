/* attendance.h: who has come to the rendezvous, and the messages that say so to those that are there. Private to control. */
#ifndef SLC_CONTROL_ATTENDANCE_H
#define SLC_CONTROL_ATTENDANCE_H

#include "control/visitor.h"

typedef struct slc_attendance {
    int32_t world_size;
    char own_who[SLC_WHO_TEXT]; /* rank 0 */
    const char *listening;      /* where rank 0 can be reached */
    slc_visitors visitors;
    slc_visitor **member; /* by rank; NULL where nobody is, and for rank 0 */
    int64_t *gave_up_ns;  /* by rank: when it was told that its own deadline had passed; 0 where that did not happen */
    uint64_t turned_away;
    char last_turned_away[512];
} slc_attendance;

/* Who holds a rank that is taken, as slc_claim_who says it. */
const char *slc_attendance_holder(const slc_attendance *at, int32_t rank);

/* DISAGREE: the ranks that are claimed twice, with their claimants. */
void slc_attendance_rivals(const slc_attendance *at, sluice_error *error);
/* DISAGREE: nobody is left to come; the ranks claimed twice and the missing ones. */
void slc_attendance_overfull(const slc_attendance *at, sluice_error *error);
/* TIMEOUT, for a rank with this deadline: who came, who did not, where rank 0 listens, who was turned away. */
void slc_attendance_late(const slc_attendance *at, slc_deadline deadline, sluice_error *error);

#endif
