/*
 * cast.h: conversions of elements on the way, as rules can ask for them: which there are and, bit by bit, what each does.
 * Plain C that nvcc compiles for GPUs, too, so that every transport comes to the same bytes.
 *
 *   float32 -> bfloat16, float16   rounded to the nearest, halfway cases to the even one. What rounds beyond the largest number
 *                                  is infinity, infinity stays, zero keeps its sign; float16 has its subnormal numbers. A NaN
 *                                  stays one: sign and upper payload bits as they were, the quiet bit set
 */
#ifndef SLC_BASE_CAST_H
#define SLC_BASE_CAST_H

#include <stdint.h>

#if defined(__CUDACC__)
#define SLC_BODY static __host__ __device__ __forceinline__
#else
#define SLC_BODY static inline
#endif

/* X(NAME, from, to): dtypes as dtype.h has them. The order is the code that crosses the wire: append only. */
#define SLC_CAST_LIST(X) X(F32_BF16, float32, bfloat16) X(F32_F16, float32, float16)

typedef enum slc_cast {
    SLC_CAST_NONE,
#define SLC_CAST_ENUM(name, from, to) SLC_CAST_##name,
    SLC_CAST_LIST(SLC_CAST_ENUM)
#undef SLC_CAST_ENUM
        SLC_CASTS
} slc_cast;

/* Bytes of an element before and behind; every cast that there is halves them. */
enum { SLC_CAST_FROM = 4, SLC_CAST_TO = 2 };

/* The nearest bfloat16 to a float32, both as bits. */
SLC_BODY uint16_t slc_bfloat16_of(uint32_t bits)
{
    const uint32_t infinity = 0x7F800000, half = 0x7FFF;
    if ((bits & 0x7FFFFFFF) > infinity)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + half + (bits >> 16 & 1)) >> 16);
}

/* The nearest float16 to a float32, both as bits. */
SLC_BODY uint16_t slc_float16_of(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF, infinity = 0x7F800000;
    const uint32_t least_normal = 0x38800000, beyond = 0x47800000; /* 2^-14, 2^16 */
    if (size > infinity)
        return (uint16_t)(sign | 0x7E00 | (size >> 13 & 0x3FF));
    if (size >= beyond)
        return (uint16_t)(sign | 0x7C00);
    if (size >= least_normal) /* a carry goes on into the exponent, and from the largest number to infinity */
        return (uint16_t)(sign | ((size - ((uint32_t)112 << 23) + 0xFFF + (size >> 13 & 1)) >> 13));
    const uint32_t down = 126 - (size >> 23); /* bits that do not fit a multiple of 2^-24 */
    if (down > 24)
        return (uint16_t)sign;
    const uint32_t digits = (size & 0x7FFFFF) | 0x800000, half = (uint32_t)1 << (down - 1);
    return (uint16_t)(sign | (digits + half - 1 + (digits >> down & 1)) >> down);
}

/* One element. */
SLC_BODY uint16_t slc_cast_one(uint32_t cast, uint32_t bits)
{
    return cast == SLC_CAST_F32_BF16 ? slc_bfloat16_of(bits) : slc_float16_of(bits);
}

#endif
