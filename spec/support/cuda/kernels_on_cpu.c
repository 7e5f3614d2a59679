/* kernels_on_cpu.c: see kernels_on_cpu.h. The arithmetic is the plugin's own, out of kernels_body.h and kernels_tiles.h. */
#include "kernels_on_cpu.h"

#include "transport/nccl/kernels_tiles.h"

#include <string.h>

/* Bytes of an element, or of a unit of several, on one side. */
static size_t unit_of(const slc_move *move, bool to)
{
    if (move->way == SLC_BY_TILES)
        return to ? move->landed : move->item;
    if (move->cast == SLC_CAST_NONE)
        return move->unit;
    if (move->unit > 1)
        return to ? move->unit / (slc_cast_from(move->cast) / slc_cast_to(move->cast)) : move->unit;
    return to ? slc_cast_to(move->cast) : slc_cast_from(move->cast);
}

/* Bytes from the first to behind the last of one side. */
static size_t reach(const slc_move *move, bool to)
{
    size_t bytes = unit_of(move, to);
    for (uint32_t d = 0; d < move->ndim; d++)
        bytes += (size_t)(move->dim[d].count - 1) * (size_t)(to ? move->dim[d].to : move->dim[d].from);
    return bytes;
}

static bool is_sound_side(const slc_move *move, bool (*holds)(uint64_t address, size_t bytes))
{
    uint64_t from = move->from;
    size_t bytes = reach(move, false);
    if (slc_cast_in_blocks(move->cast)) { /* all of the grid may be read */
        bytes = move->item;
        for (uint32_t d = 0; d < 2; d++) {
            if (move->at[d] >= move->extent[d])
                return false;
            from -= move->at[d] * (uint64_t)move->step[d];
            bytes += (size_t)(move->extent[d] - 1) * (size_t)move->step[d];
        }
        for (uint32_t d = 2; d < move->ndim; d++)
            bytes += (size_t)(move->dim[d].count - 1) * (size_t)move->dim[d].from;
    }
    return holds(from, bytes) && holds(move->to, reach(move, true));
}

static bool is_aligned(const slc_move *move)
{
    if (move->way == SLC_BY_TILES)
        return move->to % move->given == 0 && move->side >= SLC_TILE_SIDE && move->side <= SLC_BLOCK;
    return move->from % move->unit == 0 && move->to % (move->unit > 1 ? unit_of(move, true) : 1) == 0;
}

static uint64_t tiles_of(const slc_move *move)
{
    uint64_t tiles = move->tiles[0] * move->tiles[1];
    for (uint32_t d = 2; d < move->ndim; d++)
        tiles *= move->dim[d].count;
    return move->way == SLC_BY_TILES ? tiles : (move->units + SLC_TILE - 1) / SLC_TILE;
}

static bool is_sound(const void *parameters, uint8_t way, bool (*holds)(uint64_t address, size_t bytes))
{
    const slc_move_range *range = parameters;
    if (range->count == 0 || range->tiles == 0 || !holds((uint64_t)(uintptr_t)range->move, range->count * sizeof *range->move))
        return false;
    uint64_t tile = range->first;
    for (uint64_t i = 0; i < range->count; i++) {
        const slc_move *move = &range->move[i];
        if (move->ndim < 1 || move->ndim > SLC_MOVE_DIMS || move->first[way] != tile || !is_aligned(move) || !is_sound_side(move, holds))
            return false;
        tile += move->way == way ? tiles_of(move) : 0;
    }
    return tile == range->first + range->tiles;
}

static bool is_sound_move(const void *parameters, bool (*holds)(uint64_t address, size_t bytes))
{
    return is_sound(parameters, SLC_BY_UNITS, holds);
}

static bool is_sound_tiles(const void *parameters, bool (*holds)(uint64_t address, size_t bytes))
{
    return is_sound(parameters, SLC_BY_TILES, holds);
}

static void run_move(const void *parameters, uint32_t blocks, uint32_t threads)
{
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t thread = 0; thread < threads; thread++)
            slc_move_run(parameters, block, blocks, thread, threads);
}

static void run_tiles(const void *parameters, uint32_t blocks, uint32_t threads)
{
    const slc_move_range *range = parameters;
    static _Thread_local slc_shared shared;
    for (uint32_t block = 0; block < blocks; block++) {
        uint64_t number = 0;
        for (uint64_t tile = range->first + block; tile < range->first + range->tiles; tile += blocks) {
            const slc_tiled tiled = slc_tiled_begin(range, tile, &number);
            for (uint32_t phase = 0; phase < SLC_TILE_PHASES; phase++)
                for (uint32_t thread = 0; thread < threads; thread++)
                    slc_tiled_phase(&tiled, &shared, phase, thread, threads);
        }
    }
}

const kernel *kernel_find(const char *name)
{
    static const kernel known[] = {
        { "slc_kernel_move", sizeof(slc_move_range), SLC_MOVE_THREADS, is_sound_move, run_move },
        { "slc_kernel_tiles", sizeof(slc_move_range), SLC_MOVE_THREADS, is_sound_tiles, run_tiles },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0)
            return &known[i];
    return NULL;
}
