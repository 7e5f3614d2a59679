/* kernels.cu: the kernels of libsluice_cuda by the names that kernels.c looks up; what they do is in kernels_body.h. */
#include "kernels_body.h"

extern "C" __global__ void __launch_bounds__(SLC_MOVE_THREADS) slc_kernel_move(slc_move_range range)
{
    slc_move_run(&range, blockIdx.x, gridDim.x, threadIdx.x, blockDim.x);
}
