/* pattern.h: the bytes that the trainer's memory holds, eight at a time: a number's mixed bits. For processors and GPUs. */
#ifndef SPEC_GPU_BENCH_PATTERN_H
#define SPEC_GPU_BENCH_PATTERN_H

#include <stdint.h>

#if defined(__CUDACC__)
#define PATTERN static __host__ __device__ inline
#else
#define PATTERN static inline
#endif

/* Word `index` (from the start of the memory) of the sample that `seed` numbers. */
PATTERN uint64_t pattern(uint64_t seed, uint64_t index)
{
    uint64_t x = index * UINT64_C(0x9E3779B97F4A7C15) + seed * UINT64_C(0xD1B54A32D192ED03) + UINT64_C(0x8CB92BA72F3D8DD7);
    x = (x ^ (x >> 32)) * UINT64_C(0xBF58476D1CE4E5B9);
    return x ^ (x >> 29);
}

#endif
