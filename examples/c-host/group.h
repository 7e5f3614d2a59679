/*
 * group.h: the ranks of one server: processes with one shared block. Rank 0 says what comes next, all do it, and partial results
 * are added up in the order of the ranks, so that a sum is the same every time.
 */
#ifndef GROUP_H
#define GROUP_H

#include "model.h"

#include <pthread.h>

enum { MOST_RANKS = 8, MOST_TEXT = 1 << 18, MOST_SENTENCES = 16, MOST_ROWS = 252 };

typedef enum order { COMPUTE, SWAP, STOP } order;
typedef enum request { NO_REQUEST, JOIN, MOVE, LEAVE, END } request;

/* What the ranks' updaters are asked to do, and what became of it. */
typedef struct updating {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned long asked; /* counts requests */
    request request;
    char text[MOST_TEXT]; /* JOIN: the init info; MOVE: the version's label */
    struct {
        unsigned long done; /* the last request that this rank has finished */
        bool good;
        double seconds;
        char text[4096]; /* what was wrong */
    } rank[MOST_RANKS];
} updating;

/* Sentences that are computed in one go; `ids` holds one behind the other. */
typedef struct batch {
    int sentences, tokens;
    int count[MOST_SENTENCES];
    int32_t ids[MOST_ROWS];
} batch;

typedef struct group {
    int tp;
    pthread_barrier_t barrier;
    order order;
    batch batch;
    updating updating;
    float partial[2][MOST_RANKS][MOST_ROWS * MOST_HIDDEN];
} group;

/* Before the ranks are forked. */
group *group_create(int tp);
void group_wait(group *group); /* until every rank is here */
/*
 * sum[i] = the ranks' partial results, which each has written to group_partial; every rank gets the same. `turn` counts the
 * calls on each rank, all in step.
 */
void group_sum(group *group, unsigned turn, float *sum, size_t count);
float *group_partial(group *group, int rank, unsigned turn);

#endif
