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
        result = cuda->ModuleGetFunction(&kernels->tiles, kernels->module, "slc_kernel_tiles");
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
    const uint64_t from_bytes = slc_cast_from(move->cast), to_bytes = slc_cast_to(move->cast);
    const uint64_t ratio = from_bytes / to_bytes, most = sizeof(slc_unit) / from_bytes;
    slc_move_dim *row = &move->dim[0];
    uint64_t together = move->unit < from_bytes ? 1 : move->unit / from_bytes, count = row->count * together;
    bool side_by_side = row->from == (int64_t)(together * from_bytes) && row->to == (int64_t)(together * to_bytes);
    uint64_t bits = from | to * ratio, outer = 1;
    for (uint32_t d = side_by_side ? 1 : 0; d < move->ndim; d++)
        bits |= (uint64_t)move->dim[d].from | (uint64_t)move->dim[d].to * ratio;
    for (uint32_t d = 1; d < move->ndim; d++)
        outer *= move->dim[d].count;
    bool aligned = bits % from_bytes == 0;
    together = aligned && side_by_side ? widest(bits | count * from_bytes) / from_bytes : 1;
    together = together > most ? most : together;
    move->from = from;
    move->to = to;
    move->unit = (uint16_t)(aligned ? together * from_bytes : 1);
    if (side_by_side)
        *row = (slc_move_dim){
            .count = count / together, .from = (int64_t)(together * from_bytes), .to = (int64_t)(together * to_bytes)
        };
    move->units = row->count * outer;
}

static uint64_t tiles_of(const slc_move *move)
{
    if (move->way == SLC_BY_UNITS)
        return (move->units + SLC_TILE - 1) / SLC_TILE;
    uint64_t tiles = (uint64_t)move->tiles[0] * move->tiles[1];
    for (uint32_t d = 2; d < move->ndim; d++)
        tiles *= move->dim[d].count;
    return tiles;
}

/* The widest units for these addresses; 1 where elements do not lie side by side at multiples of their size. */
static void aim_tiles(slc_move *move, uint64_t from, uint64_t to)
{
    const bool blocks = slc_cast_in_blocks(move->cast) != 0;
    const uint32_t in = move->turned, most = move->turned ? 4 : 4U * move->item;
    const int64_t inward = blocks ? move->step[in] : move->dim[in].from, outward = blocks ? move->step[1 - in] : move->dim[1 - in].from;
    uint64_t begin = from, low = 0;
    for (uint32_t d = 0; d < 2 && blocks; d++)
        begin -= move->at[d] * (uint64_t)move->step[d];
    uint64_t read = begin | (uint64_t)outward, given = to | (uint64_t)move->dim[1].to;
    if (blocks)
        low = move->at[0] % SLC_BLOCK;
    for (uint32_t d = 2; d < move->ndim; d++) {
        read |= (uint64_t)move->dim[d].from;
        given |= (uint64_t)move->dim[d].to;
    }
    const bool read_together = inward == move->item, given_together = move->dim[0].to == move->landed;
    read |= read_together ? (blocks ? move->extent[in] : move->dim[in].count) * move->item : (uint64_t)inward | move->item;
    given |= given_together ? (move->dim[0].count | low) * move->landed : (uint64_t)move->dim[0].to | move->landed;
    uint32_t unit = widest(read | most), wide = widest(given);
    move->from = from;
    move->to = to;
    move->unit = (uint16_t)(unit < move->item ? 1 : unit);
    move->given = (uint16_t)(wide < move->landed ? 1 : wide);
}

