/*
 * cancel.h: SIGINT and SIGTERM of a rank. A thread waits for them, so that nothing runs in a signal handler, and cancels
 * the engine. A second signal of the same kind ends the process at once, save that one from the parent and one from elsewhere are
 * one each: what reaches a whole group, `sluice run` passes on as well.
 */
#ifndef SLC_CLI_CANCEL_H
#define SLC_CLI_CANCEL_H

#include "sluice.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct slc_cancel {
    volatile bool cancelled;
    sluice_engine *engine;
    pthread_t thread;
    int stop; /* eventfd */
    int signals;
} slc_cancel;

/* Blocks both signals in the calling thread (and so in all that it starts) and begins to wait for them. */
sluice_status slc_cancel_begin(slc_cancel *cancel, sluice_engine *engine, sluice_error *error);
/* Call before the engine is destroyed. */
void slc_cancel_end(slc_cancel *cancel);

#endif
