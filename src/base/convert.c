/* convert.c: see convert.h. */
#include "base/convert.h"

#include <stddef.h>
#include <string.h>

slc_cast slc_cast_find(const slc_dtype *from, const slc_dtype *to)
{
#define IS(code, before, behind) \
    if (strcmp(from->name, #before) == 0 && strcmp(to->name, #behind) == 0) \
        return SLC_CAST_##code;
    SLC_CAST_LIST(IS)
#undef IS
    return SLC_CAST_NONE;
}

slc_cast slc_cast_find_scales(const slc_dtype *from)
{
#define IS(code, before, behind) \
    if (strcmp(from->name, #before) == 0) \
        return SLC_CAST_##code;
    SLC_SCALE_LIST(IS)
#undef IS
    return SLC_CAST_NONE;
}

void slc_cast_row(slc_cast cast, unsigned char *to, int64_t to_stride, const unsigned char *from, int64_t from_stride, int64_t count)
{
    for (; count > 0; count--, to += to_stride, from += from_stride) {
        uint32_t before;
        memcpy(&before, from, sizeof before);
        uint16_t behind = slc_cast_one(cast, before);
        memcpy(to, &behind, sizeof behind);
    }
}

/* ---- in blocks ---- */

static inline uint32_t bits_at(uint32_t bytes, const unsigned char *from)
{
    uint32_t bits = 0;
    if (bytes == 4) {
        memcpy(&bits, from, 4);
        return bits;
    }
    uint16_t half;
    memcpy(&half, from, 2);
    return (uint32_t)half << 16;
}

/* A constant size and step let compilers do several elements at once. */
static inline uint32_t largest_of(uint32_t largest, uint32_t bytes, const unsigned char *from, int64_t step, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t size = slc_magnitude_of(bits_at(bytes, from + i * step));
        largest = size > largest ? size : largest;
    }
    return largest;
}

static int64_t block_end(const slc_grid *grid, int dim, int64_t first)
{
    return grid->extent[dim] - first < SLC_BLOCK ? grid->extent[dim] : first + SLC_BLOCK;
}

float slc_grid_scale(slc_cast cast, const slc_grid *grid, const unsigned char *from, int64_t row, int64_t column)
{
    const uint32_t bytes = slc_cast_from(cast);
    int64_t first[2] = { row - row % SLC_BLOCK, column - column % SLC_BLOCK };
    int64_t count[2] = { block_end(grid, 0, first[0]) - first[0], block_end(grid, 1, first[1]) - first[1] };
    int inner = grid->step[0] < grid->step[1] ? 0 : 1, outer = 1 - inner;
    uint32_t largest = 0;
    from += first[0] * grid->step[0] + first[1] * grid->step[1];
    for (int64_t i = 0; i < count[outer]; i++, from += grid->step[outer]) {
        int64_t step = grid->step[inner];
        if (bytes == 2 && step == 2)
            largest = largest_of(largest, 2, from, 2, count[inner]);
        else if (bytes == 4 && step == 4)
            largest = largest_of(largest, 4, from, 4, count[inner]);
        else
            largest = largest_of(largest, bytes, from, step, count[inner]);
    }
    return slc_scale_of(largest);
}

/* The scale of a block of the row of blocks that is under way; a row with more of them than fit is asked for again. */
static float known_scale(slc_cast cast, const slc_grid *grid, const unsigned char *from, int64_t row, int64_t column,
                         slc_grid_scales *known)
{
    int64_t line = row / SLC_BLOCK, block = column / SLC_BLOCK, place = block - known->first;
    if (known->row != line || place < 0 || place > known->count || place == SLC_GRID_SCALES) {
        known->row = line;
        known->first = block;
        known->count = place = 0;
    }
    if (place == known->count)
        known->scale[known->count++] = slc_grid_scale(cast, grid, from, row, column);
    return known->scale[place];
}

static inline void scale_run(uint32_t bytes, slc_divisor scale, const unsigned char *from, int64_t step, int64_t count, unsigned char *to,
                             int64_t to_stride)
{
    for (int64_t i = 0; i < count; i++)
        to[i * to_stride] = slc_scaled_of(bits_at(bytes, from + i * step), scale);
}

void slc_grid_row(slc_cast cast, const slc_grid *grid, const unsigned char *from, int64_t row, int64_t column, int64_t count,
                  unsigned char *to, int64_t to_stride, slc_grid_scales *known)
{
    const uint32_t bytes = slc_cast_from(cast);
    const unsigned char *line = from + row * grid->step[0];
    for (; slc_cast_scales(cast) && count > 0; count--, column += SLC_BLOCK, to += to_stride) {
        float scale = slc_grid_scale(cast, grid, from, row, column);
        memcpy(to, &scale, sizeof scale);
    }
    while (count > 0) {
        slc_divisor scale = slc_divisor_of(known_scale(cast, grid, from, row, column, known));
        int64_t left = SLC_BLOCK - column % SLC_BLOCK, now = left < count ? left : count;
        if (bytes == 2)
            scale_run(2, scale, line + column * grid->step[1], grid->step[1], now, to, to_stride);
        else
            scale_run(4, scale, line + column * grid->step[1], grid->step[1], now, to, to_stride);
        column += now;
        count -= now;
        to += now * to_stride;
    }
}
