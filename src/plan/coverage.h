/*
 * coverage.h: the checks that make a rule safe, on one worker with its live tensors, and what the plan leaves unwritten.
 * Errors name the rule (file:line), both sides and both shapes.
 */
#ifndef SLC_PLAN_COVERAGE_H
#define SLC_PLAN_COVERAGE_H

#include "plan/plan.h"

#define SLC_MAX_SHARED_RUNS ((int64_t)1 << 23)

typedef struct slc_uncovered {
    size_t live;   /* index in the live set */
    int64_t bytes; /* of it that nothing writes, also not through another live tensor on the same memory */
} slc_uncovered;

typedef struct slc_coverage {
    int64_t live_bytes;    /* all live tensors of this rank; memory that several share counts once */
    int64_t written_bytes; /* by direct targets */
    int64_t padded_bytes;  /* cleared by padding */
    size_t nuncovered;
    slc_uncovered *uncovered; /* in registration order; owned by the arena given */
} slc_coverage;

/*
 * For worker `rank`: (1) every view lies inside its live tensor and its extents equal the rank's box, or a stated padding
 * covers the rest; (2) dtypes match; (3) no live byte is written twice, also not through two live tensors that share
 * memory; (4) with `whole_modules`, no module (name up to the last dot of the live or full name) has both a full
 * parameter and a direct one. Fills *coverage. INVALID on the first broken rule, in plan order.
 *
 * Two targets on one live tensor are compared by their views, whatever its size. Live tensors whose memory overlaps are
 * compared byte by byte, as runs of contiguous bytes, of which SLC_MAX_SHARED_RUNS are allowed (INVALID beyond that).
 */
sluice_status slc_coverage_check(const slc_plan *plan, const slc_live_set *live, int32_t rank, bool whole_modules,
                                 slc_arena *arena, slc_coverage *coverage, sluice_error *error);

#endif
