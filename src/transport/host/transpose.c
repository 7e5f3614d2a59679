/*
 * transpose.c: see transpose.h. A tile is a cache line's worth of elements each way; it is taken in and given out by whole
 * lines, each touched once, since the rows of real matrices often lie a power of two apart and would push each other out.
 * Between, small blocks of elements change places within 64-bit words.
 */
#include "transport/host/transpose.h"

#include <string.h>

enum {
    LINE = 64,
    MACRO = 512, /* bytes of a source row, and of a destination row, that are worked on before going on: fits the second cache */
};

/* Without words: other sizes of element, or steps on both sides. */
static inline void plain_tile(unsigned char *to, const unsigned char *from, size_t run, slc_stride a, slc_stride b, int64_t along,
                              int64_t across)
{
    for (int64_t i = 0; i < along; i++)
        for (int64_t j = 0; j < across; j++)
            memcpy(to + i * a.destination + j * b.destination, from + i * a.source + j * b.source, run);
}

static uint64_t word_at(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Exchanges the high parts (by `shift` bits, under `mask`) of *a with the low parts of *b. */
static inline void exchange(uint64_t *a, uint64_t *b, int shift, uint64_t mask)
{
    uint64_t differs = ((*a >> shift) ^ *b) & mask;
    *b ^= differs;
    *a ^= differs << shift;
}

/* The blocks are written out, since compilers keep an array that is indexed by a loop in memory. */
#define TAKE(k) uint64_t w##k = word_at(from + LINE * (k))
#define GIVE(k) memcpy(to + LINE * (k), &w##k, 8)

/* 8 rows of 8 elements of one byte. */
static inline void block_of_1(unsigned char *to, const unsigned char *from)
{
    const uint64_t bytes = 0x00ff00ff00ff00ffu, pairs = 0x0000ffff0000ffffu, halves = 0x00000000ffffffffu;
    TAKE(0);
    TAKE(1);
    TAKE(2);
    TAKE(3);
    TAKE(4);
    TAKE(5);
    TAKE(6);
    TAKE(7);
    exchange(&w0, &w1, 8, bytes), exchange(&w2, &w3, 8, bytes), exchange(&w4, &w5, 8, bytes), exchange(&w6, &w7, 8, bytes);
    exchange(&w0, &w2, 16, pairs), exchange(&w1, &w3, 16, pairs), exchange(&w4, &w6, 16, pairs), exchange(&w5, &w7, 16, pairs);
    exchange(&w0, &w4, 32, halves), exchange(&w1, &w5, 32, halves), exchange(&w2, &w6, 32, halves),
        exchange(&w3, &w7, 32, halves);
    GIVE(0);
    GIVE(1);
    GIVE(2);
    GIVE(3);
    GIVE(4);
    GIVE(5);
    GIVE(6);
    GIVE(7);
}

/* 4 rows of 4 elements of two bytes. */
static inline void block_of_2(unsigned char *to, const unsigned char *from)
{
    const uint64_t pairs = 0x0000ffff0000ffffu, halves = 0x00000000ffffffffu;
    TAKE(0);
    TAKE(1);
    TAKE(2);
    TAKE(3);
    exchange(&w0, &w1, 16, pairs), exchange(&w2, &w3, 16, pairs);
    exchange(&w0, &w2, 32, halves), exchange(&w1, &w3, 32, halves);
    GIVE(0);
    GIVE(1);
    GIVE(2);
    GIVE(3);
}

/* 2 rows of 2 elements of four bytes. */
static inline void block_of_4(unsigned char *to, const unsigned char *from)
{
    TAKE(0);
    TAKE(1);
    exchange(&w0, &w1, 32, 0x00000000ffffffffu);
    GIVE(0);
    GIVE(1);
}

/* A tile of LINE / run rows, one line each, to the same number of lines. */
#define TILE_OF(run) \
    static void tile_of_##run(unsigned char *to, const unsigned char *from) \
    { \
        for (int i = 0; i < LINE / run; i += 8 / run) \
            for (int j = 0; j < LINE; j += 8) \
                block_of_##run(to + j / run * LINE + i * run, from + i * LINE + j); \
    }
TILE_OF(1)
TILE_OF(2)
TILE_OF(4)

/* One tile of `along` elements of the source's rows by `across` rows, at most LINE / run of either. */
static void copy_tile(unsigned char *to, const unsigned char *from, size_t run, int64_t along, int64_t across, slc_stride a,
                      slc_stride b)
{
    _Alignas(LINE) unsigned char in[LINE * LINE], out[LINE * LINE];
    size_t taken = (size_t)along * run, given = (size_t)across * run;
    if (taken == LINE)
        for (int64_t j = 0; j < across; j++)
            memcpy(in + j * LINE, from + j * b.source, LINE);
    else
        for (int64_t j = 0; j < across; j++)
            memcpy(in + j * LINE, from + j * b.source, taken);
    switch (run) {
    case 1: tile_of_1(out, in); break;
    case 2: tile_of_2(out, in); break;
    default: tile_of_4(out, in); break;
    }
    if (given == LINE)
        for (int64_t i = 0; i < along; i++)
            memcpy(to + i * a.destination, out + i * LINE, LINE);
    else
        for (int64_t i = 0; i < along; i++)
            memcpy(to + i * a.destination, out + i * LINE, given);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void plainly(unsigned char *to, const unsigned char *from, size_t run, slc_stride a, slc_stride b)
{
    for (int64_t i = 0; i < a.count; i += LINE)
        for (int64_t j = 0; j < b.count; j += LINE) {
            unsigned char *tile_to = to + i * a.destination + j * b.destination;
            const unsigned char *tile_from = from + i * a.source + j * b.source;
            int64_t along = least(LINE, a.count - i), across = least(LINE, b.count - j);
            switch (run) { /* a constant size makes a move of the memcpy */
            case 1: plain_tile(tile_to, tile_from, 1, a, b, along, across); break;
            case 2: plain_tile(tile_to, tile_from, 2, a, b, along, across); break;
            case 4: plain_tile(tile_to, tile_from, 4, a, b, along, across); break;
            case 8: plain_tile(tile_to, tile_from, 8, a, b, along, across); break;
            case 16: plain_tile(tile_to, tile_from, 16, a, b, along, across); break;
            default: plain_tile(tile_to, tile_from, run, a, b, along, across); break;
            }
        }
}

static void copy_macro(unsigned char *to, const unsigned char *from, int64_t run, slc_stride a, slc_stride b, int64_t along,
                       int64_t across)
{
    int64_t side = LINE / run;
    for (int64_t i = 0; i < along; i += side)
        for (int64_t j = 0; j < across; j += side)
            copy_tile(to + i * a.destination + j * run, from + i * run + j * b.source, (size_t)run, least(side, along - i),
                      least(side, across - j), a, b);
}

void slc_transpose(unsigned char *destination, const unsigned char *source, int64_t run, slc_stride a, slc_stride b)
{
    bool words = (run == 1 || run == 2 || run == 4) && a.source == run && b.destination == run;
    if (!words || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) {
        plainly(destination, source, (size_t)run, a, b);
        return;
    }
    int64_t side = MACRO / run;
    for (int64_t i = 0; i < a.count; i += side)
        for (int64_t j = 0; j < b.count; j += side)
            copy_macro(destination + i * a.destination + j * run, source + i * run + j * b.source, run, a, b,
                       least(side, a.count - i), least(side, b.count - j));
}
