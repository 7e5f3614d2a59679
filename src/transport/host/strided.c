/* strided.c: see strided.h. Small runs have loops of their own, since a call of memcpy costs more than they do. */
#include "transport/host/strided.h"

#include "transport/host/transpose.h"

#include <string.h>

static void rows_of(unsigned char *to, int64_t to_stride, const unsigned char *from, int64_t from_stride, size_t run,
                    int64_t count)
{
    for (; count > 0; count--, to += to_stride, from += from_stride)
        memcpy(to, from, run);
}

/* `count` rows of `run` bytes. */
static void copy_rows(unsigned char *to, int64_t to_stride, const unsigned char *from, int64_t from_stride, int64_t run,
                      int64_t count)
{
#define ROWS(bytes) \
    case bytes: \
        for (; count > 0; count--, to += to_stride, from += from_stride) \
            memcpy(to, from, bytes); \
        return;
    switch (run) {
        ROWS(1)
        ROWS(2)
        ROWS(4)
        ROWS(8)
        ROWS(16)
        ROWS(32)
        ROWS(64)
    default: rows_of(to, to_stride, from, from_stride, (size_t)run, count);
    }
#undef ROWS
}

uint32_t slc_strided_crossed(int64_t run, uint32_t ndim, const slc_stride *dim)
{
    uint32_t found = ndim;
    if (ndim < 2 || run > SLC_CROSSED_RUN)
        return ndim;
    int64_t shortest = dim[ndim - 1].destination;
    for (uint32_t i = 0; i + 1 < ndim; i++)
        if (dim[i].destination < shortest && dim[i].count > 1) {
            shortest = dim[i].destination;
            found = i;
        }
    return found;
}

void slc_strided_copy(unsigned char *destination, const unsigned char *source, int64_t run, uint32_t ndim, const slc_stride *dim)
{
    if (run <= 0)
        return;
    if (ndim == 0) {
        memcpy(destination, source, (size_t)run);
        return;
    }
    slc_stride inner = dim[ndim - 1];
    uint32_t crossed = slc_strided_crossed(run, ndim, dim);
    /* The dims around the one or two that a kernel takes. */
    slc_stride outer[SLC_MAX_DIMS];
    int64_t index[SLC_MAX_DIMS] = { 0 };
    uint32_t nouter = 0;
    for (uint32_t i = 0; i + 1 < ndim; i++)
        if (i != crossed)
            outer[nouter++] = dim[i];
    for (uint32_t i = 0; i < ndim; i++)
        if (dim[i].count <= 0)
            return;
    for (;;) {
        if (crossed < ndim)
            slc_transpose(destination, source, run, inner, dim[crossed]);
        else
            copy_rows(destination, inner.destination, source, inner.source, run, inner.count);
        uint32_t i = nouter;
        for (; i > 0; i--) {
            slc_stride d = outer[i - 1];
            destination += d.destination;
            source += d.source;
            if (++index[i - 1] < d.count)
                break;
            destination -= d.count * d.destination;
            source -= d.count * d.source;
            index[i - 1] = 0;
        }
        if (i == 0)
            return;
    }
}

/* The first element of the grid of which the copy's row at `source`, at these indices of its last two dims, is a part. */
static const unsigned char *grid_origin(const slc_copy *copy, const unsigned char *source, int64_t row, int64_t column)
{
    const slc_stride *dim = &copy->dim[copy->ndim - 2];
    const slc_grid *grid = copy->grid;
    return source - row * dim[0].source - column * dim[1].source - grid->at[0] * grid->step[0] - grid->at[1] * grid->step[1];
}

/* `count` numbers of a row, of which `source` is the first, from these indices of the last two dims on. */
static void cast_row(const slc_copy *copy, const unsigned char *source, int64_t row, int64_t column, int64_t count, unsigned char *to,
                     int64_t to_stride, slc_grid_scales *scales)
{
    if (copy->grid == NULL) {
        slc_cast_row(copy->cast, to, to_stride, source, copy->dim[copy->ndim - 1].source, count);
        return;
    }
    const int64_t unit = slc_grid_unit(copy->cast);
    slc_grid_row(copy->cast, copy->grid, grid_origin(copy, source, row, column), copy->grid->at[0] + row * unit,
                 copy->grid->at[1] + column * unit, count, to, to_stride, scales);
}

