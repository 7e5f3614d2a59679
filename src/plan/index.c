/* index.c: an open-addressing table with linear probing, at most half full. Owns its memory, not what the addresses name. */
#include "plan/index.h"

#include "base/memory.h"

static size_t home(const void *address, size_t slots)
{
    uint64_t x = (uint64_t)(uintptr_t)address;
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15U;
    return (size_t)(x ^ x >> 29) & (slots - 1);
}

static void place(uint32_t *slot, size_t slots, const void *address, size_t number)
{
    size_t at = home(address, slots);
    while (slot[at] != 0)
        at = (at + 1) & (slots - 1);
    slot[at] = (uint32_t)(number + 1);
}

size_t slc_address_find(const slc_address_index *index, const void *address)
{
    if (index->count == 0)
        return SLC_NOT_FOUND;
    for (size_t at = home(address, index->slots); index->slot[at] != 0; at = (at + 1) & (index->slots - 1))
        if (index->address[index->slot[at] - 1] == address)
            return index->slot[at] - 1;
    return SLC_NOT_FOUND;
}

static bool grow(slc_address_index *index)
{
    size_t capacity = index->capacity == 0 ? 16 : index->capacity * 2;
    if (capacity >= UINT32_MAX)
        return false;
    const void **address = slc_reallocate(index->address, capacity * sizeof *address);
    if (address == NULL)
        return false;
    index->address = address;
    uint32_t *slot = slc_allocate_zeroed(capacity * 2, sizeof *slot);
    if (slot == NULL)
        return false;
    index->capacity = capacity;
    index->slots = capacity * 2;
    for (size_t i = 0; i < index->count; i++)
        place(slot, index->slots, address[i], i);
    slc_release(index->slot);
    index->slot = slot;
    return true;
}

bool slc_address_add(slc_address_index *index, const void *address)
{
    if (index->count == index->capacity && !grow(index))
        return false;
    index->address[index->count] = address;
    place(index->slot, index->slots, address, index->count++);
    return true;
}

void slc_address_clear(slc_address_index *index)
{
    slc_release(index->address);
    slc_release(index->slot);
    *index = (slc_address_index){ 0 };
}
