/* kernels.cu: fills and checks memory by the pattern, and holds every multiprocessor until it is told to stop. */
#include "pattern.h"

extern "C" __global__ void bench_fill(uint64_t *to, uint64_t words, uint64_t seed)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        to[i] = pattern(seed, i);
}

/* Rows without gaps at `at`, which came from word `from` on, `pitch` words apart. */
extern "C" __global__ void bench_check(const uint64_t *at, uint64_t width, uint64_t height, uint64_t from, uint64_t pitch, uint64_t seed,
                                       unsigned long long *wrong)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, count = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < width * height; i += step)
        count += at[i] != pattern(seed, from + i / width * pitch + i % width);
    if (count > 0)
        atomicAdd(wrong, (unsigned long long)count);
}

/* Ends after `most_ns` whatever happens: a benchmark that died must not leave a GPU held. */
extern "C" __global__ void bench_spin(const volatile unsigned long long *stop, unsigned long long *arrived, uint64_t most_ns)
{
    if (threadIdx.x == 0) {
        uint64_t began, now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
        atomicAdd(arrived, 1ULL);
        do
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        while (*stop == 0 && now - began < most_ns);
    }
    __syncthreads();
}
