/* layout.c: layouts to boxes, shards, replicas and pieces, all in closed form. Owns nothing. */
#include "plan/layout.h"

#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"

/* ---- how one placement cuts one interval ---- */

static int64_t ceil_chunk(const slc_placement *placement, int64_t extent)
{
    if (placement->split == SLC_SPLIT_CHUNK)
        return placement->chunk;
    return extent == 0 ? 1 : (extent - 1) / placement->parts + 1;
}

/* Narrows [*low, *high) to its piece `index`. */
static void cut(const slc_placement *placement, int32_t index, int64_t *low, int64_t *high)
{
    int64_t extent = *high - *low, from, to;
    if (placement->split == SLC_SPLIT_BALANCED) {
        int64_t base = extent / placement->parts, more = extent % placement->parts;
        from = index * base + (index < more ? index : more);
        to = from + base + (index < more);
    } else {
        int64_t chunk = ceil_chunk(placement, extent);
        from = index > extent / chunk ? extent : index * chunk;
        to = extent - from < chunk ? extent : from + chunk;
    }
    *high = *low + to;
    *low += from;
}

/* The piece of an interval of `extent` elements that holds element `at` of it. */
static int64_t piece_of(const slc_placement *placement, int64_t extent, int64_t at)
{
    if (placement->split != SLC_SPLIT_BALANCED)
        return at / ceil_chunk(placement, extent);
    int64_t base = extent / placement->parts, more = extent % placement->parts;
    return at < more * (base + 1) ? at / (base + 1) : more + (at - more * (base + 1)) / base;
}

/* ---- checks ---- */

static const char *axis_text(const slc_mesh *mesh, int axis, char text[16])
{
    if (mesh->axis_name[axis] != NULL && mesh->axis_name[axis][0] != '\0')
        return mesh->axis_name[axis];
    snprintf(text, 16, "%d", axis);
    return text;
}

static sluice_status check_shard(const char *stage, const slc_layout *layout, const slc_placement *placement, int ndim,
                                 int64_t *extent, const char *where, sluice_error *error)
{
    char number[16];
    const char *axis = axis_text(layout->mesh, placement->axis, number);
    int32_t size = layout->mesh->axis[placement->axis];
    if (placement->dim < 0 || placement->dim >= ndim)
        return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' shards dim %d of a tensor of %d dims", where, axis,
                        placement->dim, ndim);
    if (placement->parts < 1 || size % placement->parts != 0)
        return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' is cut in %d parts, which must divide its size %d", where,
                        axis, (int)placement->parts, (int)size);
    int64_t length = extent[placement->dim], reach;
    switch (placement->split) {
    case SLC_SPLIT_CEIL:
    case SLC_SPLIT_BALANCED: break;
    case SLC_SPLIT_CHUNK:
        if (placement->chunk < 1)
            return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' has a chunk of %lld, which must be at least 1", where,
                            axis, (long long)placement->chunk);
        if (slc_multiply(placement->chunk, placement->parts, &reach) && reach < length)
            return slc_fail(error, SLUICE_INVALID, stage,
                            "%s: axis '%s' has %d chunks of %lld, which must reach the %lld elements of dim %d", where, axis,
                            (int)placement->parts, (long long)placement->chunk, (long long)length, placement->dim);
        break;
    default:
        return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' has an unknown split (%d)", where, axis,
                        (int)placement->split);
    }
    /* The first piece is the largest: what fits it fits all. */
    int64_t low = 0;
    cut(placement, 0, &low, &extent[placement->dim]);
    return SLUICE_OK;
}

