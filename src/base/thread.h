/* thread.h: the library's own threads, which take no signal: the host's signals stay with the host's threads. */
#ifndef SLC_BASE_THREAD_H
#define SLC_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* As pthread_create; `detached`: nobody will join it. */
int slc_thread_start(pthread_t *thread, bool detached, void *(*run)(void *), void *argument);

#endif
