/* kernels.c: loads the kernels, keeps tables of moves, launches them. Owns the module and the tables' memory. */
#include "transport/nccl/kernels.h"

#include "base/memory.h"

#include <string.h>

static const char STAGE[] = "runtime";

extern const unsigned char slc_kernels_image[]; /* made of kernels.cu */

sluice_status slc_kernels_load(const slc_device *device, slc_kernels *kernels, sluice_error *error)
{
    const slc_cuda *cuda = device->cuda;
    int processors = 0;
    *kernels = (slc_kernels){ 0 };
    CUresult result = cuda->ModuleLoadData(&kernels->module, slc_kernels_image);
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "GPU %d is older than those that the plugin has kernels for",
                        device->ordinal);
    if (result != CUDA_SUCCESS)
        return slc_cuda_check(cuda, result, STAGE, "loading kernels", error);
    kernels->device = device;
    result = cuda->ModuleGetFunction(&kernels->move, kernels->module, "slc_kernel_move");
    if (result == CUDA_SUCCESS)
        result = cuda->DeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device->device);
    if (result != CUDA_SUCCESS)
        slc_kernels_unload(kernels);
    kernels->processors = processors < 1 ? 1 : (uint32_t)processors;
    return slc_cuda_check(cuda, result, STAGE, "finding kernels", error);
}

void slc_kernels_unload(slc_kernels *kernels)
{
    if (kernels->device != NULL)
        (void)kernels->device->cuda->ModuleUnload(kernels->module);
    *kernels = (slc_kernels){ 0 };
}

/* ---- tables ---- */

/* The most bytes, up to 16, that divide all of these; `bits` is all of them by or. */
static uint32_t widest(uint64_t bits)
{
    const uint64_t most = sizeof(slc_unit);
    bits |= most;
    return (uint32_t)(bits & (~bits + 1));
}

static void aim_cast(slc_move *move, uint64_t from, uint64_t to)
{
    const uint64_t ratio = SLC_CAST_FROM / SLC_CAST_TO, most = sizeof(slc_unit) / SLC_CAST_FROM;
    slc_move_dim *row = &move->dim[0];
    uint64_t together = move->unit < SLC_CAST_FROM ? 1 : move->unit / SLC_CAST_FROM, count = row->count * together;
    bool side_by_side = row->from == (int64_t)together * SLC_CAST_FROM && row->to == (int64_t)together * SLC_CAST_TO;
    uint64_t bits = from | to * ratio, outer = 1;
    for (uint32_t d = side_by_side ? 1 : 0; d < move->ndim; d++)
        bits |= (uint64_t)move->dim[d].from | (uint64_t)move->dim[d].to * ratio;
    for (uint32_t d = 1; d < move->ndim; d++)
        outer *= move->dim[d].count;
    bool aligned = bits % SLC_CAST_FROM == 0;
    together = aligned && side_by_side ? widest(bits | count * SLC_CAST_FROM) / SLC_CAST_FROM : 1;
    together = together > most ? most : together;
    move->from = from;
    move->to = to;
    move->unit = (uint16_t)(aligned ? together * SLC_CAST_FROM : 1);
    if (side_by_side)
        *row = (slc_move_dim){
            .count = count / together, .from = (int64_t)together * SLC_CAST_FROM, .to = (int64_t)together * SLC_CAST_TO
        };
    move->units = row->count * outer;
}

/* Sets addresses and takes the widest unit for them. */
static void aim(slc_move *move, uint64_t from, uint64_t to)
{
    if (move->cast != SLC_CAST_NONE) {
        aim_cast(move, from, to);
        return;
    }
    slc_move_dim *row = &move->dim[0];
    uint64_t run = row->count * move->unit, bits = from | to | run, outer = 1;
    for (uint32_t d = 1; d < move->ndim; d++) {
        bits |= (uint64_t)move->dim[d].from | (uint64_t)move->dim[d].to;
        outer *= move->dim[d].count;
    }
    move->from = from;
    move->to = to;
    move->unit = (uint16_t)widest(bits);
    *row = (slc_move_dim){ .count = run / move->unit, .from = move->unit, .to = move->unit };
    move->units = row->count * outer;
}

