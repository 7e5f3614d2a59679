/*
 * plan.h: the plan, that is the ordered list of parameters with their source layouts and their destinations. Every rank
 * holds the same one; nothing in it depends on the rank that holds it. It owns all it points to.
 */
#ifndef SLC_PLAN_PLAN_H
#define SLC_PLAN_PLAN_H

#include "base/digest.h"
#include "plan/layout.h"
#include "plan/view.h"

/* X(NAME, text) */
#define SLC_MODE_LIST(X)                                                                                               \
    X(UNRESOLVED, "unresolved") /* destinations not filled in yet */                                                   \
    X(DIRECT, "direct")         /* in place, into one or more targets */                                               \
    X(FULL, "full")             /* whole, to load_weights on every worker */                                           \
    X(ALIAS, "alias")           /* not moved: `alias_of` brings the same values */                                     \
    X(SKIP, "skip")             /* not moved, for a stated reason */

typedef enum slc_mode {
#define SLC_MODE_ENUM(name, text) SLC_MODE_##name,
    SLC_MODE_LIST(SLC_MODE_ENUM)
#undef SLC_MODE_ENUM
} slc_mode;

/* Its text in the list above. Never NULL. */
const char *slc_mode_text(slc_mode mode);

#define SLC_MAX_TARGETS 1024 /* of one parameter */

/*
 * What a target does with the part of its window that no element of the strip fills:
 *   SLC_PAD_NONE   there is none: window and box are equal
 *   SLC_PAD_ZERO   clears it, at the high end of each dim
 *   SLC_PAD_EMPTY  as NONE on a worker with elements; one whose box is empty clears its whole window
 *   SLC_PAD_CLEAR  the target brings nothing: each worker that the layout's pins let, and that has the live tensor, clears
 *                  the window. `source` is not looked at, the layout holds pins only, dtypes may differ, live dims behind
 *                  the view's are whole
 */
typedef enum slc_pad { SLC_PAD_NONE, SLC_PAD_ZERO, SLC_PAD_EMPTY, SLC_PAD_CLEAR } slc_pad;

/*
 * One strip of a parameter and where it lands. The strip is `source` (one range a parameter dim, counts resolved);
 * selected dims are gone from it. `layout` cuts the strip's shape over the worker mesh; on each worker that it gives a box,
 * that box fills `view` of the live tensor `live`. Where the window is larger than the box, `pad` must say so. Targets may
 * take the same elements into different live tensors, or into one on different workers (other pins on one axis).
 */
typedef struct slc_target {
    slc_range source[SLC_MAX_DIMS];
    const char *live;
    slc_view view;
    const slc_layout *layout;
    slc_pad pad;
    const slc_dtype *dtype; /* in which it lands: a conversion that there is (base/cast.h); NULL: as the parameter */
    bool scales;            /* what lands are the scales of the target before it */
} slc_target;

struct slc_param;
/* The dtype in which a target lands, and the conversion to it. */
const slc_dtype *slc_target_dtype(const struct slc_param *param, const slc_target *target);
slc_cast slc_target_cast(const struct slc_param *param, const slc_target *target);

/*
 * A conversion in blocks is two targets: elements, and right behind them `scales`, of the same strip, layout, order and padding,
 * into a float32 tensor of a number for each block of the elements' live tensor, with a view counted in blocks. Blocks are of
 * the live tensor's last two dims and begin at its first element, so that a view begins at the begin of a block and ends at the end
 * of one, or of the tensor (landing.c). Every block that a worker gets lies whole in one trainer's shard: where a shard ends within
 * a worker's box, that is a whole number of blocks from the box's begin. That is a matter of the layouts alone, see
 * slc_blocks_check.
 *
 * blocks: the strip's dims that are the rows and the columns of blocks; false where the conversion is not in blocks.
 */
bool slc_target_blocks(const struct slc_param *param, const slc_target *target, int dim[2]);

/* Whether shards let a conversion in blocks be; `target` with its source ranges resolved. INVALID, begun with `place`, which
   names a trainer's cut. OK for any other target. */
sluice_status slc_blocks_check(const struct slc_param *param, const slc_target *target, const char *place, sluice_error *error);

/*
 * The strip's dims: ndim and extents; *dim_of[i], the parameter's dim behind strip dim i, may be NULL. With SLC_PAD_CLEAR
 * they are the view's, all of extent 0, and dim_of is not filled in.
 */
int slc_target_strip(const struct slc_param *param, const slc_target *target, int64_t shape[SLC_MAX_DIMS],
                     int dim_of[SLC_MAX_DIMS]);

typedef struct slc_param {
    const char *name;
    const slc_dtype *dtype;
    int ndim;
    int64_t shape[SLC_MAX_DIMS];
    int64_t bytes; /* of the whole tensor */
    const slc_layout *source; /* over trainer ranks */
    bool allow_full;

    slc_mode mode;
    size_t ntargets;
    slc_target *target; /* DIRECT */
    const char *alias_of; /* ALIAS */
    size_t ncompanions;
    const uint32_t *companion; /* parameters without which this one is of no use; in the plan's order numbers */
    const char *reason; /* why this mode; "" for none */
    const char *where;  /* the rule's "file:line", or "default resolver" */
} slc_param;

