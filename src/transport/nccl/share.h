/*
 * share.h: device memory of one process made usable in another on the same machine: its owner lists the pieces in which its
 * tensors lie, a peer maps each piece once and finds any address of the owner in what it mapped. Pieces are allocations of
 * cuMemAlloc (CUDA IPC handles) or physical pieces of VMM memory, as ncclMemAlloc and PyTorch's expandable segments make
 * them (POSIX descriptors); between ranks of one process they are plain addresses.
 */
#ifndef SLC_TRANSPORT_NCCL_SHARE_H
#define SLC_TRANSPORT_NCCL_SHARE_H

#include "base/memory.h"
#include "transport/nccl/device.h"

enum { SLC_PIECE_IPC = 1, SLC_PIECE_DESCRIPTOR = 2 };

/* As it travels between processes of one machine. */
typedef struct slc_piece {
    uint64_t base, size; /* in the owner */
    uint64_t run;        /* DESCRIPTOR: bytes from here to the end of the pieces that touch: mapped side by side, too */
    uint32_t kind;
    int32_t ordinal;     /* the owner's number of the GPU, for ranks of one process */
    CUipcMemHandle handle;
} slc_piece;

typedef struct slc_pieces {
    slc_piece *item; /* ascending by base after slc_pieces_settle */
    size_t count, capacity;
} slc_pieces;

/*
 * Adds the pieces that hold [data, data + bytes), which `what` names in errors. INVALID where that is not memory of the
 * device, UNSUPPORTED where no other process may map it. The device must be entered.
 */
sluice_status slc_pieces_add(const slc_device *device, slc_pieces *pieces, const void *data, size_t bytes, const char *what,
                             sluice_error *error);
/* Sorts, drops what was added twice, fills in `run`. To be called once, after the last add. */
void slc_pieces_settle(slc_pieces *pieces);
void slc_pieces_clear(slc_pieces *pieces);

/* A descriptor of a piece of kind DESCRIPTOR, the caller's to close. */
sluice_status slc_piece_export(const slc_device *device, const slc_piece *piece, int *fd, sluice_error *error);

/* What one peer shares, as mapped here. */
typedef struct slc_mapped {
    uint64_t base, size;  /* in the owner */
    CUdeviceptr here;
    uint32_t kind;        /* 0: nothing to undo */
    CUdeviceptr reserved; /* DESCRIPTOR: start of an address range that this one reserved, else 0 */
    size_t reserved_bytes;
} slc_mapped;

typedef struct slc_peer_memory {
    const slc_device *device;
    slc_mapped *item; /* ascending by base, none overlapping */
    size_t count, capacity;
} slc_peer_memory;

/*
 * Maps the next piece of a peer; pieces come in ascending order. `fd` is that of a DESCRIPTOR, not closed here. INVALID
 * where pieces are out of order or overlap; SYSTEM with the driver's words where this GPU cannot reach that memory.
 */
sluice_status slc_peer_memory_map(slc_peer_memory *memory, const slc_piece *piece, int fd, bool same_process, int32_t rank,
                                  sluice_error *error);
/* Where [address, address + bytes) of the owner lies here; 0 where it does not lie in memory that was mapped side by side. */
CUdeviceptr slc_peer_memory_find(const slc_peer_memory *memory, uint64_t address, uint64_t bytes);
void slc_peer_memory_clear(slc_peer_memory *memory); /* unmaps; a zeroed one is allowed */

#endif
