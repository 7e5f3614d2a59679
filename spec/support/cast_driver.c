/*
 * cast_driver.c: conversions on a processor against the oracle of cast_oracle.h, for every upper part of a float32 that a float16
 * can tell from the next, with what lies on either side of halfway, and for random bits.
 *
 *     cast_driver [SEED]
 *
 * Prints "N numbers: equal", or the first difference.
 */
#include "base/dtype.h"
#include "cast_oracle.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t number_at(uint32_t i, uint64_t seed)
{
    static const uint32_t rest[] = { 0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF };
    const uint32_t count = sizeof rest / sizeof rest[0], all = (1U << 19) * count;
    uint64_t mixed = (i + seed) * UINT64_C(0x9E3779B97F4A7C15);
    return i < all ? (i / count) << 13 | rest[i % count] : (uint32_t)(mixed >> 29);
}

int main(int argc, char **argv)
{
    enum { NUMBERS = (6 << 19) + (1 << 19) };
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (slc_cast cast = SLC_CAST_F32_BF16; cast < SLC_CASTS; cast++)
        for (uint32_t i = 0; i < NUMBERS; i++) {
            uint32_t before = number_at(i, seed), must = small_oracle(cast == SLC_CAST_F32_BF16 ? BFLOAT16 : FLOAT16, before);
            uint16_t behind;
            slc_cast_row(cast, (unsigned char *)&behind, 2, (const unsigned char *)&before, 4, 1);
            if (behind == must)
                continue;
            printf("seed %llu: conversion %d of %08x is %04x, must be %04x\n", (unsigned long long)seed, (int)cast, before, behind, must);
            return 1;
        }
    printf("%d numbers: equal\n", NUMBERS * (SLC_CASTS - 1));
    return 0;
}