sluice_status slc_layout_check_in(const char *stage, const slc_layout *layout, int ndim, const int64_t *shape, const char *where,
                                  sluice_error *error)
{
    const slc_mesh *mesh = layout->mesh;
    int64_t extent[SLC_MAX_DIMS];
    bool named[SLC_MAX_AXES] = { false };
    if (mesh == NULL)
        return slc_fail(error, SLUICE_INVALID, stage, "%s: a layout needs a mesh", where);
    if (layout->nplacements < 0 || layout->nplacements > mesh->naxes)
        return slc_fail(error, SLUICE_INVALID, stage, "%s: %d placements for a mesh of %d axes", where, layout->nplacements,
                        mesh->naxes);
    for (int d = 0; d < ndim; d++)
        extent[d] = shape[d];
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        char number[16];
        if (placement->axis < 0 || placement->axis >= mesh->naxes)
            return slc_fail(error, SLUICE_INVALID, stage, "%s: placement %d names axis %d of a mesh of %d axes", where, i,
                            placement->axis, mesh->naxes);
        const char *axis = axis_text(mesh, placement->axis, number);
        if (named[placement->axis])
            return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' is placed twice", where, axis);
        named[placement->axis] = true;
        if (placement->kind == SLC_SHARD) {
            sluice_status status = check_shard(stage, layout, placement, ndim, extent, where, error);
            if (status != SLUICE_OK)
                return status;
        } else if (placement->kind != SLC_PIN) {
            return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' has an unknown placement (%d)", where, axis,
                            (int)placement->kind);
        } else if (placement->coordinate < 0 || placement->coordinate >= mesh->axis[placement->axis]) {
            return slc_fail(error, SLUICE_INVALID, stage, "%s: axis '%s' is pinned to %d, which must lie in [0, %d)", where, axis,
                            (int)placement->coordinate, (int)mesh->axis[placement->axis]);
        }
    }
    return SLUICE_OK;
}

sluice_status slc_layout_check(const slc_layout *layout, int ndim, const int64_t *shape, const char *where, sluice_error *error)
{
    return slc_layout_check_in("init", layout, ndim, shape, where, error);
}

bool slc_layout_equal(const slc_layout *a, const slc_layout *b)
{
    if (a->mesh != b->mesh || a->nplacements != b->nplacements)
        return false;
    for (int i = 0; i < a->nplacements; i++) {
        const slc_placement *x = &a->placement[i], *y = &b->placement[i];
        if (x->kind != y->kind || x->axis != y->axis)
            return false;
        if (x->kind == SLC_PIN ? x->coordinate != y->coordinate
                               : x->dim != y->dim || x->parts != y->parts || x->split != y->split)
            return false;
        if (x->kind == SLC_SHARD && x->split == SLC_SPLIT_CHUNK && x->chunk != y->chunk)
            return false;
    }
    return true;
}

/* ---- ranks, shards, replicas ---- */

/* The placement of each mesh axis, NULL where none names it. */
static void by_axis(const slc_layout *layout, const slc_placement *of[SLC_MAX_AXES])
{
    for (int axis = 0; axis < layout->mesh->naxes; axis++)
        of[axis] = NULL;
    for (int i = 0; i < layout->nplacements; i++)
        of[layout->placement[i].axis] = &layout->placement[i];
}

static int32_t shard_radix(const slc_placement *placement)
{
    return placement != NULL && placement->kind == SLC_SHARD ? placement->parts : 1;
}

static int32_t replica_radix(const slc_placement *placement, int32_t size)
{
    if (placement == NULL)
        return size;
    return placement->kind == SLC_SHARD ? size / placement->parts : 1;
}

int32_t slc_layout_shards(const slc_layout *layout)
{
    int32_t shards = 1;
    for (int i = 0; i < layout->nplacements; i++)
        shards *= shard_radix(&layout->placement[i]);
    return shards;
}

int32_t slc_layout_replicas(const slc_layout *layout)
{
    const slc_placement *of[SLC_MAX_AXES];
    int32_t replicas = 1;
    by_axis(layout, of);
    for (int axis = 0; axis < layout->mesh->naxes; axis++)
        replicas *= replica_radix(of[axis], layout->mesh->axis[axis]);
    return replicas;
}

int32_t slc_layout_rank(const slc_layout *layout, int32_t shard, int32_t replica)
{
    const slc_mesh *mesh = layout->mesh;
    const slc_placement *of[SLC_MAX_AXES];
    int32_t coordinate[SLC_MAX_AXES];
    by_axis(layout, of);
    for (int axis = mesh->naxes - 1; axis >= 0; axis--) {
        int32_t shards = shard_radix(of[axis]), replicas = replica_radix(of[axis], mesh->axis[axis]);
        if (of[axis] != NULL && of[axis]->kind == SLC_PIN)
            coordinate[axis] = of[axis]->coordinate;
        else
            coordinate[axis] = shard % shards * replicas + replica % replicas;
        shard /= shards;
        replica /= replicas;
    }
    return slc_mesh_rank(mesh, coordinate);
}

