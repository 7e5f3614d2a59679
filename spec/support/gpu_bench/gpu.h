/*
 * gpu.h: a GPU as the benchmark uses it: the driver that the transport finds (src/transport/nccl/load.h) and the few
 * functions more that kernels want. Where these or the compiled kernels are missing, memory is filled and checked by
 * processors, and what needs kernels says so. Every fault ends the process with a line that names it (see crew.h).
 */
#ifndef SPEC_GPU_BENCH_GPU_H
#define SPEC_GPU_BENCH_GPU_H

#include "crew.h"
#include "transport/nccl/load.h"
#include "work.h"

typedef struct gpu {
    slc_cuda cuda;
    int ordinal, count, processors; /* processors: SMs, 0 where there are no kernels */
    char name[128];
    CUcontext context;
    CUstream stream;
    PFN_cuEventSynchronize_v2000 EventSynchronize;
    PFN_cuEventElapsedTime_v2000 EventElapsedTime;
    CUfunction fill, check, spin;
    CUdeviceptr words; /* wrong, stop, arrived */
    CUstream spinning;
    char why_no_kernels[256];
} gpu;

void must(const gpu *g, CUresult result, const char *what); /* dies of another than CUDA_SUCCESS */

/* Makes the context of GPU `ordinal` this thread's. `kernels` is the file of compiled kernels. False where there is no such GPU. */
bool gpu_open(gpu *g, int ordinal, const char *kernels, char *why, size_t size);
CUdeviceptr gpu_allocate(const gpu *g, size_t bytes, const char *what);
size_t gpu_free_bytes(const gpu *g);

/* Each returns when it is done. Bytes are multiples of 8. */
void gpu_fill(const gpu *g, CUdeviceptr to, size_t bytes, uint64_t seed); /* the pattern of the trainer's memory */
void gpu_poison(const gpu *g, CUdeviceptr to, size_t bytes);
uint64_t gpu_wrong(const gpu *g, CUdeviceptr base, const piece *list, size_t count, uint64_t seed); /* words that differ */

/* Every SM is held from the one to the other; both want kernels. */
void gpu_hold(const gpu *g);
void gpu_let_go(const gpu *g);

#endif
