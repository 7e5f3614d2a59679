/*
 * bench.h: the side-by-side benchmark of transport nccl, of nccl_m2n and of broadcasts: trainers on one GPU, as many workers on
 * another, a process each. A work is what is moved, a way is how; each way of a work is opened, warmed up, measured and closed
 * before the next, so that none holds memory that another lacks.
 */
#ifndef SPEC_M2N_BENCH_BENCH_H
#define SPEC_M2N_BENCH_BENCH_H

#include "gpu_bench/gpu.h"
#include "gpu_bench/nccl_calls.h"
#include "transport/m2n/library.h"

enum { MOST_SIDE = 2, MOST_RANKS = 2 * MOST_SIDE, MOST_LANES = 4, MOST_SAMPLES = 100, MOST_WAYS = 24 };

/* What both sides hold of a tensor: all of it, or rows or columns of it. */
typedef enum cut { WHOLE, ROWS, COLUMNS } cut;

typedef struct tensor {
    char name[72];
    int64_t rows, columns; /* global; rows 0: one dim */
    size_t from, to; /* of this rank's part in a trainer's memory, in a worker's */
    size_t from_bytes, to_bytes;
} tensor;

typedef struct assignment {
    const char *name, *title;
    int side; /* trainers, and workers */
    cut source, target;
    tensor *tensor;
    size_t count;
    const char **names;
    size_t source_bytes, live_bytes, moved; /* of a trainer, of a worker; to all workers */
} assignment;

bool assignment_make(const char *name, bool tiny, assignment *out); /* false: no work of that name */
const char *assignment_names(void);
char *assignment_init_info(const assignment *a, int port); /* to be freed */
/* What a worker must hold of a trainer's memory; `piece` has room for all tensors. The number of them. */
size_t assignment_pieces(const assignment *a, int worker, int trainer, piece *list);

/* Of a way. */
typedef struct outcome {
    char failed[CREW_TEXT]; /* why it was not measured */
    double lane[MOST_RANKS]; /* of the sample under way */
    double seconds[MOST_SAMPLES], issue_us[MOST_SAMPLES];
    uint64_t wrong;
    size_t device_bytes[2]; /* of a rank on either side, beside the tensors */
    bool done;
} outcome;

typedef struct shared {
    crew crew; /* its steps are ways */
    char gpu[2][128], library[SLUICE_ERROR_TEXT], nccl_text[SLUICE_ERROR_TEXT];
    int driver, nccl;
    CUipcMemHandle memory[MOST_SIDE]; /* of each worker */
    unsigned char id[MOST_LANES][128];
    _Atomic uint64_t wrong;
    outcome way[MOST_WAYS];
} shared;

typedef struct options {
    int samples, gpu[2];
    const char *kernels, *ways;
    bool tiny;
    double timeout_s;
} options;

typedef struct place {
    const options *options;
    shared *all;
    const assignment *work;
    int rank, number; /* in the world, on its side */
    bool worker;
    gpu gpu;
    CUdeviceptr memory; /* sources, or live tensors */
    CUdeviceptr there;  /* trainer: the memory of the worker of its number, as mapped here */
    slc_m2n m2n; /* file.library NULL: there is none */
    nccl_calls nccl;
    bool has_nccl;
    const int *listen_fd; /* by way */
    void *state; /* of the way under way */
} place;

/* How something is moved. */
typedef struct course {
    const char *name, *title;
    const char *(*missing)(const place *p); /* NULL: nothing */
    void (*open)(place *p, const struct course *way);
    void (*run)(place *p, const struct course *way, double *issue_us); /* returns when all is there on this rank */
    void (*close)(place *p, const struct course *way);
    int lanes;
    bool grouped;
    const char *copies; /* NCCL_RESHARD_COPY_ALGORITHM */
    const char *split;  /* NCCL_RESHARD_SPLIT_COMM */
    const char *transport;
} course;

extern const course ways[];
extern const size_t nways;

/* All ranks come here before any goes on. */
static inline void meet(place *p) { crew_meet(&p->all->crew, 2 * p->work->side); }

#endif
