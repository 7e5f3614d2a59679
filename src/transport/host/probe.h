/*
 * probe.h: whether memory of this process can be read or written, without touching it: by the kernel's own list of
 * mappings.
 */
#ifndef SLC_TRANSPORT_HOST_PROBE_H
#define SLC_TRANSPORT_HOST_PROBE_H

#include "sluice.h"

typedef struct slc_host_mapping {
    uint64_t low, high;
} slc_host_mapping;

/* Ascending, neighbours joined. */
typedef struct slc_host_mappings {
    slc_host_mapping *item;
    size_t count, capacity;
} slc_host_mappings;

/* All memory that is readable (or, with `writable`, writable) now. Clear it with slc_host_mappings_clear. */
sluice_status slc_host_mappings_read(bool writable, slc_host_mappings *mappings, sluice_error *error);
void slc_host_mappings_clear(slc_host_mappings *mappings);

/* Whether [low, high) lies in them whole; an empty range does. */
bool slc_host_mapped(const slc_host_mappings *mappings, uint64_t low, uint64_t high);

#endif
