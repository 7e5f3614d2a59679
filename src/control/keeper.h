/*
 * keeper.h: liveness. Every rank sends a beat to the other end of each of its links when it sent nothing else for a while,
 * and counts how long it hears nothing. Whoever pumps the group (group.h) does so; a thread of its own, the keeper, pumps
 * when nobody else has for a quarter of a beat, so that beats go on while the host computes. Private to control.
 */
#ifndef SLC_CONTROL_KEEPER_H
#define SLC_CONTROL_KEEPER_H

#include "control/group.h"

#include <sys/epoll.h>

enum { SLC_TICKS_A_BEAT = 4, SLC_BEATS_TO_BE_LOST = 3 };

/* Starts the keeper of a group that has beats; without beats there is nothing to do. It calls nothing of the host. */
sluice_status slc_keeper_start(slc_group *group, sluice_error *error);
void slc_keeper_stop(slc_group *group); /* waits for it; the caller holds no lock of the group; may be called again */

/* Holding the lock: waits for events of the group's links as epoll_wait does, at most `wait_ms` and until the next tick. */
int slc_keeper_wait(slc_group *group, struct epoll_event *event, int most, int wait_ms);

/*
 * Holding the lock, with everything taken in that has come: does the tick that is due. A link that was silent for three
 * beats breaks the group. Silence is counted in ticks that this rank lived through: one that was itself stopped, or had no
 * processor, blames nobody for that time.
 */
void slc_keeper_tick(slc_group *group, const char *stage);

#endif
