/*
 * bench.h: what scripts/bench-shards holds a sharded update against, on any number of GPUs: what each GPU's link carries, and
 * the same parameters as they are sent today, gathered on trainer 0 and broadcast to every worker. One process a GPU, or a rank.
 */
#ifndef SPEC_SHARDS_BENCH_BENCH_H
#define SPEC_SHARDS_BENCH_BENCH_H

#include "gpu_bench/gpu.h"
#include "gpu_bench/nccl_calls.h"

enum { MOST_GPUS = 64, MOST_RANKS = CREW_MOST, MOST_SAMPLES = 100, WAYS = 2 };

/* What all processes share. */
typedef struct shared {
    crew crew;
    _Atomic uint64_t wrong; /* words of 8 bytes */
    char gpu[MOST_GPUS][128];
    int driver, nccl;
    CUipcMemHandle memory[MOST_GPUS];
    unsigned char id[2][128];   /* of the trainers' communicator, and of trainer 0's with the workers */
    double lane[MOST_RANKS];
    double alone[MOST_GPUS][MOST_SAMPLES], together[MOST_GPUS][MOST_SAMPLES]; /* seconds */
    double way[WAYS][MOST_SAMPLES];
} shared;

typedef struct options {
    int gpus, samples;
    size_t bytes; /* of a link's copy, or of a packed broadcast's buffer */
    const char *nccl, *kernels, *init_info;
} options;

typedef struct place { /* of one process */
    const options *options;
    shared *all;
    int number, count; /* which process this is, and how many there are */
    gpu gpu;
} place;

/* All processes come here before any goes on. */
static inline void meet(const place *p) { crew_meet(&p->all->crew, p->count); }

/* links.c: seconds of each GPU's copy to its partner, one GPU at a time and all at once. */
static inline int partner(int number, int count) { return (number + (count + 1) / 2) % count; }
void links_run(place *p);

/* peers.c: the parameters of an init info, moved through trainer 0, every byte compared. */
typedef struct moves moves;
moves *moves_read(const options *o, int *ranks); /* before the processes part */
void peers_run(place *p, const moves *m);
extern const char *const way_names[WAYS], *const way_titles[WAYS];

#endif
