/*
 * kernels_tiles.h: moves by tiles: a square of elements that the threads of a block read where they lie side by side, put into
 * memory that they share, and write where they lie side by side there. For matrices that are turned on the way, and for
 * conversions in blocks, whose tiles are the blocks. Plain C as in kernels_body.h.
 *
 * A tile is done in SLC_TILE_PHASES phases, each by all threads before the next one begins. There are as many threads as
 * the side of a tile has elements, or a multiple of that.
 */
#ifndef SLC_TRANSPORT_NCCL_KERNELS_TILES_H
#define SLC_TRANSPORT_NCCL_KERNELS_TILES_H

#include "transport/nccl/kernels_body.h"

enum { SLC_TILE_PHASES = 4, SLC_TILE_SIDE = 64, SLC_TILE_WIDE = 260, SLC_TILE_NARROW = 132 };

/*
 * What the threads of a block share. Rows of a tile are SLC_TILE_NARROW bytes apart, or SLC_TILE_WIDE with elements of 4 bytes:
 * an odd number of words, so that a column is in as many banks as a row.
 */
typedef struct slc_shared {
    uint32_t tile[SLC_BLOCK * SLC_TILE_NARROW / sizeof(uint32_t)]; /* the other is smaller */
    uint32_t largest; /* of a block's magnitudes */
} slc_shared;

/* One tile, as each thread knows it. */
typedef struct slc_tiled {
    const slc_move *move;
    uint64_t from;     /* its first element: of a block that is not whole in the move, the block's */
    uint64_t to;       /* the first that is written */
    uint32_t read[2];  /* elements of each dim of the plane that are read, */
    uint32_t low[2], high[2]; /* and of them those that are written */
} slc_tiled;

/* Every thread tells the largest that it met; by whole warps. */
SLC_BODY void slc_note_largest(slc_shared *shared, uint32_t value)
{
#if defined(__CUDA_ARCH__)
    value = __reduce_max_sync(0xFFFFFFFF, value);
    if (threadIdx.x % 32 == 0)
        atomicMax(&shared->largest, value);
#else
    shared->largest = value > shared->largest ? value : shared->largest;
#endif
}

