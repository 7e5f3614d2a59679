/* wait.h: a wait of a transport for another rank: when it ends, who may end it, and what its error says. */
#ifndef SLC_TRANSPORT_WAIT_H
#define SLC_TRANSPORT_WAIT_H

#include "transport/transport.h"

enum { SLC_TICK_MS = 20 };

typedef struct slc_wait {
    slc_deadline deadline;
    slc_watch watch;
    const char *stage;
    int64_t *next_ns; /* when the watch is asked again; the transport's, so that many short waits ask as often as a long one */
} slc_wait;

/* Cheap enough for every few microseconds; asks the watch every SLC_TICK_MS. TIMEOUT names what is done with which rank. */
sluice_status slc_wait_tick(slc_wait *wait, const char *what, int32_t rank, sluice_error *error);

/*
 * Where all ranks of a step wait for each other, who is late cannot be told by those who wait: they end a little before the
 * deadline, and the round that follows names who has not come.
 */
slc_wait slc_wait_sooner(const slc_wait *wait);

/* For a peer that hung up: its own reason, which the watch is about to tell, or OK when none comes within a second. */
sluice_status slc_wait_reason(slc_wait *wait, sluice_error *error);

#endif
