/*
 * cast.h: conversions on the way, as rules can ask for them: which there are and, bit by bit, what each does. Plain C that nvcc
 * compiles for GPUs, too, so that every transport comes to the same bytes; cast.c has what only processors do.
 *
 *   float32 -> bfloat16, float16   rounded to the nearest, halfway cases to the even one. What rounds beyond the largest number
 *                                  is infinity, infinity stays, zero keeps its sign; float16 has its subnormal numbers. A NaN
 *                                  stays one: sign and upper payload bits as they were, the quiet bit set
 *
 *   bfloat16, float32 -> float8_e4m3fn, in blocks of SLC_BLOCK x SLC_BLOCK elements that share a scale, a float32:
 *       largest  the largest magnitude of the block's finite numbers; those below 2^-126 count as zero, here and below
 *       scale    largest / 448, not below 2^-126; 1 where largest is 0
 *       number   x / scale, then to the nearest e4m3 number, subnormal ones among them, halfway cases to the even one; what is
 *                beyond 448 is 448, infinity too. Zero keeps its sign, and what rounds to it. A NaN is 0x7f with its sign
 *   Both divisions are float32's own, rounded to the nearest even. So number times scale is x again but for the rounding, and
 *   neither a NaN nor an infinity costs the rest of its block anything.
 */
#ifndef SLC_BASE_CAST_H
#define SLC_BASE_CAST_H

#include <stdint.h>

#if defined(__CUDACC__)
#define SLC_BODY static __host__ __device__ __forceinline__
#else
#define SLC_BODY static inline
#endif

/*
 * X(NAME, from, to): dtypes as dtype.h has them. Those of the second list bring what a block's numbers were divided by. The order
 * is the code that crosses the wire: append only.
 */
#define SLC_CAST_LIST(X)                                                                                                      \
    X(F32_BF16, float32, bfloat16) X(F32_F16, float32, float16) X(BF16_F8, bfloat16, float8_e4m3fn)                          \
    X(F32_F8, float32, float8_e4m3fn)
#define SLC_SCALE_LIST(X) X(BF16_SCALE, bfloat16, float32) X(F32_SCALE, float32, float32)

typedef enum slc_cast {
    SLC_CAST_NONE,
#define SLC_CAST_ENUM(name, from, to) SLC_CAST_##name,
    SLC_CAST_LIST(SLC_CAST_ENUM) SLC_SCALE_LIST(SLC_CAST_ENUM)
#undef SLC_CAST_ENUM
        SLC_CASTS
} slc_cast;

enum { SLC_BLOCK = 128 };

/* Bytes of an element before a conversion; 0 where there is none. */
SLC_BODY uint32_t slc_cast_from(uint32_t cast)
{
    return cast == SLC_CAST_NONE ? 0 : cast == SLC_CAST_BF16_F8 || cast == SLC_CAST_BF16_SCALE ? 2 : 4;
}

/* Behind it. */
SLC_BODY uint32_t slc_cast_to(uint32_t cast)
{
    return cast == SLC_CAST_NONE ? 0 : cast < SLC_CAST_BF16_F8 ? 2 : cast < SLC_CAST_BF16_SCALE ? 1 : 4;
}

/* Whether it takes a whole block to know one number. */
SLC_BODY int slc_cast_in_blocks(uint32_t cast)
{
    return cast >= SLC_CAST_BF16_F8;
}

/* Whether scales are what lands, one a block. */
SLC_BODY int slc_cast_scales(uint32_t cast)
{
    return cast >= SLC_CAST_BF16_SCALE;
}

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

/* One element of a conversion that is not in blocks. */
SLC_BODY uint16_t slc_cast_one(uint32_t cast, uint32_t bits)
{
    return cast == SLC_CAST_F32_BF16 ? slc_bfloat16_of(bits) : slc_float16_of(bits);
}

/* ---- in blocks: numbers as the bits of a float32, to which bfloat16 is widened ---- */

