/* pull_grids.c: copies that are converted in blocks, read block by block into the bounce buffer. Owns nothing. */
#include "transport/host/internal.h"
#include "transport/host/pull.h"

/*
 * A stretch of blocks: rows of blocks one way, `inner`, where elements lie closer to each other; in the bounce buffer each line
 * of elements takes `pitch` bytes, with its gaps, or without them where they are wide.
 */
typedef struct stretch {
    int inner;
    int64_t first[2], count[2]; /* elements of the grid */
    int64_t step, pitch;
} stretch;

static sluice_status pull_stretch(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, const stretch *s,
                                  unsigned char *destination, uint64_t source, slc_wait *wait, sluice_error *error)
{
    slc_pull_bounce *bounce = &transport->bounce;
    const slc_grid *grid = copy->grid;
    const slc_stride *dim = &copy->dim[copy->ndim - 2];
    const int64_t unit = slc_grid_unit(copy->cast), item = slc_cast_from(copy->cast);
    int inner = s->inner, outer = 1 - inner;
    int64_t bytes = s->pitch * s->count[outer];
    sluice_status status = SLUICE_OK;
    if (bounce->nspreads == SLC_PULL_SPREADS || SLC_BOUNCE_BYTES - (int64_t)bounce->used < bytes)
        status = slc_pull_drain(transport, wait, error);
    if (status != SLUICE_OK)
        return status;
    unsigned char *at = bounce->data + bounce->used;
    struct slc_pull_spread *spread =
        slc_pull_note(bounce, copy, destination + s->first[0] / unit * dim[0].destination + s->first[1] / unit * dim[1].destination);
    spread->copy.grid = &spread->grid;
    spread->copy.ndim = 2;
    for (int i = 0; i < 2; i++) {
        spread->grid.extent[i] = s->count[i];
        spread->grid.step[i] = i == inner ? s->step : s->pitch;
        spread->dim[i] = (slc_stride){ .count = (s->count[i] + unit - 1) / unit, .source = spread->grid.step[i] * unit,
                                       .destination = dim[i].destination };
    }
    bounce->used += (size_t)bytes;
    source += (uint64_t)(s->first[0] * grid->step[0] + s->first[1] * grid->step[1]);
    const bool gaps = s->step == grid->step[inner];
    for (int64_t o = 0; o < s->count[outer] && status == SLUICE_OK; o++, source += (uint64_t)grid->step[outer], at += s->pitch)
        for (int64_t i = 0; i < (gaps ? 1 : s->count[inner]) && status == SLUICE_OK; i++)
            status = slc_pull_push(transport, peer, at + i * s->step, source + (uint64_t)(i * grid->step[inner]),
                                   (size_t)(gaps ? s->pitch : item), wait, error);
    return status;
}

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One grid, in stretches that fit the bounce buffer; it begins with a block. */
static sluice_status pull_grid(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                               uint64_t source, slc_wait *wait, sluice_error *error)
{
    const int64_t item = slc_cast_from(copy->cast), most = SLC_BOUNCE_BYTES / 2 / SLC_BLOCK; /* of a line */
    const slc_grid *grid = copy->grid;
    int inner = grid->step[0] < grid->step[1] ? 0 : 1, outer = 1 - inner;
    stretch s = { .inner = inner, .step = SLC_BLOCK * grid->step[inner] <= most ? grid->step[inner] : item };
    int64_t blocks = most / s.step / SLC_BLOCK;
    for (int64_t o = 0; o < grid->extent[outer]; o += SLC_BLOCK)
        for (int64_t i = 0; i < grid->extent[inner]; i += s.count[inner]) {
            s.first[outer] = o;
            s.first[inner] = i;
            s.count[outer] = lesser(SLC_BLOCK, grid->extent[outer] - o);
            s.count[inner] = lesser(blocks * SLC_BLOCK, grid->extent[inner] - i);
            s.pitch = (s.count[inner] - 1) * s.step + item;
            sluice_status status = pull_stretch(transport, peer, copy, &s, destination, source, wait, error);
            if (status != SLUICE_OK)
                return status;
        }
    return SLUICE_OK;
}

sluice_status slc_pull_grids(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                                uint64_t source, slc_wait *wait, sluice_error *error)
{
    int64_t index[SLC_MAX_DIMS] = { 0 }, from = 0, to = 0;
    sluice_status status;
    do
        status = pull_grid(transport, peer, copy, destination + to, source + (uint64_t)from, wait, error);
    while (status == SLUICE_OK && slc_pull_next(copy->dim, copy->ndim - 2, index, &from, &to));
    return status;
}
