/*
 * cast_oracle.h: what a conversion must give, found without a single operation on the bits of the number: all 16-bit numbers
 * are decoded, and the nearest is looked for. Slow, and on purpose unlike base/cast.h, with which it shares nothing.
 */
#ifndef SPEC_SUPPORT_CAST_ORACLE_H
#define SPEC_SUPPORT_CAST_ORACLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct small_float { /* a sign, `exponent` bits, the rest */
    int exponent, mantissa;
} small_float;

/* The value of a positive finite pattern. */
static double small_value(small_float kind, uint32_t bits)
{
    int bias = (1 << (kind.exponent - 1)) - 1, exponent = (int)(bits >> kind.mantissa);
    double fraction = (double)(bits % (1U << kind.mantissa)) / (double)(1U << kind.mantissa);
    return exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
}

static uint32_t small_oracle(small_float kind, uint32_t float_bits)
{
    float given;
    memcpy(&given, &float_bits, sizeof given);
    const uint32_t infinity = ((1U << kind.exponent) - 1) << kind.mantissa, sign = 1U << (kind.exponent + kind.mantissa);
    const uint32_t minus = signbit(given) ? sign : 0;
    if (isnan(given)) /* the payload's upper bits, and quiet */
        return minus | infinity | 1U << (kind.mantissa - 1) | (float_bits % (1U << 23)) / (1U << (23 - kind.mantissa));
    double wanted = fabs((double)given);
    uint32_t low = 0, high = infinity; /* as if infinity were the next number: that is where halfway leads there */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (small_value(kind, middle) <= wanted)
            low = middle;
        else
            high = middle;
    }
    if (isinf(given))
        return minus | infinity;
    double below = wanted - small_value(kind, low), above = small_value(kind, high) - wanted;
    return minus | (below < above || (below == above && low % 2 == 0) ? low : high);
}

static const small_float BFLOAT16 = { 8, 7 }, FLOAT16 = { 5, 10 };

/* ---- float8_e4m3fn in blocks: both divisions in double precision, of which a float32's is the rounding ---- */

static const double LEAST_NORMAL = 0x1p-126;

static float as_float(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* The larger of a block's largest magnitude so far and this number's. */
static double oracle_largest(double largest, uint32_t bits)
{
    double number = fabs((double)as_float(bits));
    return isfinite(number) && number >= LEAST_NORMAL && number > largest ? number : largest;
}

static float oracle_scale(double largest)
{
    float scale = (float)(largest / 448.0);
    return largest == 0 ? 1.0F : scale < (float)LEAST_NORMAL ? (float)LEAST_NORMAL : scale;
}

/* The 127 numbers from 0 to 448, of which the nearest is looked for; 16 times the exponent's step is in none. */
static double e4m3_value(uint32_t bits)
{
    return bits < 8 ? ldexp(bits, -9) : ldexp(8 + bits % 8, (int)(bits / 8) - 10);
}

static uint8_t oracle_scaled(uint32_t bits, float scale)
{
    const float given = as_float(bits);
    const uint32_t minus = bits >= 1U << 31 ? 0x80 : 0, last = 126;
    if (isnan(given))
        return (uint8_t)(minus + 127);
    double wanted = fabs((double)given) < LEAST_NORMAL ? 0 : fabs((double)(float)((double)given / (double)scale));
    if (isinf(given) || wanted >= e4m3_value(last))
        return (uint8_t)(minus + last);
    uint32_t low = 0, high = last;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (e4m3_value(middle) <= wanted)
            low = middle;
        else
            high = middle;
    }
    double below = wanted - e4m3_value(low), above = e4m3_value(high) - wanted;
    return (uint8_t)(minus + (below < above || (below == above && low % 2 == 0) ? low : high));
}

/*
 * Number i of 255 blocks of 128 x 128 which have all bfloat16 numbers in them, each with most scales that leave it something,
 * as a float32's bits. `noise` fills the lower half: 0 for bfloat16.
 */
enum { ORACLE_BLOCKS = 255, ORACLE_BLOCK = 128 * 128 };
static uint32_t oracle_number(uint32_t i, uint32_t noise)
{
    uint32_t block = i / ORACLE_BLOCK, in = i % ORACLE_BLOCK;
    uint32_t exponent = in / 256 > block ? 0 : block - in / 256; /* 64 of them down from the block's own */
    if (in == 77 && block % 3 == 0) /* what counts for no scale */
        return block % 2 == 0 ? 0x7F800000 | noise : 0xFF800000;
    return (in % 2) << 31 | exponent << 23 | (in / 2 % 128) << 16 | noise % (1U << 16);
}

#endif
