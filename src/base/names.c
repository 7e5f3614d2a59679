/* names.c: see names.h. */
#include "base/names.h"

#include <string.h>

static uint64_t hash(const char *name)
{
    uint64_t value = 1469598103934665603u; /* FNV-1a */
    for (const unsigned char *at = (const unsigned char *)name; *at != 0; at++)
        value = (value ^ *at) * 1099511628211u;
    return value ^ (value >> 32);
}

/* The slot that holds the name, or the empty one where it belongs. */
static size_t seek(const slc_names *names, const char *name)
{
    size_t at = (size_t)hash(name) & (names->slots - 1);
    while (names->slot[at] != 0 && strcmp(names->name[names->slot[at] - 1], name) != 0)
        at = (at + 1) & (names->slots - 1);
    return at;
}

static bool grow(slc_names *names)
{
    if (names->count == names->capacity) {
        size_t capacity = names->capacity == 0 ? 64 : names->capacity * 2;
        const char **name = slc_reallocate(names->name, capacity * sizeof *name);
        if (name == NULL)
            return false;
        names->name = name;
        names->capacity = capacity;
    }
    if ((names->count + 1) * 2 <= names->slots)
        return true;
    slc_names wider = *names;
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
