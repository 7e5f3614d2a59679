/* names.h: numbers names in the order in which they are added, and finds them by hash. Owns copies. Initialise with {0}. */
#ifndef SLC_BASE_NAMES_H
#define SLC_BASE_NAMES_H

#include "base/memory.h"

#define SLC_NO_NAME SIZE_MAX

typedef struct slc_names {
    const char **name; /* by number */
    size_t count, capacity;
    uint32_t *slot; /* number + 1, open addressing */
    size_t slots;
    uint64_t key[2]; /* of the hash; no result depends on it */
    slc_arena arena;
} slc_names;

/* The name's number; *added says whether it is new. SLC_NO_NAME when there is no memory. */
size_t slc_names_add(slc_names *names, const char *name, bool *added);
size_t slc_names_find(const slc_names *names, const char *name); /* SLC_NO_NAME where there is none */
void slc_names_clear(slc_names *names);

#endif
