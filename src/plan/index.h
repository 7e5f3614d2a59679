/* index.h: numbers for addresses, in the order of adding, found in constant time. What belongs to a number is the caller's. */
#ifndef SLC_PLAN_INDEX_H
#define SLC_PLAN_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLC_NOT_FOUND SIZE_MAX

/* Initialise with {0}. No result depends on the addresses' values. */
typedef struct slc_address_index {
    const void **address;
    uint32_t *slot; /* number + 1; 0 is free */
    size_t count, capacity, slots;
} slc_address_index;

/* SLC_NOT_FOUND where there is none. */
size_t slc_address_find(const slc_address_index *index, const void *address);
/* The address is not in it yet; its number is the count before. False when there is no memory. */
bool slc_address_add(slc_address_index *index, const void *address);
/* Frees all and leaves it empty. */
void slc_address_clear(slc_address_index *index);

#endif