void slc_layout_place(const slc_layout *layout, int32_t rank, int32_t *shard, int32_t *replica)
{
    const slc_mesh *mesh = layout->mesh;
    const slc_placement *of[SLC_MAX_AXES];
    int32_t coordinate[SLC_MAX_AXES];
    by_axis(layout, of);
    slc_mesh_coordinates(mesh, rank, coordinate);
    *shard = *replica = 0;
    for (int axis = 0; axis < mesh->naxes; axis++) {
        int32_t shards = shard_radix(of[axis]), replicas = replica_radix(of[axis], mesh->axis[axis]);
        if (of[axis] != NULL && of[axis]->kind == SLC_PIN)
            continue;
        *shard = *shard * shards + coordinate[axis] / replicas;
        *replica = *replica * replicas + coordinate[axis] % replicas;
    }
}

bool slc_layout_box(const slc_layout *layout, int ndim, const int64_t *shape, int32_t rank, slc_box *box)
{
    const slc_mesh *mesh = layout->mesh;
    int32_t coordinate[SLC_MAX_AXES];
    if (!slc_mesh_holds(mesh, rank))
        return false;
    slc_mesh_coordinates(mesh, rank, coordinate);
    *box = slc_box_whole(ndim, shape);
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        int32_t at = coordinate[placement->axis];
        if (placement->kind == SLC_SHARD)
            cut(placement, at / (mesh->axis[placement->axis] / placement->parts), &box->low[placement->dim],
                &box->high[placement->dim]);
        else if (at != placement->coordinate)
            return false;
    }
    return true;
}

/* ---- pieces ---- */

void slc_layout_pieces(const slc_layout *layout, int ndim, int32_t shard, int64_t piece[SLC_MAX_DIMS])
{
    const slc_placement *of[SLC_MAX_AXES];
    int32_t coordinate[SLC_MAX_AXES];
    by_axis(layout, of);
    for (int axis = layout->mesh->naxes - 1; axis >= 0; axis--) {
        coordinate[axis] = shard % shard_radix(of[axis]);
        shard /= shard_radix(of[axis]);
    }
    for (int d = 0; d < ndim; d++)
        piece[d] = 0;
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        if (placement->kind == SLC_SHARD)
            piece[placement->dim] = piece[placement->dim] * placement->parts + coordinate[placement->axis];
    }
}

/* The shard coordinate of each axis, from the innermost placement outwards. */
static void piece_coordinates(const slc_layout *layout, int ndim, const int64_t piece[SLC_MAX_DIMS],
                              int32_t coordinate[SLC_MAX_AXES])
{
    int64_t rest[SLC_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        rest[d] = piece[d];
    for (int axis = 0; axis < layout->mesh->naxes; axis++)
        coordinate[axis] = 0;
    for (int i = layout->nplacements - 1; i >= 0; i--) {
        const slc_placement *placement = &layout->placement[i];
        if (placement->kind != SLC_SHARD)
            continue;
        coordinate[placement->axis] = (int32_t)(rest[placement->dim] % placement->parts);
        rest[placement->dim] /= placement->parts;
    }
}

static int32_t shard_at(const slc_layout *layout, const int32_t coordinate[SLC_MAX_AXES])
{
    const slc_placement *of[SLC_MAX_AXES];
    int32_t shard = 0;
    by_axis(layout, of);
    for (int axis = 0; axis < layout->mesh->naxes; axis++)
        shard = shard * shard_radix(of[axis]) + coordinate[axis];
    return shard;
}

int32_t slc_layout_shard(const slc_layout *layout, int ndim, const int64_t piece[SLC_MAX_DIMS])
{
    int32_t coordinate[SLC_MAX_AXES];
    piece_coordinates(layout, ndim, piece, coordinate);
    return shard_at(layout, coordinate);
}

slc_box slc_layout_shard_box(const slc_layout *layout, int ndim, const int64_t *shape, int32_t shard)
{
    slc_box box = slc_box_whole(ndim, shape);
    slc_layout_box(layout, ndim, shape, slc_layout_rank(layout, shard, 0), &box);
    return box;
}

/* The number of the piece that holds index `at` of dim `dim`. */
static int64_t piece_number(const slc_layout *layout, int dim, int64_t extent, int64_t at)
{
    int64_t low = 0, high = extent, number = 0;
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        if (placement->kind != SLC_SHARD || placement->dim != dim)
            continue;
        int64_t index = piece_of(placement, high - low, at - low);
        number = number * placement->parts + index;
        cut(placement, (int32_t)index, &low, &high);
    }
    return number;
}