typedef struct slc_plan slc_plan;

/* trainers and workers at least 1. NULL when there is no memory. */
slc_plan *slc_plan_create(int32_t trainers, int32_t workers);
void slc_plan_destroy(slc_plan *plan); /* NULL is allowed */

int32_t slc_plan_trainers(const slc_plan *plan); /* how many there are */
int32_t slc_plan_workers(const slc_plan *plan);  /* how many there are */

/*
 * A plan with the same meshes, parameters and quantum and without destinations. *copy is NULL on failure (NO_MEMORY).
 */
sluice_status slc_plan_copy(const slc_plan *plan, slc_plan **copy, sluice_error *error);

/*
 * The bytes that are worth a transfer of their own, 1 MiB unless set: larger pieces may be cut so that several replicas
 * send, and about as many bytes of small ones go to one replica before the next one takes over. At least 1; the same on
 * all ranks.
 */
int64_t slc_plan_quantum(const slc_plan *plan);
void slc_plan_set_quantum(slc_plan *plan, int64_t bytes);

/* A mesh over all trainers (first 0) or all workers (first = trainers), copied and checked; its name is unique a side. */
sluice_status slc_plan_add_mesh(slc_plan *plan, const slc_mesh *mesh, const slc_mesh **added, sluice_error *error);
const slc_mesh *slc_plan_mesh(const slc_plan *plan, bool workers, const char *name); /* NULL where there is none */
const slc_mesh *slc_plan_mesh_at(const slc_plan *plan, bool workers, size_t index);  /* NULL past the last */

/* The one stored copy of an equal layout. Not checked against any tensor here. NULL when there is no memory. */
const slc_layout *slc_plan_layout(slc_plan *plan, const slc_layout *layout);

/*
 * Appends a parameter in transfer order: name, dtype, ndim, shape, source (checked; interned), allow_full are read.
 * INVALID: name empty or taken, ndim over 8, an extent below 1, 2^62 bytes or more with all before it, a layout
 * that does not fit.
 */
sluice_status slc_plan_add(slc_plan *plan, const slc_param *param, sluice_error *error);
size_t slc_plan_count(const slc_plan *plan);
const slc_param *slc_plan_at(const slc_plan *plan, size_t index);
/* SIZE_MAX where there is none. */
size_t slc_plan_find(const slc_plan *plan, const char *name);

/*
 * Sets the destination of parameter `index`: mode, targets, alias_of, reason and where are read and copied, layouts
 * interned. What can be checked without live tensors is: the strips lie in the tensor and bring no element twice into one
 * live tensor of one worker, layouts fit
 * strips, an alias names another parameter that moves itself, full only where allowed. Messages start with `where`.
 */
sluice_status slc_plan_set(slc_plan *plan, size_t index, const slc_param *destination, sluice_error *error);

#define SLC_MAX_COMPANIONS 16

/*
 * The parameters that must come with parameter `index` in every update, as it with them; by their numbers, copied. Any time
 * after its slc_plan_set, which forgets them. INVALID: itself, none of the plan, more than SLC_MAX_COMPANIONS.
 */
sluice_status slc_plan_set_companions(slc_plan *plan, size_t index, const uint32_t *companion, size_t count, sluice_error *error);

/* After the last slc_plan_set: every parameter is resolved, aliases lead to parameters that move. */
sluice_status slc_plan_complete(const slc_plan *plan, sluice_error *error);

/*
 * The destinations as bytes, for agreement round 2; decode sets them in a plan with the same parameters and meshes, with
 * every check of slc_plan_set and slc_plan_complete, and trusts nothing. The same destinations give the same bytes on every
 * rank. encode wants a complete plan; a decode that fails leaves every parameter unresolved.
 */
sluice_status slc_plan_encode_destinations(const slc_plan *plan, slc_buffer *buffer, sluice_error *error);
sluice_status slc_plan_decode_destinations(slc_plan *plan, const void *data, size_t length, sluice_error *error);

/*
 * What ranks must agree on: the digest of the destinations without reasons and places, so that workers may keep one rule
 * file under different paths. Wants a complete plan.
 */
sluice_status slc_plan_digest_destinations(const slc_plan *plan, char digest[SLC_DIGEST_TEXT], sluice_error *error);

/*
 * Whether parameter `index` goes the same way in both plans, one of which may be a copy of the other, whatever the reasons
 * and places; mode by mode, so that an alias and a skip differ. Nothing is allocated.
 */
bool slc_plan_same_destination(const slc_plan *plan, const slc_plan *other, size_t index);

/* One parameter's destination as a line of text, for messages that set two side by side; describe adds reason and place. */
void slc_plan_destination_text(const slc_plan *plan, size_t index, char *text, size_t size);
void slc_plan_describe(const slc_plan *plan, size_t index, char *text, size_t size);

typedef struct slc_plan_totals {
    size_t direct, full, alias, skip;
    int64_t direct_bytes, full_bytes, alias_bytes, skip_bytes; /* of parameters, each once */
    int64_t largest_full_bytes;
} slc_plan_totals;

/* The sums over all parameters; unresolved ones are in none. */
slc_plan_totals slc_plan_count_totals(const slc_plan *plan);

#endif
