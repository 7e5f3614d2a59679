/* names.c: see names.h. */
#include "base/names.h"

#include "base/clock.h"

#include <string.h>
#include <sys/random.h>

static uint64_t rotate(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

static void mix(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* SipHash-1-3, so that no list of names from outside makes the table slow: its key is drawn for each table. */
static uint64_t hash(const uint64_t key[2], const char *name)
{
    uint64_t v[4] = { key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573 };
    size_t length = strlen(name), whole = length & ~(size_t)7;
    for (size_t at = 0; at < whole; at += 8) {
        uint64_t word;
        memcpy(&word, name + at, 8);
        v[3] ^= word;
        mix(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)length << 56;
    for (size_t at = whole; at < length; at++)
        last |= (uint64_t)(unsigned char)name[at] << (8 * (at & 7));
    v[3] ^= last;
    mix(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The slot that holds the name, or the empty one where it belongs. */
static size_t seek(const slc_names *names, const char *name)
{
    size_t at = (size_t)hash(names->key, name) & (names->slots - 1);
    while (names->slot[at] != 0 && strcmp(names->name[names->slot[at] - 1], name) != 0)
        at = (at + 1) & (names->slots - 1);
    return at;
}

static bool grow(slc_names *names)
{
    if (!SLC_ROOM(names->name, names->capacity, names->count, 64))
        return false;
    if ((names->count + 1) * 2 <= names->slots)
        return true;
    slc_names wider = *names;
    if (names->slots == 0 && getrandom(wider.key, sizeof wider.key, GRND_NONBLOCK) < 0)
        wider.key[0] = (uint64_t)(uintptr_t)names ^ (uint64_t)slc_now_ns(); /* before the kernel has gathered any chance */
    wider.slots = names->slots == 0 ? 128 : names->slots * 2;
    wider.slot = slc_allocate_zeroed(wider.slots, sizeof *wider.slot);
    if (wider.slot == NULL)
        return false;
    for (size_t i = 0; i < names->count; i++)
        wider.slot[seek(&wider, names->name[i])] = (uint32_t)i + 1;
    slc_release(names->slot);
    *names = wider;
    return true;
}

size_t slc_names_add(slc_names *names, const char *name, bool *added)
{
    *added = false;
    size_t found = slc_names_find(names, name);
    if (found != SLC_NO_NAME)
        return found;
    if (names->count >= UINT32_MAX - 1 || !grow(names))
        return SLC_NO_NAME;
    const char *copy = slc_arena_text(&names->arena, name, strlen(name));
    if (copy == NULL)
        return SLC_NO_NAME;
    names->slot[seek(names, name)] = (uint32_t)names->count + 1;
    names->name[names->count] = copy;
    *added = true;
    return names->count++;
}

size_t slc_names_find(const slc_names *names, const char *name)
{
    if (names->slots == 0)
        return SLC_NO_NAME;
    uint32_t number = names->slot[seek(names, name)];
    return number == 0 ? SLC_NO_NAME : number - 1;
}

void slc_names_clear(slc_names *names)
{
    slc_release(names->name);
    slc_release(names->slot);
    slc_arena_clear(&names->arena);
    *names = (slc_names){ 0 };
}
