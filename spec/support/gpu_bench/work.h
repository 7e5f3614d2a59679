/*
 * work.h: what the GPU benchmark moves, made from a model's shapes alone: the parameters as they lie in the trainer's
 * memory, the live tensors as they lie in the workers', and the pieces between. The engine is told of the first two only;
 * the copies that it is held against, and the check of every byte, come from the pieces.
 */
#ifndef SPEC_GPU_BENCH_WORK_H
#define SPEC_GPU_BENCH_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORK_ELEMENT = 2, MOST_WORKERS = 8 };

/* X(bytes): widths of rows that are measured one by one. */
#define WORK_ROWS_LIST(X) X(16) X(32) X(64) X(128) X(256) X(1024) X(4096)

#define WORK_ROWS_ID(bytes) WORK_ROWS_##bytes,
typedef enum work_id { WORK_DIRECT, WORK_HALF, WORK_EIGHTH, WORK_FUSED, WORK_LORA, WORK_ROWS_LIST(WORK_ROWS_ID) WORKS } work_id;
#undef WORK_ROWS_ID

typedef struct model {
    const char *name;
    int64_t hidden, intermediate, heads, kv_heads, vocabulary, layers;
    int64_t adapters, adapter_bytes; /* of WORK_LORA */
    int64_t matrix_bytes; /* of each WORK_ROWS: one matrix, every row cut in two */
} model;

typedef struct param {
    char name[72];
    int64_t rows, columns; /* rows 0: one dim */
    size_t at; /* in the trainer's memory */
} param;

typedef struct live {
    char name[72];
    int worker;
    int64_t rows, columns;
    size_t at; /* in the workers' memory, where one worker's tensors follow the other's */
    bool cut;
} live;

/* `height` rows of `width` bytes, `pitch` apart at the trainer's, without gaps at the worker's. */
typedef struct piece {
    int worker;
    size_t from, to, width, height, pitch;
} piece;

typedef struct work {
    const char *name;
    int workers; /* ranks, all on one GPU */
    int64_t row_bytes; /* of a WORK_ROWS; else 0 */
    param *param;
    size_t nparams;
    live *live;
    size_t nlives;
    piece *piece;
    size_t npieces;
    size_t source_bytes, live_bytes; /* of either memory */
    size_t moved;
    const char *rules; /* NULL: the default resolver */
    char host[512]; /* what a worker's host describes */
    const char **names; /* of all params, for sluice_update */
} work;

/* The model of that name with `layers` layers (0: its own); false where there is none. */
bool model_find(const char *name, int64_t layers, model *out);

/* Ends the process where there is no memory. */
work work_make(work_id id, const model *m);
/* The init info of one trainer and the work's workers, without digest; to be freed. */
char *work_init_info(const work *w, int port);
/* All works as JSON, to stdout. */
void work_list(const model *m);

#endif
