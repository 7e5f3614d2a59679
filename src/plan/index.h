/* index.h: numbers for addresses, in the order of adding, found in constant time. The caller keeps what belongs to each number. */
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

size_t slc_address_find(const slc_address_index *index, const void *address); /* SLC_NOT_FOUND where there is none */
bool slc_address_add(slc_address_index *index, const void *address); /* not in it yet; its number is the count before. False: no memory */
void slc_address_clear(slc_address_index *index);

#endif
