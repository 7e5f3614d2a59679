/* kernels_on_cpu.c: see kernels_on_cpu.h. The arithmetic is the plugin's own, out of kernels_body.h. */
#include "kernels_on_cpu.h"

#include "transport/nccl/kernels_body.h"

#include <string.h>

/* Bytes from the first to behind the last of one side. */
static size_t reach(const slc_move *move, bool to)
{
    bool casts = move->cast != SLC_CAST_NONE;
    size_t bytes = !casts ? move->unit : move->unit > 1 ? (to ? move->unit / 2 : move->unit) : (to ? SLC_CAST_TO : SLC_CAST_FROM);
    for (uint32_t d = 0; d < move->ndim; d++)
        bytes += (size_t)(move->dim[d].count - 1) * (size_t)(to ? move->dim[d].to : move->dim[d].from);
    return bytes;
}

static bool is_sound_move(const void *parameters, bool (*holds)(uint64_t address, size_t bytes))
{
    const slc_move_range *range = parameters;
    if (range->count == 0 || range->tiles == 0 || !holds((uint64_t)(uintptr_t)range->move, range->count * sizeof *range->move))
        return false;
    uint64_t tile = range->first;
    for (uint64_t i = 0; i < range->count; i++) {
        const slc_move *move = &range->move[i];
        if (move->ndim < 1 || move->ndim > SLC_MOVE_DIMS || move->first != tile || move->from % move->unit != 0 ||
            move->to % (move->cast == SLC_CAST_NONE ? move->unit : move->unit > 1 ? move->unit / 2 : 1) != 0 ||
            !holds(move->from, reach(move, false)) || !holds(move->to, reach(move, true)))
            return false;
        tile += (move->units + SLC_TILE - 1) / SLC_TILE;
    }
    return tile == range->first + range->tiles;
}

static void run_move(const void *parameters, uint32_t blocks, uint32_t threads)
{
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t thread = 0; thread < threads; thread++)
            slc_move_run(parameters, block, blocks, thread, threads);
}

const kernel *kernel_find(const char *name)
{
    static const kernel known[] = {
        { "slc_kernel_move", sizeof(slc_move_range), SLC_MOVE_THREADS, is_sound_move, run_move },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0)
            return &known[i];
    return NULL;
}