sluice_status slc_moves_add(slc_moves *moves, uint64_t from, uint64_t to, const slc_copy *copy, sluice_error *error)
{
    if (moves->count == moves->capacity) {
        size_t capacity = moves->capacity == 0 ? 64 : moves->capacity * 2;
        slc_move *grown = slc_reallocate(moves->move, capacity * sizeof *grown);
        if (grown == NULL)
            return slc_fail_memory(error, STAGE, "a table of copies", capacity * sizeof *grown);
        moves->move = grown;
        moves->capacity = capacity;
    }
    slc_move *move = &moves->move[moves->count++];
    static const slc_stride once = { .count = 1, .source = SLC_CAST_FROM, .destination = SLC_CAST_TO };
    bool casts = copy->cast != SLC_CAST_NONE, alone = casts && copy->ndim == 0;
    uint32_t ndim = alone ? 1 : copy->ndim;
    uint32_t first = casts ? 0 : 1; /* with a conversion the dims count elements */
    *move = (slc_move){ .cast = (uint16_t)copy->cast, .unit = 1, .ndim = ndim + first };
    if (!casts)
        move->dim[0] = (slc_move_dim){ .count = (uint64_t)copy->run, .from = 1, .to = 1 };
    for (uint32_t d = ndim; d > 0; d--) { /* innermost is what lies closest where it is written: there rows must be whole */
        const slc_stride *stride = alone ? &once : &copy->dim[d - 1];
        uint32_t at = ndim - d + first;
        for (; at > first && move->dim[at - 1].to > stride->destination; at--)
            move->dim[at] = move->dim[at - 1];
        move->dim[at] = (slc_move_dim){ .count = (uint64_t)stride->count, .from = stride->source, .to = stride->destination };
    }
    aim(move, from, to);
    return SLUICE_OK;
}

void slc_moves_aim(slc_moves *moves, size_t index, uint64_t from, uint64_t to)
{
    aim(&moves->move[index], from, to);
}

sluice_status slc_moves_place(slc_moves *moves, const slc_kernels *kernels, CUstream stream, sluice_error *error)
{
    const slc_device *device = kernels->device;
    moves->tiles = 0;
    for (size_t i = 0; i < moves->count; i++) {
        moves->move[i].first = moves->tiles;
        moves->tiles += (moves->move[i].units + SLC_TILE - 1) / SLC_TILE;
    }
    if (moves->count > moves->room) {
        slc_device_release(device, moves->table);
        moves->table = 0;
        moves->room = 0;
        sluice_status status =
            slc_device_allocate(device, moves->count * sizeof *moves->move, "a table of copies", &moves->table, error);
        if (status != SLUICE_OK)
            return status;
        moves->room = moves->count;
    }
    if (moves->count == 0)
        return SLUICE_OK;
    CUresult result = device->cuda->MemcpyAsync(moves->table, (CUdeviceptr)(uintptr_t)moves->move,
                                                moves->count * sizeof *moves->move, stream);
    if (result == CUDA_SUCCESS)
        result = device->cuda->StreamSynchronize(stream);
    return slc_cuda_check(device->cuda, result, STAGE, "putting a table of copies on the GPU", error);
}

void slc_moves_clear(slc_moves *moves, const slc_kernels *kernels)
{
    if (moves->table != 0)
        slc_device_release(kernels->device, moves->table);
    slc_release(moves->move);
    *moves = (slc_moves){ 0 };
}

CUresult slc_moves_launch(const slc_moves *moves, const slc_kernels *kernels, size_t first, size_t count, uint32_t blocks,
                          CUstream stream)
{
    if (count == 0)
        return CUDA_SUCCESS;
    const slc_move *begin = &moves->move[first];
    uint64_t end = first + count == moves->count ? moves->tiles : begin[count].first;
    slc_move_range range = {
        .move = (const slc_move *)(uintptr_t)moves->table + first, .count = count, .first = begin->first, .tiles = end - begin->first
    };
    void *parameter[] = { &range };
    const uint64_t most = blocks != 0 ? blocks : kernels->processors * (2048 / SLC_MOVE_THREADS);
    return kernels->device->cuda->LaunchKernel(kernels->move, (unsigned int)(range.tiles < most ? range.tiles : most), 1, 1,
                                               SLC_MOVE_THREADS, 1, 1, 0, stream, parameter, NULL);
}
