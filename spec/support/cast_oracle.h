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

#endif