/* Sets addresses and takes the widest unit for them. */
static void aim(slc_move *move, uint64_t from, uint64_t to)
{
    if (move->way == SLC_BY_TILES) {
        aim_tiles(move, from, to);
        return;
    }
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

/* The dims of a copy, after the first `first` ones, by how closely they lie where they are written. */
static void add_dims(slc_move *move, const slc_stride *dim, uint32_t ndim, uint32_t first)
{
    for (uint32_t d = ndim; d > 0; d--) {
        const slc_stride *stride = &dim[d - 1];
        uint32_t at = ndim - d + first;
        for (; at > first && move->dim[at - 1].to > stride->destination; at--)
            move->dim[at] = move->dim[at - 1];
        move->dim[at] = (slc_move_dim){ .count = (uint64_t)stride->count, .from = stride->source, .to = stride->destination };
    }
    move->ndim = first + ndim;
}

/* Dim d becomes dim `place`; those between go one further out. */
static void bring(slc_move *move, uint32_t d, uint32_t place)
{
    const slc_move_dim dim = move->dim[d];
    for (; d > place; d--)
        move->dim[d] = move->dim[d - 1];
    move->dim[place] = dim;
}

/*
 * Whether elements lie along another dim where they are read than where they are written, so that tiles pay; then these two
 * are the first dims. `move` has the copy's dims alone.
 */
static bool is_turned(slc_move *move)
{
    enum { FEW = 4, FAR = 32 }; /* elements along a dim; bytes from one to the next */
    uint32_t in = move->ndim, out = move->ndim;
    for (uint32_t d = move->ndim; d > 0; d--)
        if (move->dim[d - 1].count > 1) {
            out = d - 1;
            if (in == move->ndim || move->dim[d - 1].from <= move->dim[in].from)
                in = d - 1;
        }
    if (in == out || move->dim[in].from > FAR || move->dim[in].count < FEW || move->dim[out].count < FEW)
        return false;
    bring(move, out, 0);
    bring(move, in > out ? in : in + 1, 1);
    return true;
}

static void make_tiles(slc_move *move, uint32_t item, uint32_t landed, uint16_t side)
{
    move->way = SLC_BY_TILES;
    move->item = (uint8_t)item;
    move->landed = (uint8_t)landed;
    move->side = side;
    for (uint32_t d = 0; d < 2; d++) {
        uint64_t count = move->dim[d].count + move->at[d] % side;
        move->tiles[d] = slc_cast_scales(move->cast) ? move->dim[d].count : count / side + (count % side != 0);
    }
}

/* A conversion in blocks: the copy's last two dims make the plane. */
static void make_blocks(slc_move *move, const slc_copy *copy)
{
    const slc_stride *plane = &copy->dim[copy->ndim - 2];
    const slc_grid *grid = copy->grid;
    const uint32_t in = plane[0].destination < plane[1].destination ? 0 : 1;
    add_dims(move, copy->dim, copy->ndim - 2, 2);
    for (uint32_t d = 0; d < 2; d++) {
        const uint32_t i = d == 0 ? in : 1 - in;
        move->dim[d] = (slc_move_dim){ .count = (uint64_t)plane[i].count, .from = plane[i].source, .to = plane[i].destination };
        move->extent[d] = (uint64_t)grid->extent[i];
        move->at[d] = (uint64_t)grid->at[i];
        move->step[d] = grid->step[i];
    }
    move->turned = move->step[1] < move->step[0];
    make_tiles(move, slc_cast_from(move->cast), slc_cast_to(move->cast), SLC_BLOCK);
}

static void make_move(slc_move *move, const slc_copy *copy)
{
    bool casts = copy->cast != SLC_CAST_NONE;
    const uint32_t landed = casts ? slc_cast_to(copy->cast) : (uint32_t)copy->run;
    *move = (slc_move){ .cast = (uint16_t)copy->cast, .unit = 1 };
    if (copy->grid != NULL) {
        make_blocks(move, copy);
        return;
    }
    if (copy->run == 1 || copy->run == 2 || copy->run == 4) {
        add_dims(move, copy->dim, copy->ndim, 0);
        move->turned = copy->ndim > 1 && is_turned(move);
        if (move->turned) {
            make_tiles(move, casts ? slc_cast_from(copy->cast) : landed, landed, landed == 1 ? SLC_BLOCK : SLC_TILE_SIDE);
            return;
        }
    }
    const slc_stride once = { .count = 1, .source = slc_cast_from(copy->cast), .destination = slc_cast_to(copy->cast) };
    if (casts && copy->ndim == 0) /* with a conversion dims count elements: there is one */
        add_dims(move, &once, 1, 0);
    else
        add_dims(move, copy->dim, copy->ndim, casts ? 0 : 1);
    if (!casts)
        move->dim[0] = (slc_move_dim){ .count = (uint64_t)copy->run, .from = 1, .to = 1 };
}

sluice_status slc_moves_add(slc_moves *moves, uint64_t from, uint64_t to, const slc_copy *copy, sluice_error *error)
{
    if (!SLC_ROOM(moves->move, moves->capacity, moves->count, 64))
        return slc_fail_memory(error, STAGE, "a table of copies", (moves->count + 1) * sizeof *moves->move);
    slc_move *move = &moves->move[moves->count++];
    make_move(move, copy);
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
    memset(moves->tiles, 0, sizeof moves->tiles);
    for (size_t i = 0; i < moves->count; i++) {
        slc_move *move = &moves->move[i];
        memcpy(move->first, moves->tiles, sizeof move->first);
        moves->tiles[move->way] += tiles_of(move);
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

/* What of the moves [first, first + count) goes one way. */
static CUresult launch_way(const slc_moves *moves, const slc_kernels *kernels, int way, size_t first, size_t count, uint32_t blocks,
                           CUstream stream)
{
    const slc_move *begin = &moves->move[first];
    uint64_t end = first + count == moves->count ? moves->tiles[way] : begin[count].first[way];
    slc_move_range range = { .move = (const slc_move *)(uintptr_t)moves->table + first, .count = count, .first = begin->first[way],
                             .tiles = end - begin->first[way] };
    void *parameter[] = { &range };
    const uint64_t most = blocks != 0 ? blocks : kernels->processors * (2048 / SLC_MOVE_THREADS);
    if (range.tiles == 0)
        return CUDA_SUCCESS;
    return kernels->device->cuda->LaunchKernel(way == SLC_BY_UNITS ? kernels->move : kernels->tiles,
                                               (unsigned int)(range.tiles < most ? range.tiles : most), 1, 1, SLC_MOVE_THREADS, 1, 1, 0,
                                               stream, parameter, NULL);
}

CUresult slc_moves_launch(const slc_moves *moves, const slc_kernels *kernels, size_t first, size_t count, uint32_t blocks,
                          CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (int way = 0; way < SLC_MOVE_WAYS && count > 0 && result == CUDA_SUCCESS; way++)
        result = launch_way(moves, kernels, way, first, count, blocks, stream);
    return result;
}
