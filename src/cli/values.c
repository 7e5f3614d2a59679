/* values.c: the generator. Pure functions of (name, update, offset); words are in the machine's own byte order. */
#include "cli/values.h"

#include <string.h>

enum { BLOCK_WORDS = 512 };

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15)

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

slc_values slc_values_of(const char *name, const void *base)
{
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (const unsigned char *at = (const unsigned char *)name; *at != 0; at++)
        hash = (hash ^ *at) * UINT64_C(0x100000001B3);
    return (slc_values){ .seed = mix(hash), .base = base };
}

/* Words [first, first + count), unaligned. */
static void words(uint64_t key, uint64_t first, unsigned char *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word = mix(key + (first + i) * GOLDEN);
        memcpy(out + i * sizeof word, &word, sizeof word);
    }
}

static void generate(uint64_t key, uint64_t offset, unsigned char *out, size_t count)
{
    unsigned char edge[sizeof(uint64_t)];
    size_t within = (size_t)(offset % sizeof edge);
    uint64_t word = offset / sizeof edge;
    if (within != 0) {
        size_t head = sizeof edge - within < count ? sizeof edge - within : count;
        words(key, word++, edge, 1);
        memcpy(out, edge + within, head);
        out += head;
        count -= head;
    }
    size_t whole = count / sizeof edge;
    words(key, word, out, whole);
    size_t tail = count % sizeof edge;
    if (tail != 0) {
        words(key, word + whole, edge, 1);
        memcpy(out + whole * sizeof edge, edge, tail);
    }
}

/* to ^= from, a word at a time. */
static void combine(unsigned char *to, const unsigned char *from, size_t count)
{
    size_t i = 0;
    for (; i + sizeof(uint64_t) <= count; i += sizeof(uint64_t)) {
        uint64_t a, b;
        memcpy(&a, to + i, sizeof a);
        memcpy(&b, from + i, sizeof b);
        a ^= b;
        memcpy(to + i, &a, sizeof a);
    }
    for (; i < count; i++)
        to[i] ^= from[i];
}

void slc_values_write(const slc_values *values, uint64_t update, uint64_t offset, void *out, size_t count)
{
    uint64_t key = mix(values->seed + update * GOLDEN);
    unsigned char *to = out;
    if (values->base == NULL) {
        generate(key, offset, to, count);
        return;
    }
    memcpy(to, values->base + offset, count);
    if (update <= 1)
        return;
    unsigned char block[BLOCK_WORDS * sizeof(uint64_t)];
    for (size_t done = 0; done < count;) {
        size_t now = count - done < sizeof block ? count - done : sizeof block;
        generate(key, offset + done, block, now);
        combine(to + done, block, now);
        done += now;
    }
}
