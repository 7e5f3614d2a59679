/* group.c: see group.h. */
#include "group.h"

#include "say.h"

#include <sys/mman.h>

group *group_create(int tp)
{
    group *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g == MAP_FAILED)
        die("out of memory (%zu bytes between ranks)", sizeof *g);
    pthread_barrierattr_t barrier;
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;
    pthread_barrierattr_init(&barrier);
    pthread_barrierattr_setpshared(&barrier, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_condattr_init(&condition);
    pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    g->tp = tp;
    if (pthread_barrier_init(&g->barrier, &barrier, (unsigned)tp) != 0 || pthread_mutex_init(&g->updating.lock, &mutex) != 0 ||
        pthread_cond_init(&g->updating.changed, &condition) != 0)
        die("no barrier between processes here");
    return g;
}

void group_wait(group *g)
{
    pthread_barrier_wait(&g->barrier);
}

float *group_partial(group *g, int rank, unsigned turn)
{
    return g->partial[turn % 2][rank];
}

/* Two buffers in turn: when a rank writes one again, every rank has been at the barrier after it read it. */
void group_sum(group *g, unsigned turn, float *sum, size_t count)
{
    group_wait(g);
    const float *first = group_partial(g, 0, turn);
    for (size_t i = 0; i < count; i++)
        sum[i] = first[i];
    for (int rank = 1; rank < g->tp; rank++) {
        const float *more = group_partial(g, rank, turn);
        for (size_t i = 0; i < count; i++)
            sum[i] += more[i];
    }
}
