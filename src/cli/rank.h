/*
 * rank.h: one rank's whole life, done as an embedding host would do it: through sluice.h alone, with its own memory, its
 * own slow loader, and after every update a check of every live byte.
 */
#ifndef SLC_CLI_RANK_H
#define SLC_CLI_RANK_H

#include "cli/cancel.h"
#include "cli/job.h"
#include "cli/mirror.h"
#include "cli/report.h"

/* Exit codes of the program. */
enum { SLC_EXIT_GOOD = 0, SLC_EXIT_FAILED = 1, SLC_EXIT_WRONG = 2, SLC_EXIT_CANCELLED = 130 };

/* Runs all updates of the job; what happens goes to `report`. Returns the exit code; *error is filled unless it is 0. */
int slc_rank_run(slc_job *job, const slc_report *report, sluice_error *error);

/* ---- trainer (trainer.c) ---- */

typedef struct slc_shard {
    uint32_t param;
    slc_content box; /* of the parameter, shown by a tensor of `shape` at 0 */
    int64_t shape[SLC_JOB_DIMS];
    int64_t bytes;
    unsigned char *data;
} slc_shard;

/* All shards of a trainer in one block. Initialise with {0}. */
typedef struct slc_shards {
    slc_shard *item;
    size_t count;
    unsigned char *block;
    size_t bytes;
    bool mapped; /* block is mmap'ed here; else from sluice_memory_alloc */
    slc_mirror mirror;
} slc_shards;

/* Works out the boxes, allocates, registers. An init info that cannot be read gives no shards and no error: init says it to all ranks. */
sluice_status slc_shards_make(slc_shards *shards, const slc_job *job, sluice_engine *engine, sluice_error *error);
/* Writes the values of `update`. CANCELLED when *cancelled. */
sluice_status slc_shards_fill(slc_shards *shards, const slc_job *job, uint64_t update, const volatile bool *cancelled, sluice_error *error);
void slc_shards_clear(slc_shards *shards, sluice_engine *engine);

/* ---- worker (worker.c) ---- */

/* The live tensors of a worker in one block, with guard bytes between, and its loader. Initialise with {0}. */
typedef struct slc_serving {
    slc_job *job;
    unsigned char *block;
    size_t bytes;
    slc_mirror mirror;
    size_t *first; /* by parameter: where its uses begin in `use`; nparams + 1 */
    struct slc_use *use;
    bool reloading;
    uint64_t loaded; /* full tensors that the loader took in this update */
    slc_arena arena;
} slc_serving;

/* Allocates and poisons live memory, registers every live tensor and the host description. */
sluice_status slc_serving_make(slc_serving *serving, slc_job *job, sluice_engine *engine, sluice_error *error);
/* Brings what a GPU holds to where it is verified. */
sluice_status slc_serving_fetch(slc_serving *serving, sluice_error *error);
/* INTERNAL where something wrote between two live tensors. */
sluice_status slc_serving_check_guards(const slc_serving *serving, sluice_error *error);
void slc_serving_clear(slc_serving *serving);

/* The host's callbacks: a loader that copies each full tensor's slices to where the description says. */
sluice_status slc_serving_reload_begin(slc_serving *serving, sluice_error *error);
sluice_status slc_serving_load(slc_serving *serving, sluice_weights *weights, sluice_error *error);
sluice_status slc_serving_reload_end(slc_serving *serving, sluice_error *error);

#endif
