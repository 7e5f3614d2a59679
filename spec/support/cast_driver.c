/*
 * cast_driver.c: conversions on a processor against the oracle of cast_oracle.h.
 *
 *     cast_driver [SEED]           float32 to bfloat16 and float16, for every upper part of a float32 that a float16 can tell from
 *                                  the next, with what lies on either side of halfway, and for random bits
 *     cast_driver blocks [SEED]    to float8_e4m3fn in blocks, from bfloat16 and float32: all bfloat16 numbers, with many scales
 *
 * Prints "N numbers: equal", or the first difference.
 */
#include "base/convert.h"
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

static int run_numbers(uint64_t seed)
{
    enum { NUMBERS = (6 << 19) + (1 << 19) };
    for (slc_cast cast = SLC_CAST_F32_BF16; cast <= SLC_CAST_F32_F16; cast++)
        for (uint32_t i = 0; i < NUMBERS; i++) {
            uint32_t before = number_at(i, seed), must = small_oracle(cast == SLC_CAST_F32_BF16 ? BFLOAT16 : FLOAT16, before);
            uint16_t behind;
            slc_cast_row(cast, (unsigned char *)&behind, 2, (const unsigned char *)&before, 4, 1);
            if (behind == must)
                continue;
            printf("seed %llu: conversion %d of %08x is %04x, must be %04x\n", (unsigned long long)seed, (int)cast, before, behind, must);
            return 1;
        }
    printf("%d numbers: equal\n", NUMBERS * 2);
    return 0;
}

/* One block, elements and scale. */
static int run_block(slc_cast cast, slc_cast scales, uint32_t block, uint64_t seed)
{
    const slc_grid grid = { .extent = { 128, 128 }, .step = { 128 * (int64_t)slc_cast_from(cast), slc_cast_from(cast) } };
    static unsigned char from[ORACLE_BLOCK * 4], to[ORACLE_BLOCK];
    slc_grid_scales known = { .row = -1 };
    double largest = 0;
    float scale;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
            uint64_t mixed = (block * ORACLE_BLOCK + i + seed) * UINT64_C(0x9E3779B97F4A7C15);
            uint32_t bits = oracle_number(block * ORACLE_BLOCK + i, slc_cast_from(cast) == 2 ? 0 : (uint32_t)(mixed >> 40));
            uint16_t half = (uint16_t)(bits >> 16);
            largest = oracle_largest(largest, bits);
            if (slc_cast_from(cast) == 2)
                memcpy(from + 2 * i, &half, 2);
            else
                memcpy(from + 4 * i, &bits, 4);
            uint8_t must = pass == 0 ? 0 : oracle_scaled(bits, oracle_scale(largest));
            if (pass == 0 || to[i] == must)
                continue;
            printf("seed %llu: conversion %d of %08x is %02x, must be %02x, in block %u\n", (unsigned long long)seed, (int)cast, bits, to[i],
                   must, block);
            return 1;
        }
        slc_grid_row(scales, &grid, from, 0, 0, 1, (unsigned char *)&scale, 4, NULL);
        for (int64_t row = 0; row < 128; row++)
            slc_grid_row(cast, &grid, from, row, 0, 128, to + row * 128, 1, &known);
    }
    if (scale == oracle_scale(largest))
        return 0;
    printf("the scale of block %u is %a, must be %a\n", block, (double)scale, (double)oracle_scale(largest));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "blocks") != 0)
        return run_numbers(argc > 1 ? strtoull(argv[1], NULL, 10) : 1);
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint32_t block = 0; block < ORACLE_BLOCKS; block++)
        if (run_block(SLC_CAST_BF16_F8, SLC_CAST_BF16_SCALE, block, seed) != 0 ||
            run_block(SLC_CAST_F32_F8, SLC_CAST_F32_SCALE, block, seed) != 0)
            return 1;
    printf("%d numbers: equal\n", 2 * ORACLE_BLOCKS * ORACLE_BLOCK);
    return 0;
}