/* The smaller one. */
SLC_BODY uint32_t slc_lesser(uint64_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

/* What of dim d of the plane tile number `index` of it has. */
SLC_BODY void slc_tiled_span(slc_tiled *tiled, uint32_t d, uint64_t index)
{
    const slc_move *move = tiled->move;
    const uint64_t side = move->side, count = move->dim[d].count;
    if (!slc_cast_in_blocks(move->cast)) {
        tiled->read[d] = tiled->high[d] = slc_lesser(count - index * side, move->side);
        tiled->low[d] = 0;
        tiled->from += index * side * (uint64_t)move->dim[d].from;
        tiled->to += index * side * (uint64_t)move->dim[d].to;
        return;
    }
    const uint64_t begin = move->at[d] / side * side + index * side; /* the block's first element of the grid */
    tiled->read[d] = slc_lesser(move->extent[d] - begin, move->side);
    tiled->from += (begin - move->at[d]) * (uint64_t)move->step[d];
    if (slc_cast_scales(move->cast)) { /* dims count blocks */
        tiled->to += index * (uint64_t)move->dim[d].to;
        return;
    }
    const uint64_t first = begin < move->at[d] ? move->at[d] : begin, end = move->at[d] + count;
    tiled->low[d] = (uint32_t)(first - begin);
    tiled->high[d] = slc_lesser(end - begin, tiled->read[d]);
    tiled->to += (first - move->at[d]) * (uint64_t)move->dim[d].to;
}

/* Divides *left, and gives what remains. A division of 64 bits is dear on GPUs, and seldom needed. */
SLC_BODY uint64_t slc_remainder(uint64_t *left, uint64_t by)
{
    const uint64_t whole = *left;
    *left = (whole | by) >> 32 == 0 ? (uint32_t)whole / (uint32_t)by : whole / by;
    return whole - *left * by;
}

/* The tile of that number; *number is the move's, and not before what it was. */
SLC_BODY slc_tiled slc_tiled_begin(const slc_move_range *range, uint64_t tile, uint64_t *number)
{
    slc_tiled tiled = { 0 };
    *number = slc_move_of(range, SLC_BY_TILES, *number, tile);
    const slc_move *move = tiled.move = &range->move[*number];
    uint64_t left = tile - move->first[SLC_BY_TILES], index[2];
    tiled.from = move->from;
    tiled.to = move->to;
    index[0] = slc_remainder(&left, move->tiles[0]);
    index[1] = slc_remainder(&left, move->tiles[1]);
    for (uint32_t d = 2; d < move->ndim; d++) {
        const uint64_t at = slc_remainder(&left, move->dim[d].count);
        tiled.from += at * (uint64_t)move->dim[d].from;
        tiled.to += at * (uint64_t)move->dim[d].to;
    }
    slc_tiled_span(&tiled, 0, index[0]);
    slc_tiled_span(&tiled, 1, index[1]);
    return tiled;
}

/* Element `i` of a unit that was read, `item` bytes each. */
SLC_BODY uint32_t slc_element_of(slc_unit unit, uint32_t item, uint32_t i)
{
    const uint32_t bit = i * item * 8;
    const uint64_t half = bit < 64 ? unit.low >> bit : unit.high >> (bit - 64);
    return item == 4 ? (uint32_t)half : item == 2 ? (uint32_t)half & 0xFFFF : (uint32_t)half & 0xFF;
}

/* A unit where it lies; a unit of 1 says one element at any address. */
SLC_BODY slc_unit slc_tiled_read(uint64_t from, uint32_t unit, uint32_t item)
{
    slc_unit value = { 0, 0 };
    if (unit > 1 || item == 1)
        return slc_unit_read(from, unit);
    for (uint32_t i = 0; i < item; i++)
        value.low |= (uint64_t)*(const uint8_t *)(uintptr_t)(from + i) << 8 * i;
    return value;
}

/* Bytes from one row of a tile to the next. */
SLC_BODY uint32_t slc_tile_pitch(uint32_t landed)
{
    return landed == 4 ? SLC_TILE_WIDE : SLC_TILE_NARROW;
}

/* What a number of a block counts for, as the bits of a float32. */
SLC_BODY uint32_t slc_widened(uint32_t item, uint32_t bits)
{
    return item == 2 ? bits << 16 : bits;
}

/* Phase 1: the largest magnitude of a block. */
SLC_BODY void slc_tiled_measure(const slc_tiled *tiled, slc_shared *shared, uint32_t thread, uint32_t threads, uint32_t item, uint32_t unit)
{
    const slc_move *move = tiled->move;
    const uint32_t in = move->turned, out = 1 - in, together = unit < item ? 1 : unit / item;
    const uint32_t row = SLC_BLOCK / together, i = thread % row * together, step = threads / row, end = tiled->read[out];
    const uint64_t from = tiled->from + i * (uint64_t)move->step[in];
    const int64_t outward = move->step[out];
    uint32_t largest = 0;
    for (uint32_t o = thread / row; o < end && i < tiled->read[in]; o += step * SLC_MOVE_AHEAD) {
        slc_unit value[SLC_MOVE_AHEAD];
        SLC_UNROLL
        for (uint32_t n = 0; n < SLC_MOVE_AHEAD; n++)
            if (o + n * step < end)
                value[n] = slc_tiled_read(from + (o + n * step) * (uint64_t)outward, unit, item);
        SLC_UNROLL
        for (uint32_t n = 0; n < SLC_MOVE_AHEAD; n++)
            for (uint32_t k = 0; k < together && o + n * step < end; k++) {
                const uint32_t size = slc_magnitude_of(slc_widened(item, slc_element_of(value[n], item, k)));
                largest = size > largest ? size : largest;
            }
    }
    slc_note_largest(shared, largest);
}

/* Puts an element as it lands into the tile, at these places of dims 0 and 1. */
SLC_BODY void slc_tile_put(slc_shared *shared, uint32_t landed, uint32_t at0, uint32_t at1, uint32_t value)
{
    uint8_t *to = (uint8_t *)shared->tile + at1 * slc_tile_pitch(landed) + at0 * landed;
    if (landed == 4)
        *(uint32_t *)(void *)to = value;
    else if (landed == 2)
        *(uint16_t *)(void *)to = (uint16_t)value;
    else
        *to = (uint8_t)value;
}

/* Phase 2: reads the tile, converts it, and puts it where all threads see it. */
SLC_BODY void slc_tiled_take(const slc_tiled *tiled, slc_shared *shared, uint32_t thread, uint32_t threads, uint32_t item, uint32_t unit,
                             uint32_t landed, uint32_t blocks)
{
    const slc_move *move = tiled->move;
    const uint32_t in = move->turned, out = 1 - in, together = unit < item ? 1 : unit / item;
    const uint32_t row = move->side / together, i = thread % row * together, step = threads / row, end = tiled->high[out];
    const uint32_t cast = move->cast;
    const uint64_t from = tiled->from + i * (uint64_t)(blocks ? move->step[in] : move->dim[in].from);
    const int64_t outward = blocks ? move->step[out] : move->dim[out].from;
    const slc_divisor divisor = slc_divisor_of(blocks ? slc_scale_of(shared->largest) : 1);
    for (uint32_t o = tiled->low[out] + thread / row; o < end && i < tiled->read[in]; o += step * SLC_MOVE_AHEAD) {
        slc_unit value[SLC_MOVE_AHEAD];
        SLC_UNROLL
        for (uint32_t n = 0; n < SLC_MOVE_AHEAD; n++)
            if (o + n * step < end)
                value[n] = slc_tiled_read(from + (o + n * step) * (uint64_t)outward, unit, item);
        SLC_UNROLL
        for (uint32_t n = 0; n < SLC_MOVE_AHEAD; n++)
            for (uint32_t k = 0; k < together && o + n * step < end; k++) {
                const uint32_t bits = slc_element_of(value[n], item, k), across = o + n * step;
                const uint32_t lands = blocks                   ? slc_scaled_of(slc_widened(item, bits), divisor)
                                       : cast != SLC_CAST_NONE ? slc_cast_one(cast, bits)
                                                               : bits;
                slc_tile_put(shared, landed, in == 0 ? i + k : across, in == 0 ? across : i + k, lands);
            }
    }
}

/* Phase 3: writes what of the tile is the move's. */
SLC_BODY void slc_tiled_give(const slc_tiled *tiled, const slc_shared *shared, uint32_t thread, uint32_t threads, uint32_t unit)
{
    const slc_move *move = tiled->move;
    const uint32_t landed = move->landed, together = unit < landed ? 1 : unit / landed;
    const uint32_t row = move->side / together, i = thread % row * together;
    const uint32_t rows = tiled->high[1] - tiled->low[1], wanted = tiled->high[0] - tiled->low[0];
    const uint8_t *tile = (const uint8_t *)shared->tile + tiled->low[1] * slc_tile_pitch(landed) + (tiled->low[0] + i) * landed;
    for (uint32_t o = thread / row; o < rows && i < wanted; o += threads / row) {
        const uint8_t *from = tile + o * slc_tile_pitch(landed);
        const uint64_t to = tiled->to + i * (uint64_t)move->dim[0].to + o * (uint64_t)move->dim[1].to;
        slc_unit value = { 0, 0 };
        if (unit >= 4) {
            const uint32_t *word = (const uint32_t *)(const void *)from;
            value.low = word[0] | (unit > 4 ? (uint64_t)word[1] << 32 : 0);
            value.high = unit > 8 ? word[2] | (uint64_t)word[3] << 32 : 0;
            slc_unit_write(to, value, unit);
        } else if (unit == 2) {
            value.low = *(const uint16_t *)(const void *)from;
            slc_unit_write(to, value, 2);
        } else {
            for (uint32_t k = 0; k < landed; k++)
                *(uint8_t *)(uintptr_t)(to + k) = from[k];
        }
    }
}

/* Writes the scale, at any address. */
SLC_BODY void slc_tiled_scale(const slc_tiled *tiled, const slc_shared *shared)
{
    const uint32_t bits = slc_bits_of(slc_scale_of(shared->largest));
    for (uint32_t k = 0; k < sizeof bits; k++)
        *(uint8_t *)(uintptr_t)(tiled->to + k) = (uint8_t)(bits >> 8 * k);
}

/* The sizes that matter are constants, of which a compiler makes straight code. */
SLC_BODY void slc_tiled_measure_any(const slc_tiled *tiled, slc_shared *shared, uint32_t thread, uint32_t threads)
{
    const uint32_t item = tiled->move->item, unit = tiled->move->unit;
    if (item == 2 && unit == 8)
        slc_tiled_measure(tiled, shared, thread, threads, 2, 8);
    else if (item == 4 && unit == 16)
        slc_tiled_measure(tiled, shared, thread, threads, 4, 16);
    else if (item == 2 && unit == 4)
        slc_tiled_measure(tiled, shared, thread, threads, 2, 4);
    else
        slc_tiled_measure(tiled, shared, thread, threads, item, unit);
}

/* Likewise. */
SLC_BODY void slc_tiled_take_any(const slc_tiled *tiled, slc_shared *shared, uint32_t thread, uint32_t threads)
{
    const uint32_t item = tiled->move->item, unit = tiled->move->unit, landed = tiled->move->landed;
    if (slc_cast_in_blocks(tiled->move->cast)) {
        if (item == 2 && unit == 8)
            slc_tiled_take(tiled, shared, thread, threads, 2, 8, 1, 1);
        else if (item == 4 && unit == 16)
            slc_tiled_take(tiled, shared, thread, threads, 4, 16, 1, 1);
        else if (item == 2 && unit == 4)
            slc_tiled_take(tiled, shared, thread, threads, 2, 4, 1, 1);
        else
            slc_tiled_take(tiled, shared, thread, threads, item, unit, 1, 1);
    } else if (unit == 4 && item == landed && item == 2)
        slc_tiled_take(tiled, shared, thread, threads, 2, 4, 2, 0);
    else if (unit == 4 && item == landed && item == 1)
        slc_tiled_take(tiled, shared, thread, threads, 1, 4, 1, 0);
    else if (unit == 4 && item == 4)
        slc_tiled_take(tiled, shared, thread, threads, 4, 4, landed, 0);
    else
        slc_tiled_take(tiled, shared, thread, threads, item, unit, landed, 0);
}

/* What one thread does of a tile in one phase. */
SLC_BODY void slc_tiled_phase(const slc_tiled *tiled, slc_shared *shared, uint32_t phase, uint32_t thread, uint32_t threads)
{
    const uint32_t blocks = (uint32_t)slc_cast_in_blocks(tiled->move->cast), scales = (uint32_t)slc_cast_scales(tiled->move->cast);
    if (phase == 0 && thread == 0)
        shared->largest = 0;
    else if (phase == 1 && blocks)
        slc_tiled_measure_any(tiled, shared, thread, threads);
    else if (phase == 2 && !scales)
        slc_tiled_take_any(tiled, shared, thread, threads);
    else if (phase == 3 && !scales && tiled->move->given == sizeof(slc_unit))
        slc_tiled_give(tiled, shared, thread, threads, sizeof(slc_unit));
    else if (phase == 3 && !scales)
        slc_tiled_give(tiled, shared, thread, threads, tiled->move->given);
    else if (phase == 3 && thread == 0)
        slc_tiled_scale(tiled, shared);
}

#endif
