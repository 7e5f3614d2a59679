/*
 * check.h: gpu_check: one case of what was verified on GPUs: a trainer and a worker, real processes, each on its GPU, move a
 * few parameters in several updates, and every byte is compared. What a case varies stands in `ask`.
 *
 *     main.c    the arguments, the processes, what became of them
 *     rank.c    the life of a rank through the public API
 *     memory.c  a GPU: memory of several kinds, copies, a stream that is late
 */
#ifndef SPEC_GPU_CHECK_H
#define SPEC_GPU_CHECK_H

#include "crew.h"
#include "sluice.h"
#include "transport/nccl/load.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRAINER, WORKER, RANKS, PARAMS = 13, LIVES = 10, LIVES_IN_TURN = 2 };

typedef enum memory_kind { MEMORY_ALLOC, MEMORY_VMM, MEMORY_PIECES, MEMORY_NCCL, MEMORY_KINDS } memory_kind;
typedef enum ask_how { HOW_NAMES, HOW_REPLAY, HOW_PLACE, HOWS } ask_how;

typedef struct ask {
    memory_kind memory;
    ask_how how;       /* HOW_PLACE: the worker's recording is a place in a graph of its own */
    const char *road;  /* NULL: what is best */
    bool stream;       /* each rank gives its stream, on which what makes and what reads the weights comes late */
    bool full;         /* some parameters go through load_weights */
    bool moves;        /* sources are registered elsewhere from one update to the next */
    bool no_sm;
    bool spoils;       /* a word is overwritten before it is compared, for a spec of the check */
    int kill;          /* a rank that is killed in the middle of the second update, and replaced; -1: none */
    int updates, gpu[RANKS];
    const char *nccl;
    double timeout_s;
} ask;

/* What both processes and their parent see. */
typedef struct board {
    crew crew;
    _Atomic int stuck; /* the victim is in its update, and will not come out */
    int listen_fd[LIVES_IN_TURN];
    char *init_info[LIVES_IN_TURN];
    char roads[256], survived[SLUICE_ERROR_TEXT]; /* survived: what the survivor's call ended with */
    uint64_t compared[RANKS];
    int late[RANKS]; /* updates that began while this rank's stream was still busy */
} board;

/* ---- memory.c ---- */

typedef struct gpu gpu;

gpu *gpu_open(int ordinal, memory_kind kind, const char *nccl, size_t bytes); /* bytes: room of MEMORY_PIECES */
CUdeviceptr gpu_take(gpu *g, size_t bytes, memory_kind kind);
void gpu_write(gpu *g, CUdeviceptr to, const void *from, size_t bytes); /* there on return, as below */
void gpu_read(gpu *g, void *to, CUdeviceptr from, size_t bytes);
void *gpu_stream(gpu *g); /* the host's */
void gpu_queue(gpu *g, CUdeviceptr to, CUdeviceptr from, size_t bytes); /* behind what is on that stream */
void gpu_delay(gpu *g);  /* keeps that stream busy for a while */
void gpu_stick(gpu *g);  /* for ever */
bool gpu_is_late(gpu *g);
void gpu_settle(gpu *g); /* until that stream has come to its end */
void gpu_capture(gpu *g);
CUgraphExec gpu_captured(gpu *g);
void gpu_launch(gpu *g, CUgraphExec graph);

/* ---- rank.c ---- */

/* The life of a rank's process, from its `life`-th on; does not return. */
_Noreturn void rank_live(const ask *asked, board *shared, int rank, int life);
/* To be freed. */
char *rank_init_info(const ask *asked, int port);

#endif
