/*
 * host.h: the `host` transport: processes of one machine, ordinary memory. Three roads to a peer, the first that works:
 *   map   the sender's memory is a region of sluice_memory_alloc: the receiver maps it and copies
 *   pull  the receiver reads the sender's memory with process_vm_readv, one copy, strided vectors
 *   ring  the sender copies into a shared ring, the receiver out of it; for kernels that forbid the pull
 * map is per shard: a shard outside any region goes by pull or ring.
 */
#ifndef SLC_TRANSPORT_HOST_H
#define SLC_TRANSPORT_HOST_H

#include "transport/transport.h"

extern const slc_transport_ops slc_host_transport;

/* The memory behind sluice_memory_alloc: a memfd of `bytes` (rounded up to pages), mapped, zeroed, close-on-exec. */
sluice_status slc_region_create(size_t bytes, slc_region *region, sluice_error *error);
void slc_region_destroy(slc_region *region);

#endif