void slc_layout_reach(const slc_layout *layout, int ndim, const int64_t *shape, const slc_box *query, slc_box *pieces)
{
    slc_box whole = slc_box_whole(ndim, shape), inside = slc_box_intersect(query, &whole);
    *pieces = (slc_box){ .ndim = ndim };
    if (slc_box_empty(&inside))
        return;
    for (int d = 0; d < ndim; d++) {
        pieces->low[d] = piece_number(layout, d, shape[d], inside.low[d]);
        pieces->high[d] = piece_number(layout, d, shape[d], inside.high[d] - 1) + 1;
    }
}

/* ---- the walk ---- */

void slc_shard_walk_begin(slc_shard_walk *walk, const slc_layout *layout, int ndim, const int64_t *shape, const slc_box *query)
{
    slc_box whole = slc_box_whole(ndim, shape);
    *walk = (slc_shard_walk){ .layout = layout, .ndim = ndim, .shape = shape, .query = slc_box_intersect(query, &whole) };
    slc_layout_reach(layout, ndim, shape, query, &walk->pieces);
    walk->done = slc_box_empty(&walk->query);
    for (int d = 0; d < ndim; d++)
        walk->at[d] = walk->pieces.low[d];
}

/* Moves dim `dim` on to `to` and all later dims back to their first; carries into earlier dims. */
static void step(slc_shard_walk *walk, int dim, int64_t to)
{
    for (int d = dim + 1; d < walk->ndim; d++)
        walk->at[d] = walk->pieces.low[d];
    while (dim >= 0) {
        walk->at[dim] = to;
        if (to < walk->pieces.high[dim])
            return;
        walk->at[dim] = walk->pieces.low[dim];
        dim--;
        to = dim >= 0 ? walk->at[dim] + 1 : 0;
    }
    walk->done = true;
}

/*
 * The box of the shard at walk->at; where a short tail leaves a dim without elements, false with that dim and the number of
 * its next piece that may hold one: behind an empty piece all of the same outer piece are empty.
 */
static bool box_at(const slc_shard_walk *walk, const int32_t coordinate[SLC_MAX_AXES], slc_box *box, int *dim, int64_t *to)
{
    const slc_layout *layout = walk->layout;
    *box = slc_box_whole(walk->ndim, walk->shape);
    for (int i = 0; i < layout->nplacements; i++) {
        const slc_placement *placement = &layout->placement[i];
        if (placement->kind != SLC_SHARD)
            continue;
        cut(placement, coordinate[placement->axis], &box->low[placement->dim], &box->high[placement->dim]);
        if (box->low[placement->dim] < box->high[placement->dim])
            continue;
        int64_t group = placement->parts;
        for (int inner = i + 1; inner < layout->nplacements; inner++)
            if (layout->placement[inner].kind == SLC_SHARD && layout->placement[inner].dim == placement->dim)
                group *= layout->placement[inner].parts;
        *dim = placement->dim;
        *to = (walk->at[*dim] / group + 1) * group;
        return false;
    }
    return true;
}

bool slc_shard_walk_next(slc_shard_walk *walk, int32_t *shard, slc_box *box)
{
    while (!walk->done) {
        int32_t coordinate[SLC_MAX_AXES];
        int dim = 0;
        int64_t to = 0;
        piece_coordinates(walk->layout, walk->ndim, walk->at, coordinate);
        bool full = box_at(walk, coordinate, box, &dim, &to);
        if (full) {
            *shard = shard_at(walk->layout, coordinate);
            step(walk, walk->ndim - 1, walk->ndim > 0 ? walk->at[walk->ndim - 1] + 1 : 0);
            return true;
        }
        step(walk, dim, to);
    }
    return false;
}
