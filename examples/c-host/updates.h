/*
 * updates.h: a rank's updater: a thread of its own that holds the Sluice engine, so that an update moves into the standby
 * weights while other threads answer from the active ones. It does what group->updating asks.
 */
#ifndef UPDATES_H
#define UPDATES_H

#include "group.h"

typedef struct updater updater;

updater *updater_start(group *group, model *model);
/* Ends what is under way, on this rank and, through Sluice, on the trainers, too; then the thread. */
void updater_stop(updater *updater);

/*
 * From rank 0: asks all ranks and waits until each is done; `text` is copied. True where all went well; otherwise *problem is
 * the lowest rank's. *seconds (may be NULL) is how long the slowest rank took. One at a time.
 */
bool updates_ask(group *group, request wanted, const char *text, char *problem, size_t size, double *seconds);

#endif
