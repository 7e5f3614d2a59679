/*
 * kernels_body.h: what a kernel does to one tile of a table of strided copies: plain C over addresses, compiled by nvcc for
 * GPUs and by the C compiler for the specs' stand-in, so that both do the same arithmetic. Owns nothing, waits for nothing.
 *
 * A table is an array of moves in device memory. There are two ways, each a kernel of its own: SLC_BY_UNITS, here, and
 * SLC_BY_TILES, in kernels_tiles.h. A move goes one of them; by units, its units in row-major order are cut into tiles of
 * SLC_TILE. The tiles of each way are numbered through the whole table, and a launch does a run of them: block b those at b,
 * b + blocks, b + 2 blocks, ...
 */
#ifndef SLC_TRANSPORT_NCCL_KERNELS_BODY_H
#define SLC_TRANSPORT_NCCL_KERNELS_BODY_H

#include "base/cast.h"

#if defined(__CUDACC__)
#define SLC_UNROLL _Pragma("unroll")
#else
#define SLC_UNROLL
#endif

enum { SLC_TILE = 4096, SLC_MOVE_DIMS = 9, SLC_MOVE_THREADS = 512, SLC_MOVE_AHEAD = 4 };

enum { SLC_BY_UNITS, SLC_BY_TILES, SLC_MOVE_WAYS };

/* Strides count bytes. */
typedef struct slc_move_dim {
    uint64_t count;
    int64_t from, to;
} slc_move_dim;

/*
 * One strided copy. Dims stand innermost first; dim 0 counts units, and a unit is as many bytes (1 to 16, a power of two) as
 * every address, stride and the run allow. `units` is the product of the counts, at least 1. With a conversion a unit is 1, 2
 * or 4 elements, its bytes are those before it, and 1 says one element at addresses that are no multiples of its size.
 */
typedef struct slc_move {
    uint64_t from, to;
    uint64_t units;
    uint64_t first[SLC_MOVE_WAYS]; /* number of its first tile; of the other way, where it would be */
    uint16_t cast; /* slc_cast */
    uint16_t unit;
    uint32_t ndim; /* at least 1 */
    slc_move_dim dim[SLC_MOVE_DIMS];

    /* By tiles, see kernels_tiles.h. There dims count elements, and dims 0 and 1 are the plane in which tiles lie. */
    uint8_t way;
    uint8_t turned;    /* elements lie closer along dim 1 where they are read; always along dim 0 where they are written */
    uint8_t item;      /* bytes of an element where it is read, */
    uint8_t landed;    /* and where it is written */
    uint16_t side;     /* of a tile, in elements */
    uint16_t given;    /* bytes of a unit that is written; `unit` of one that is read */
    uint64_t tiles[2]; /* of the plane */
    uint64_t extent[2], at[2]; /* in blocks: the grid's, and where in it the move begins */
    int64_t step[2];           /* bytes from one element to the next in the grid */
} slc_move;

/* A run of a table's tiles, as a kernel gets it. */
typedef struct slc_move_range {
    const slc_move *move; /* the first one */
    uint64_t count;       /* of moves */
    uint64_t first;       /* tile of its way */
    uint64_t tiles;
} slc_move_range;

/* What a thread holds between reading and writing: up to 16 bytes. */
typedef struct slc_unit {
    uint64_t low, high;
} slc_unit;

#if defined(__CUDACC__)
typedef ulonglong2 slc_pair;
#else
typedef slc_unit slc_pair;
#endif

/* One unit of 1, 2, 4, 8 or 16 bytes, aligned to its size. */
SLC_BODY slc_unit slc_unit_read(uint64_t address, uint32_t unit)
{
    slc_unit value = { 0, 0 };
    if (unit == 16) {
        const slc_pair pair = *(const slc_pair *)(uintptr_t)address;
        value = *(const slc_unit *)&pair;
    } else if (unit == 8)
        value.low = *(const uint64_t *)(uintptr_t)address;
    else if (unit == 4)
        value.low = *(const uint32_t *)(uintptr_t)address;
    else if (unit == 2)
        value.low = *(const uint16_t *)(uintptr_t)address;
    else
        value.low = *(const uint8_t *)(uintptr_t)address;
    return value;
}

/* The same, to memory. */
SLC_BODY void slc_unit_write(uint64_t address, slc_unit value, uint32_t unit)
{
    if (unit == 16)
        *(slc_pair *)(uintptr_t)address = *(const slc_pair *)&value;
    else if (unit == 8)
        *(uint64_t *)(uintptr_t)address = value.low;
    else if (unit == 4)
        *(uint32_t *)(uintptr_t)address = (uint32_t)value.low;
    else if (unit == 2)
        *(uint16_t *)(uintptr_t)address = (uint16_t)value.low;
    else
        *(uint8_t *)(uintptr_t)address = (uint8_t)value.low;
}

/* Where unit `offset` of a tile lies that begins at index `start` of each dim. No division of 64 bits: it is dear on GPUs. */
SLC_BODY void slc_move_locate(const slc_move *move, const uint64_t start[SLC_MOVE_DIMS], uint32_t offset, uint64_t *from,
                              uint64_t *to)
{
    uint32_t carry = offset;
    *from = move->from;
    *to = move->to;
    SLC_UNROLL
    for (uint32_t d = 0; d < SLC_MOVE_DIMS; d++) {
        if (d < move->ndim) {
            const uint64_t count = move->dim[d].count;
            uint64_t index = start[d] + carry;
            carry = 0;
            if (index >= count && count > SLC_TILE) { /* less than one tile beyond */
                index -= count;
                carry = 1;
            } else if (index >= count) {
                carry = (uint32_t)index / (uint32_t)count;
                index -= (uint64_t)carry * count;
            }
            *from += (uint64_t)((int64_t)index * move->dim[d].from);
            *to += (uint64_t)((int64_t)index * move->dim[d].to);
        }
    }
}

