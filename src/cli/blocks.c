/* blocks.c: see blocks.h. */
#include "cli/blocks.h"

#include <string.h>

typedef struct going {
    const slc_job_param *param;
    const slc_served *served;
    const slc_content *content;
    slc_cast cast;
    slc_blocks_read read;
    slc_blocks_visit visit;
    void *context;
    int plane[2];                                        /* the parameter's dims of a block's rows and columns */
    int64_t source[SLC_JOB_DIMS], live[SLC_JOB_DIMS];    /* bytes from one element to the next, by parameter dim */
    int64_t from, at;                                    /* of the plane under way: its first byte on either side */
} going;

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The block that begins at these rows and columns of the box. */
static void go_block(const going *g, int64_t row, int64_t column)
{
    static _Thread_local unsigned char block[SLC_BLOCK * SLC_BLOCK * sizeof(float)];
    unsigned char landed[SLC_BLOCK];
    const int64_t *extent = g->content->extent, item = slc_cast_from(g->cast);
    int64_t first[2] = { row, column };
    slc_grid grid = { .extent = { lesser(SLC_BLOCK, extent[g->plane[0]] - row), lesser(SLC_BLOCK, extent[g->plane[1]] - column) } };
    int inner = g->plane[1] == g->param->ndim - 1 ? 1 : 0, outer = 1 - inner; /* which lies end to end, if one does */
    bool together = g->source[g->plane[inner]] == item;
    grid.step[inner] = item;
    grid.step[outer] = item * SLC_BLOCK;
    int64_t from = g->from + first[0] * g->source[g->plane[0]] + first[1] * g->source[g->plane[1]];
    for (int64_t o = 0; o < grid.extent[outer]; o++)
        for (int64_t i = 0; i < (together ? 1 : grid.extent[inner]); i++)
            g->read(g->context, (uint64_t)(from + o * g->source[g->plane[outer]] + i * g->source[g->plane[inner]]),
                    block + o * grid.step[outer] + i * item, (size_t)(together ? grid.extent[inner] * item : item));
    slc_grid_scales known = { .row = -1 };
    const int64_t unit = slc_grid_unit(g->cast), size = slc_cast_to(g->cast);
    int64_t to = g->at + row / unit * g->live[g->plane[0]] + column / unit * g->live[g->plane[1]];
    for (int64_t r = 0; r < (unit > 1 ? 1 : grid.extent[0]); r++) {
        int64_t count = unit > 1 ? 1 : grid.extent[1];
        slc_grid_row(g->cast, &grid, block, r, 0, count, landed, size, &known);
        g->visit(g->context, (uint64_t)(from + r * g->source[g->plane[0]]), to + r * g->live[g->plane[0]], landed, (size_t)(count * size));
    }
}

/* The planes of the box: all combinations of the dims before the last two of the live tensor. */
static void go_planes(going *g, int dim, int64_t from, int64_t at)
{
    const slc_content *content = g->content;
    if (dim == g->param->ndim) {
        g->from = from;
        g->at = at;
        for (int64_t row = 0; row < content->extent[g->plane[0]]; row += SLC_BLOCK)
            for (int64_t column = 0; column < content->extent[g->plane[1]]; column += SLC_BLOCK)
                go_block(g, row, column);
        return;
    }
    bool in_plane = dim == g->plane[0] || dim == g->plane[1];
    for (int64_t i = 0; i < (in_plane ? 1 : content->extent[dim]); i++)
        go_planes(g, dim + 1, from + (content->from[dim] + i) * g->source[dim], at + i * g->live[dim]);
}

void slc_blocks_go(const slc_job_param *param, const slc_served *served, const slc_content *content, slc_cast cast,
                   slc_blocks_read read, slc_blocks_visit visit, void *context)
{
    going g = { .param = param, .served = served, .content = content, .cast = cast, .read = read, .visit = visit, .context = context };
    int64_t item = param->dtype->bytes, stride[SLC_JOB_DIMS] = { 0 }, at = 0;
    for (int d = param->ndim - 1; d >= 0; item *= param->shape[d], d--)
        g.source[d] = item;
    item = served->dtype->bytes;
    for (int d = served->ndim - 1; d >= 0; item *= served->shape[d], d--) {
        stride[d] = item;
        at += content->at[d] * item;
    }
    for (int d = 0; d < param->ndim; d++) {
        int live = content->dim[d];
        g.live[d] = live < 0 ? 0 : stride[live];
        if (live >= served->ndim - 2 && live >= 0)
            g.plane[live - (served->ndim - 2)] = d;
    }
    go_planes(&g, 0, 0, at);
}
