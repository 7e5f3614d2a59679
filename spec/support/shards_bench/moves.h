/*
 * moves.h: what a gather on trainer 0 and a broadcast move, made from an init info's layouts alone. Of every shard one trainer,
 * the first of its replicas, sends it; side by side they are the parameter as it is broadcast, and every worker keeps the share
 * that an even cut gives it. (Where a shard is strided, packing it on the way is not counted.)
 */
#ifndef SPEC_SHARDS_BENCH_MOVES_H
#define SPEC_SHARDS_BENCH_MOVES_H

#include "bench.h"

typedef struct shard {
    int trainer;
    size_t at, from, bytes; /* in the trainer's memory; in the parameter */
} shard;

typedef struct param_move {
    size_t bytes, first, count; /* of its shards */
} param_move;

struct moves {
    int trainers, workers;
    size_t nparams, nshards;
    param_move *param;
    shard *shard;
    size_t total, largest, *held; /* bytes: of all parameters, of the largest, of each trainer's memory */
    const char *unfit; /* why they cannot be moved so; NULL: they can */
};

/* What worker `worker` keeps of `bytes`: from *from to the result. Multiples of 8. */
static inline size_t share(const moves *m, int worker, size_t bytes, size_t *from)
{
    size_t words = bytes / 8, workers = (size_t)m->workers, w = (size_t)worker;
    *from = words * w / workers * 8;
    return words * (w + 1) / workers * 8;
}

#endif
