/*
 * program.h: the plan compiled for one rank: for each parameter a segment of strided copies with the peer of each.
 * A worker's copies read from trainers into live tensors or staging; a trainer's copies read its shards for workers. Both
 * sides list the same pieces: of one segment a worker's copies are ordered by (target, source rank, part), a trainer's by
 * (worker rank, target, part), and the elements of a copy run in the same row-major order of the strip on both sides (those in
 * blocks with the rows and columns of blocks last), so that a stream of packed pieces needs no headers.
 */
#ifndef SLC_PLAN_PROGRAM_H
#define SLC_PLAN_PROGRAM_H

#include "plan/plan.h"

#define SLC_STAGING UINT32_MAX /* as `buffer`: the staging slot of a full parameter */

/* One dim of a copy, in bytes; outer dims first. */
typedef struct slc_stride {
    int64_t count, source, destination;
} slc_stride;

/*
 * A strided copy: `run` contiguous bytes on both sides (with a conversion one number, as it lands, and at least one dim),
 * repeated over ndim outer dims, collapsed to as few as the strides allow. With a conversion in blocks the last two dims are
 * the rows and the columns of the piece's grid, or of its blocks where scales land, whatever their counts. Offsets and strides
 * are in bytes: source ones from the start of the trainer's shard (contiguous, row-major), destination ones from the live tensor's
 * data or the staging slot.
 * On a trainer, destination strides are those of the packed piece, and `buffer` is unused (0). What travels and what is
 * counted are bytes as they land.
 */
typedef struct slc_copy {
    int32_t peer;    /* world rank of the other side */
    uint32_t buffer; /* worker: index in the live set, or SLC_STAGING */
    int64_t source, destination;
    int64_t run;
    int64_t bytes; /* run times all counts */
    slc_cast cast;
    uint32_t ndim;
    const slc_stride *dim;
    const slc_grid *grid; /* in blocks: the rectangle in which the source begins at element grid->at; else NULL */
} slc_copy;

/* Contiguous bytes on the source's side. */
static inline int64_t slc_copy_source_run(const slc_copy *copy)
{
    return copy->cast == SLC_CAST_NONE ? copy->run : slc_cast_from(copy->cast);
}

/* Bytes to clear in a live tensor: `run` bytes at destination, over ndim dims (source strides unused). */
typedef struct slc_fill {
    uint32_t buffer;
    int64_t destination, run, bytes;
    uint32_t ndim;
    const slc_stride *dim;
} slc_fill;

typedef struct slc_segment {
    uint32_t param; /* index in the plan */
    uint32_t ncopies, nfills;
    slc_copy *copy;
    slc_fill *fill;
    int64_t bytes; /* moved by this rank: received by a worker, sent by a trainer */
} slc_segment;

typedef struct slc_program {
    int32_t rank;
    size_t count; /* of segments: one a parameter of the plan, in plan order; alias and skip ones are empty */
    slc_segment *segment;
    int64_t bytes; /* sum over segments */
    size_t copies;
    size_t npeers;
    int32_t *peer; /* every rank this one exchanges with, ascending */
    slc_arena arena;
} slc_program;

/*
 * Compiles for `rank`: a worker with its live tensors, or a trainer with live NULL. The plan must be complete and, on a
 * worker, have passed slc_coverage_check. Costs grow with the pieces of this rank plus one step a parameter.
 */
sluice_status slc_program_compile(const slc_plan *plan, const slc_live_set *live, int32_t rank, slc_program *program,
                                  sluice_error *error);
/* Frees all; a cleared program may be cleared again. */
void slc_program_clear(slc_program *program);

/* Bytes of the shard that `rank` holds of a parameter; 0 where it holds none. */
int64_t slc_source_bytes(const slc_param *param, int32_t rank);

#endif
