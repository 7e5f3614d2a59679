/*
 * map.h: memory that two processes share: the regions of a trainer as its workers map them, and the table in which a
 * trainer says where its shards lie. Descriptors are mapped only when their size is sealed, so that no peer can take the
 * pages away under a reader.
 */
#ifndef SLC_TRANSPORT_HOST_MAP_H
#define SLC_TRANSPORT_HOST_MAP_H

#include "transport/transport.h"

/* One region: where it lies in the trainer, and here. */
typedef struct slc_host_region {
    uint64_t address;
    uint64_t bytes;
    void *data; /* NULL on the trainer's own list */
} slc_host_region;

typedef struct slc_host_regions {
    slc_host_region *item; /* ascending by address, none overlapping */
    size_t count;
} slc_host_regions;

/* Sorts, and refuses regions that overlap or wrap around: INVALID, naming `rank`. */
sluice_status slc_host_regions_sort(slc_host_regions *regions, int32_t rank, sluice_error *error);
void slc_host_regions_clear(slc_host_regions *regions); /* unmaps */

/* The one region that holds [address, address + bytes) whole; NULL where there is none. */
const slc_host_region *slc_host_region_of(const slc_host_regions *regions, uint64_t address, uint64_t bytes);

/* The addresses of a trainer's shards by plan index, 0 where it has none. */
typedef struct slc_host_table {
    uint64_t *address;
    size_t count;
    size_t mapped; /* bytes of the mapping */
    int fd;        /* trainer, until connect is over; else -1 */
} slc_host_table;

/* In shared memory, all 0. */
sluice_status slc_host_table_create(size_t count, slc_host_table *table, sluice_error *error);
void slc_host_table_clear(slc_host_table *table); /* a zeroed one is allowed */

/* A memfd of `bytes` (whole pages), close-on-exec, its size sealed. */
sluice_status slc_host_memfd(const char *name, size_t bytes, int *fd, sluice_error *error);

/* Maps `bytes` of a descriptor that a peer sent. INVALID when it is smaller, or its size is not sealed. Does not close it. */
sluice_status slc_host_map(int fd, size_t bytes, bool writable, int32_t rank, const char *what, void **data, sluice_error *error);

size_t slc_host_pages(size_t bytes); /* rounded up to whole pages, at least one; 0 when that does not fit */

#endif
