/*
 * rank.h: the two processes of the benchmark and what they share. The trainer's process has one rank, the worker's as many
 * threads as the work has workers. Both go through the same rows in the same order.
 */
#ifndef SPEC_GPU_BENCH_RANK_H
#define SPEC_GPU_BENCH_RANK_H

#include "crew.h"
#include "gpu.h"

enum { TRAINER, WORKER, SIDES };
enum { MOST_SAMPLES = 100, MOST_ROWS = 64, MOST_LANES = 1 + MOST_WORKERS };

/* What a row measures in each sample, beside its own seconds. */
typedef enum series { SECONDS, WHOLE, ISSUE_US, AGREE_US, RATE_IDLE, RATE_BUSY, SERIES } series;

typedef struct outcome {
    char skipped[256]; /* why; "" where it was measured */
    double sample[SERIES][MOST_SAMPLES];
    double lane[MOST_LANES]; /* of the sample under way */
    uint64_t wrong;
    size_t device_bytes[SIDES]; /* that an engine took beside the tensors */
} outcome;

typedef struct shared {
    crew crew;
    _Atomic int again;
    char doing[96];
    char gpu[SIDES][128];
    int gpus, driver, nccl;
    CUipcMemHandle limit_memory;
    unsigned char nccl_id[128];
    outcome row[MOST_ROWS];
} shared;

typedef struct options {
    model model;
    int samples, gpu[SIDES];
    bool gpus_given;
    const char *rows; /* comma-separated; NULL: all */
    const char *spoil; /* a row whose check must fail, or NULL */
    const char *nccl, *cublas, *kernels;
    double timeout_s;
} options;

enum { PLACES = 2 * WORKS }; /* works over the link, then by wire: see course_place */

struct engines; /* of one work and road, in one process */
struct peers;
struct product;

typedef struct rank {
    const options *options;
    shared *all;
    int side;
    gpu gpu;
    const work *work; /* all WORKS */
    const int *listen_fd; /* of each work, over the link and by wire: see PLACES */
    char *const *init_info;
    CUdeviceptr source, live; /* trainer; worker: the live tensors of all works in turn */
    CUdeviceptr limit; /* worker: where bare copies go; trainer: as mapped there */
    CUdeviceptr box[2]; /* of the packed broadcast */
    struct engines *engines[PLACES];
    struct peers *peers;
    struct product *product;
} rank;

/* Rows of activations that are multiplied by matrices of 8192 x 8192: many, and arithmetic is what takes time; few, and memory is. */
typedef enum product_shape { SHAPE_SQUARE, SHAPE_PREFILL, SHAPE_BATCH, SHAPE_DECODE, SHAPES } product_shape;

/* One row: what is measured. */
typedef struct course {
    const char *name, *kind, *title;
    work_id work;
    const char *(*missing)(rank *r); /* why this cannot run here, or NULL; asked on both sides */
    void (*open)(rank *r, const struct course *row);
    /* Seconds of this side from the last `meet` on; other series go into `out`, at `sample` (-1: warms up). */
    double (*run)(rank *r, const struct course *row, outcome *out, int sample);
    /* product_run: what goes on beside the products. */
    void (*open_beside)(rank *r, const struct course *row);
    double (*beside)(rank *r, const struct course *row, outcome *out, int sample);
    bool by_wire; /* ours_run: the road is NCCL's */
    bool held; /* by a kernel that spins on every SM of both GPUs */
    bool to_limit; /* writes into the memory of bare copies */
    int variant;
    product_shape shape; /* product_run */
} course;

static inline int course_place(const course *row) { return (int)row->work + (row->by_wire ? (int)WORKS : 0); }

/* All lanes of a row come here before any goes on. */
static inline void meet(shared *all, int lanes) { crew_meet(&all->crew, lanes); }

extern const course rows[];
extern const size_t nrows;

/* limit.c */
enum { LIMIT_ONE_COPY, LIMIT_BATCH };
void limit_open(rank *r, const course *row);
double limit_run(rank *r, const course *row, outcome *out, int sample);
/* ours.c */
enum { OURS_BY_NAMES, OURS_REPLAYED };
void ours_open(rank *r, const course *row);
double ours_run(rank *r, const course *row, outcome *out, int sample);
void ours_close(rank *r);
const char *wire_missing(rank *r);
const char *wire_shared_missing(rank *r); /* where several ranks are on the worker's GPU */
/* peers.c */
const char *peers_missing(rank *r);
void peers_open(rank *r, const course *row);
double peers_run(rank *r, const course *row, outcome *out, int sample);
void peers_close(rank *r);
enum { PEERS_BROADCAST, PEERS_GROUP, /* variants, as those of limit.c */ PEERS_GROUPS_OF_32, PEERS_PACKED };
/* product.c */
const char *product_missing(rank *r);
void product_open(rank *r, const course *row);
int product_rows(product_shape shape);
double product_run(rank *r, const course *row, outcome *out, int sample);
const char *kernels_missing(rank *r);

#endif
