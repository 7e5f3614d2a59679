/*
 * layout.h: how a mesh cuts a tensor. A layout is a mesh and ordered placements; an axis that no placement names
 * replicates. Where several placements shard one dim, the first is the outermost: it cuts the whole dim, the next cuts
 * each of its pieces, and so on (DTensor's _StridedShard, or FSDP inside TP, is the order [tp, fsdp]).
 *
 * Everything is a closed form of (layout, rank): nothing here loops over ranks to learn one rank's box.
 */
#ifndef SLC_PLAN_LAYOUT_H
#define SLC_PLAN_LAYOUT_H

#include "plan/box.h"
#include "plan/mesh.h"

typedef enum slc_placement_kind { SLC_SHARD, SLC_PIN } slc_placement_kind;

/*
 * How a shard placement cuts an extent L into n pieces:
 *   SLC_SPLIT_CEIL      torch.chunk: pieces of ceil(L / n), the last ones short or empty
 *   SLC_SPLIT_BALANCED  the first L mod n pieces hold one more (experts under EP)
 *   SLC_SPLIT_CHUNK     pieces of `chunk` elements, clipped at L (padded vocabularies); n * chunk must reach L
 */
typedef enum slc_split { SLC_SPLIT_CEIL, SLC_SPLIT_BALANCED, SLC_SPLIT_CHUNK } slc_split;

typedef struct slc_placement {
    slc_placement_kind kind;
    int axis;           /* of the mesh; each axis is named by at most one placement */
    int dim;            /* SHARD: of the tensor */
    int32_t parts;      /* SHARD: n; divides the axis' size. Below it, the axis is (parts, size / parts), the second replicates */
    slc_split split;    /* SHARD */
    int64_t chunk;      /* SHARD with SLC_SPLIT_CHUNK */
    int32_t coordinate; /* PIN: only ranks at this coordinate hold the tensor */
} slc_placement;

typedef struct slc_layout {
    const slc_mesh *mesh;
    int nplacements;
    slc_placement placement[SLC_MAX_AXES];
} slc_layout;

/*
 * Checks axes, dims, parts, chunk and coordinates against the mesh and the tensor. Says the placement by its axis. The
 * stage is "init".
 */
sluice_status slc_layout_check(const slc_layout *layout, int ndim, const int64_t *shape, const char *where, sluice_error *error);
/* The same under another stage's name. */
sluice_status slc_layout_check_in(const char *stage, const slc_layout *layout, int ndim, const int64_t *shape, const char *where,
                                  sluice_error *error);
bool slc_layout_equal(const slc_layout *a, const slc_layout *b); /* same mesh pointer, same placements in the same order */

/*
 * False when a pin keeps the tensor from the rank (or it is not in the mesh). True with an empty box when a short tail
 * leaves nothing.
 */
bool slc_layout_box(const slc_layout *layout, int ndim, const int64_t *shape, int32_t rank, slc_box *box);

/*
 * Shards and replicas. The shard axes' coordinates number the shards, what is left of the axes (not named, or the second
 * part of a split one) numbers the replicas of each, both row-major in mesh axis order; pinned axes number nothing.
 */
int32_t slc_layout_shards(const slc_layout *layout);
int32_t slc_layout_replicas(const slc_layout *layout);
int32_t slc_layout_rank(const slc_layout *layout, int32_t shard, int32_t replica);
/* rank must hold the tensor */
void slc_layout_place(const slc_layout *layout, int32_t rank, int32_t *shard, int32_t *replica);

/*
 * Pieces: a shard as its place along each dim. The placements of one dim cut it into pieces that are numbered from its low
 * end (outermost coordinate first), so that what meets an interval is one run of numbers, some of them perhaps empty.
 */
void slc_layout_pieces(const slc_layout *layout, int ndim, int32_t shard, int64_t piece[SLC_MAX_DIMS]);
int32_t slc_layout_shard(const slc_layout *layout, int ndim, const int64_t piece[SLC_MAX_DIMS]);
slc_box slc_layout_shard_box(const slc_layout *layout, int ndim, const int64_t *shape, int32_t shard);
/* In *pieces, of each dim the numbers [low, high) that `query` meets; all empty when it lies outside the tensor. */
void slc_layout_reach(const slc_layout *layout, int ndim, const int64_t *shape, const slc_box *query, slc_box *pieces);

/*
 * Walks the shards whose boxes meet `query`, touching only those: by pieces, the last dim fastest. That is ascending shard
 * order where the nesting and the dims follow the mesh's axes; a caller that needs an order of ranks sorts.
 */
typedef struct slc_shard_walk {
    const slc_layout *layout;
    int ndim;
    const int64_t *shape;
    slc_box query, pieces;
    int64_t at[SLC_MAX_DIMS];
    bool done;
} slc_shard_walk;

/* Begins before the first one. `shape` and the layout must outlive the walk. */
void slc_shard_walk_begin(slc_shard_walk *walk, const slc_layout *layout, int ndim, const int64_t *shape, const slc_box *query);
/* False at the end; *box is the shard's whole box. */
bool slc_shard_walk_next(slc_shard_walk *walk, int32_t *shard, slc_box *box);

#endif
