/*
 * kernels.h: strided copies by a kernel instead of by copy engines: for rows that are too short for those, to turn and to convert on
 * the way, and to pack and unpack what a communicator moves as one piece. The kernels are compiled into the plugin as an image for several kinds of
 * GPU, which the driver loads; CUDA's runtime library is not needed. What they do is in kernels_body.h and kernels_tiles.h.
 *
 * A table is filled once (slc_moves_add), put on the device (slc_moves_place), and any run of its moves launched as often as
 * one likes: a launch allocates nothing, waits for nothing and can be captured in a graph. Moves of one launch run beside each
 * other, so none may read what another one writes.
 */
#ifndef SLC_TRANSPORT_NCCL_KERNELS_H
#define SLC_TRANSPORT_NCCL_KERNELS_H

#include "plan/program.h"
#include "transport/nccl/device.h"
#include "transport/nccl/kernels_tiles.h"

typedef struct slc_kernels {
    const slc_device *device; /* borrowed; NULL when not loaded */
    CUmodule module;
    CUfunction move, tiles;
    uint32_t processors; /* SMs of the device */
} slc_kernels;

/* Loads the image. The device must be entered, here and below. UNSUPPORTED where the GPU is older than any in the image. */
sluice_status slc_kernels_load(const slc_device *device, slc_kernels *kernels, sluice_error *error);
void slc_kernels_unload(slc_kernels *kernels); /* a zeroed one is allowed */

/* Strided copies; initialise with {0}. `move` may be read. */
typedef struct slc_moves {
    slc_move *move;
    size_t count, capacity;
    uint64_t tiles[SLC_MOVE_WAYS];
    CUdeviceptr table; /* on the device; 0 before slc_moves_place */
    size_t room;       /* moves that fit there */
} slc_moves;

/*
 * Appends a copy as `copy` has it (of which source, destination and peer are not looked at) between these addresses, with its
 * conversion. They are as this device sees them: memory of a peer, mapped, is as good as its own. Strides may be 0 on the
 * source's side only.
 */
sluice_status slc_moves_add(slc_moves *moves, uint64_t from, uint64_t to, const slc_copy *copy, sluice_error *error);
/* Other addresses for a move that was added; its place among the tiles may change, so that slc_moves_place must follow. */
void slc_moves_aim(slc_moves *moves, size_t index, uint64_t from, uint64_t to);

/*
 * Puts the table on the device and returns when it is there. Memory is allocated where moves were added since the last time;
 * no launch may be under way then, nor a capture.
 */
sluice_status slc_moves_place(slc_moves *moves, const slc_kernels *kernels, CUstream stream, sluice_error *error);
void slc_moves_clear(slc_moves *moves, const slc_kernels *kernels); /* a zeroed one is allowed */

/* Launches moves [first, first + count) of a table that was placed since it changed, at most `blocks` SMs' worth; 0: the most
   that pays. count 0 launches nothing. The driver's result is the caller's to tell. */
CUresult slc_moves_launch(const slc_moves *moves, const slc_kernels *kernels, size_t first, size_t count, uint32_t blocks,
                          CUstream stream);

#endif