void slc_strided_move(unsigned char *destination, const unsigned char *source, const slc_copy *copy)
{
    uint32_t ndim = copy->ndim;
    const slc_stride *dim = copy->dim;
    if (copy->cast == SLC_CAST_NONE) {
        slc_strided_copy(destination, source, copy->run, ndim, dim);
        return;
    }
    slc_stride inner = dim[ndim - 1];
    slc_grid_scales scales = { .row = -1 };
    int64_t index[SLC_MAX_DIMS] = { 0 };
    for (uint32_t i = 0; i < ndim; i++)
        if (dim[i].count <= 0)
            return;
    for (;;) {
        cast_row(copy, source, ndim > 1 ? index[ndim - 2] : 0, 0, inner.count, destination, inner.destination, &scales);
        uint32_t i = ndim - 1;
        for (; i > 0; i--) {
            destination += dim[i - 1].destination;
            source += dim[i - 1].source;
            if (++index[i - 1] < dim[i - 1].count)
                break;
            destination -= dim[i - 1].count * dim[i - 1].destination;
            source -= dim[i - 1].count * dim[i - 1].source;
            index[i - 1] = 0;
            scales.row = -1;
        }
        if (i == 0)
            return;
    }
}

void slc_strided_clear(unsigned char *destination, int64_t run, uint32_t ndim, const slc_stride *dim)
{
    int64_t index[SLC_MAX_DIMS] = { 0 };
    if (run <= 0)
        return;
    for (uint32_t i = 0; i < ndim; i++)
        if (dim[i].count <= 0)
            return;
    for (;;) {
        memset(destination, 0, (size_t)run);
        uint32_t i = ndim;
        for (; i > 0; i--) {
            slc_stride d = dim[i - 1];
            destination += d.destination;
            if (++index[i - 1] < d.count)
                break;
            destination -= d.count * d.destination;
            index[i - 1] = 0;
        }
        if (i == 0)
            return;
    }
}

static void begin(slc_strided_cursor *cursor, const slc_copy *copy, unsigned char *at, bool reads)
{
    *cursor = (slc_strided_cursor){ .copy = copy, .at = at, .left = copy->bytes, .reads = reads, .scales = { .row = -1 } };
}

void slc_strided_read(slc_strided_cursor *cursor, const slc_copy *copy, const unsigned char *source)
{
    begin(cursor, copy, (unsigned char *)(uintptr_t)source, true);
}

void slc_strided_write(slc_strided_cursor *cursor, const slc_copy *copy, unsigned char *destination)
{
    begin(cursor, copy, destination, false);
}

static int64_t step_of(const slc_strided_cursor *cursor, uint32_t dim)
{
    return cursor->reads ? cursor->copy->dim[dim].source : cursor->copy->dim[dim].destination;
}

/* Goes `rows` rows on within the innermost dim, and carries into the outer ones at its end. */
static void advance(slc_strided_cursor *cursor, int64_t rows)
{
    int64_t by = rows;
    for (uint32_t i = cursor->copy->ndim; i > 0; i--, by = 1) {
        int64_t count = cursor->copy->dim[i - 1].count, step = step_of(cursor, i - 1);
        cursor->at += by * step;
        cursor->index[i - 1] += by;
        if (cursor->index[i - 1] < count)
            return;
        cursor->at -= count * step;
        cursor->index[i - 1] = 0;
        if (i < cursor->copy->ndim) /* on to another grid */
            cursor->scales.row = -1;
    }
}

/* The next numbers of the row under way, packed. */
static void cast_here(slc_strided_cursor *cursor, unsigned char *packed, int64_t count)
{
    const slc_copy *copy = cursor->copy;
    uint32_t last = copy->ndim - 1;
    cast_row(copy, cursor->at, last > 0 ? cursor->index[last - 1] : 0, cursor->index[last], count, packed, copy->run, &cursor->scales);
}

int64_t slc_strided_step(slc_strided_cursor *cursor, unsigned char *packed, int64_t limit)
{
    const slc_copy *copy = cursor->copy;
    int64_t wanted = limit < cursor->left ? limit : cursor->left, done = 0;
    bool casts = cursor->reads && copy->cast != SLC_CAST_NONE;
    while (done < wanted) {
        int64_t rest = wanted - done, moved;
        if (cursor->within > 0 || rest < copy->run || copy->ndim == 0) {
            moved = copy->run - cursor->within < rest ? copy->run - cursor->within : rest;
            unsigned char *row = cursor->at + cursor->within, landed[sizeof(float)];
            if (casts) {
                cast_here(cursor, landed, 1);
                row = landed + cursor->within;
            }
            memcpy(cursor->reads ? packed : row, cursor->reads ? row : packed, (size_t)moved);
            cursor->within += moved;
            if (cursor->within == copy->run) {
                cursor->within = 0;
                advance(cursor, 1);
            }
        } else {
            uint32_t last = copy->ndim - 1;
            int64_t rows = copy->dim[last].count - cursor->index[last], step = step_of(cursor, last);
            if (rows > rest / copy->run)
                rows = rest / copy->run;
            moved = rows * copy->run;
            if (casts)
                cast_here(cursor, packed, rows);
            else if (cursor->reads)
                copy_rows(packed, copy->run, cursor->at, step, copy->run, rows);
            else
                copy_rows(cursor->at, step, packed, copy->run, copy->run, rows);
            advance(cursor, rows);
        }
        packed += moved;
        done += moved;
    }
    cursor->left -= done;
    return done;
}
