/* kernels.cu: the kernels of libsluice_cuda by the names that kernels.c looks up; what they do is in the two headers. */
#include "transport/nccl/kernels_tiles.h"

extern "C" __global__ void __launch_bounds__(SLC_MOVE_THREADS) slc_kernel_move(slc_move_range range)
{
    slc_move_run(&range, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}

extern "C" __global__ void __launch_bounds__(SLC_MOVE_THREADS, 2) slc_kernel_tiles(slc_move_range range)
{
    __shared__ slc_shared shared;
    uint64_t number = 0;
    for (uint64_t tile = range.first + blockIdx.x; tile < range.first + range.tiles; tile += gridDim.x) {
        const slc_tiled tiled = slc_tiled_begin(&range, tile, &number);
#pragma unroll
        for (uint32_t phase = 0; phase < SLC_TILE_PHASES; phase++) {
            slc_tiled_phase(&tiled, &shared, phase, threadIdx.x, blockDim.x);
            __syncthreads();
        }
    }
}