/* Thread `thread` of `threads` does its units of a tile of `units`; several are read before the first is written. */
SLC_BODY void slc_tile_move(const slc_move *move, const uint64_t start[SLC_MOVE_DIMS], uint32_t units, uint32_t thread,
                            uint32_t threads, uint32_t unit)
{
    for (uint32_t at = thread; at < units; at += threads * SLC_MOVE_AHEAD) {
        uint64_t from, to[SLC_MOVE_AHEAD];
        slc_unit value[SLC_MOVE_AHEAD];
        SLC_UNROLL
        for (uint32_t i = 0; i < SLC_MOVE_AHEAD; i++)
            if (at + i * threads < units) {
                slc_move_locate(move, start, at + i * threads, &from, &to[i]);
                value[i] = slc_unit_read(from, unit);
            }
        SLC_UNROLL
        for (uint32_t i = 0; i < SLC_MOVE_AHEAD; i++)
            if (at + i * threads < units)
                slc_unit_write(to[i], value[i], unit);
    }
}

/* What of a unit of a move with a conversion lands. */
SLC_BODY slc_unit slc_unit_cast(uint32_t cast, uint64_t from, uint32_t unit)
{
    slc_unit before = { 0, 0 }, behind = { 0, 0 };
    if (unit == 1)
        for (uint32_t i = 0; i < sizeof(uint32_t); i++)
            before.low |= (uint64_t)*(const uint8_t *)(uintptr_t)(from + i) << 8 * i;
    else
        before = slc_unit_read(from, unit);
    behind.low = slc_cast_one(cast, (uint32_t)before.low);
    if (unit > 4)
        behind.low |= (uint64_t)slc_cast_one(cast, (uint32_t)(before.low >> 32)) << 16;
    if (unit > 8)
        behind.low |= (uint64_t)slc_cast_one(cast, (uint32_t)before.high) << 32 |
                      (uint64_t)slc_cast_one(cast, (uint32_t)(before.high >> 32)) << 48;
    return behind;
}

/* slc_tile_move with a conversion. */
SLC_BODY void slc_tile_cast(const slc_move *move, const uint64_t start[SLC_MOVE_DIMS], uint32_t units, uint32_t thread,
                            uint32_t threads)
{
    const uint32_t unit = move->unit, cast = move->cast;
    for (uint32_t at = thread; at < units; at += threads * SLC_MOVE_AHEAD) {
        uint64_t from, to[SLC_MOVE_AHEAD];
        slc_unit value[SLC_MOVE_AHEAD];
        SLC_UNROLL
        for (uint32_t i = 0; i < SLC_MOVE_AHEAD; i++)
            if (at + i * threads < units) {
                slc_move_locate(move, start, at + i * threads, &from, &to[i]);
                value[i] = slc_unit_cast(cast, from, unit);
            }
        SLC_UNROLL
        for (uint32_t i = 0; i < SLC_MOVE_AHEAD; i++)
            if (at + i * threads < units && unit > 1) {
                slc_unit_write(to[i], value[i], unit / 2);
            } else if (at + i * threads < units) {
                slc_unit_write(to[i], value[i], 1);
                value[i].low >>= 8;
                slc_unit_write(to[i] + 1, value[i], 1);
            }
    }
}

/* The move in which a tile of a way lies; it is not before `from`. */
SLC_BODY uint64_t slc_move_of(const slc_move_range *range, uint32_t way, uint64_t from, uint64_t tile)
{
    uint64_t low = from, high = range->count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (range->move[middle].first[way] <= tile)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* All that one thread of a launch of `blocks` blocks does. */
SLC_BODY void slc_move_run(const slc_move_range *range, uint32_t block, uint32_t blocks, uint32_t thread, uint32_t threads)
{
    uint64_t number = 0;
    for (uint64_t tile = range->first + block; tile < range->first + range->tiles; tile += blocks) {
        number = slc_move_of(range, SLC_BY_UNITS, number, tile);
        const slc_move *move = &range->move[number];
        uint64_t begin = (tile - move->first[SLC_BY_UNITS]) * SLC_TILE, start[SLC_MOVE_DIMS], left = begin;
        const uint32_t units = move->units - begin < SLC_TILE ? (uint32_t)(move->units - begin) : SLC_TILE;
        SLC_UNROLL
        for (uint32_t d = 0; d < SLC_MOVE_DIMS; d++) {
            start[d] = d < move->ndim ? left % move->dim[d].count : 0;
            left = d < move->ndim ? left / move->dim[d].count : 0;
        }
        if (move->cast != SLC_CAST_NONE)
            slc_tile_cast(move, start, units, thread, threads);
        else if (move->unit == sizeof(slc_unit)) /* the one that must be fast, for which the compiler drops what the others want */
            slc_tile_move(move, start, units, thread, threads, sizeof(slc_unit));
        else
            slc_tile_move(move, start, units, thread, threads, move->unit);
    }
}

#endif