/* What a number adds to the largest of its block: the larger of two such is the larger magnitude. */
SLC_BODY uint32_t slc_magnitude_of(uint32_t bits)
{
    const uint32_t size = bits & 0x7FFFFFFF, infinity = 0x7F800000, least_normal = 0x00800000;
    return size >= infinity || size < least_normal ? 0 : size;
}

/* The float32 of these bits. */
SLC_BODY float slc_number_of(uint32_t bits)
{
    union {
        uint32_t bits;
        float number;
    } both = { bits };
    return both.number;
}

/* And back. */
SLC_BODY uint32_t slc_bits_of(float number)
{
    union {
        float number;
        uint32_t bits;
    } both = { number };
    return both.bits;
}

/* The scale of a block. */
SLC_BODY float slc_scale_of(uint32_t largest)
{
    const float most = 448, least = slc_number_of(0x00800000);
    if (largest == 0)
        return 1;
    const float scale = slc_number_of(largest) / most;
    return scale < least ? least : scale;
}

/* The nearest e4m3 number to a float32; beyond the largest one it is that. */
SLC_BODY uint8_t slc_float8_of(uint32_t bits)
{
    const uint32_t sign = bits >> 24 & 0x80, size = bits & 0x7FFFFFFF, infinity = 0x7F800000;
    const uint32_t most = 0x43E00000, least_normal = 0x3C800000; /* 448, 2^-6 */
    if (size > infinity)
        return (uint8_t)(sign | 0x7F);
    if (size >= most)
        return (uint8_t)(sign | 0x7E);
    if (size >= least_normal) /* a carry goes on into the exponent */
        return (uint8_t)(sign | ((size - ((uint32_t)120 << 23) + 0x7FFFF + (size >> 20 & 1)) >> 20));
    const uint32_t down = 141 - (size >> 23); /* bits that do not fit a multiple of 2^-9 */
    if (down > 24)
        return (uint8_t)sign;
    const uint32_t digits = (size & 0x7FFFFF) | 0x800000, half = (uint32_t)1 << (down - 1);
    return (uint8_t)(sign | (digits + half - 1 + (digits >> down & 1)) >> down);
}

/* A block's scale, made ready to divide by: by `inverse` and a correction where there is a fused multiply-add, see slc_ratio_of. */
typedef struct slc_divisor {
    float scale, lift, inverse;
} slc_divisor;

/* Of a scale that slc_scale_of gave. */
SLC_BODY slc_divisor slc_divisor_of(float scale)
{
    const float lift = scale < 0x1p-60F ? 0x1p64F : 1; /* far from where remainders would be lost */
    const slc_divisor divisor = { scale, lift, 1 / (scale * lift) };
    return divisor;
}

/*
 * number / scale, rounded to the nearest even, for numbers from 2^-126 to 448 scales. On GPUs a division costs more
 * than all else: a quotient within a unit in the last place, corrected by its exact remainder times the rounded inverse, is the
 * rounded one (Markstein). Where quotients are too small for that, they are far below what rounds to 0.
 */
SLC_BODY float slc_ratio_of(float number, slc_divisor divisor)
{
#if defined(__CUDA_ARCH__)
    const float given = __fmul_rn(number, divisor.lift), scale = __fmul_rn(divisor.scale, divisor.lift);
    const float close = __fmul_rn(given, divisor.inverse);
    return __fmaf_rn(__fmaf_rn(-close, scale, given), divisor.inverse, close);
#else
    return number / divisor.scale;
#endif
}

/* One number of a block with that scale. */
SLC_BODY uint8_t slc_scaled_of(uint32_t bits, slc_divisor divisor)
{
    const uint32_t least_normal = 0x00800000, size = bits & 0x7FFFFFFF, beyond = 0x7F800000, sign = bits >> 24 & 0x80;
    if (size >= beyond)
        return slc_float8_of(bits);
    if (size < least_normal)
        return (uint8_t)sign;
    const float ratio = slc_ratio_of(slc_number_of(size), divisor); /* without its sign, which a zero would lose */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t both; /* the same, by an instruction */
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0F), "f"(ratio));
    return (uint8_t)(sign | both);
#else
    return (uint8_t)(sign | slc_float8_of(slc_bits_of(ratio)));
#endif
}

#endif
