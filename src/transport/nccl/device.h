/*
 * device.h: one GPU as the transport uses it, and what lies behind a pointer. A device is used through its primary context,
 * the one that CUDA's runtime and PyTorch use, so that their pointers are good here; it is current only between enter and
 * leave, and the host's own context is as it was afterwards.
 */
#ifndef SLC_TRANSPORT_NCCL_DEVICE_H
#define SLC_TRANSPORT_NCCL_DEVICE_H

#include "transport/nccl/load.h"

#include <stdbool.h>

typedef struct slc_device {
    const slc_cuda *cuda; /* borrowed */
    CUdevice device;
    CUcontext context; /* NULL when closed */
    int ordinal;
} slc_device;

/* Retains the primary context of device `ordinal`. INVALID where there is no such device. */
sluice_status slc_device_open(const slc_cuda *cuda, int ordinal, slc_device *device, sluice_error *error);
void slc_device_close(slc_device *device); /* a closed one is allowed */

/* Makes the device current for this thread, until leave. */
sluice_status slc_device_enter(const slc_device *device, const char *stage, sluice_error *error);
void slc_device_leave(const slc_device *device);

/* A device as any thread can enter it, whatever became of the slc_device since; for calls that are made apart. */
typedef struct slc_current {
    PFN_cuCtxPushCurrent_v4000 push;
    PFN_cuCtxPopCurrent_v4000 pop;
    CUcontext context;
} slc_current;

slc_current slc_device_current(const slc_device *device); /* of an open one */
CUresult slc_current_enter(const slc_current *current); /* only after CUDA_SUCCESS is there anything to leave */
void slc_current_leave(const slc_current *current);

/* What lies behind a pointer. */
typedef struct slc_place {
    bool on_device;
    int ordinal;
    bool ipc;         /* of cuMemAlloc: has a CUDA IPC handle */
    bool exportable;  /* of VMM: has a POSIX descriptor */
    CUdeviceptr base; /* of VMM: the piece of physical memory that is mapped there */
    size_t size;
} slc_place;

/* A number that no other allocation of this process has or will have; 0 where there is none. */
uint64_t slc_memory_id(const slc_cuda *cuda, const void *data);

/* SYSTEM where the driver cannot tell; memory that is not CUDA's is on_device false. */
sluice_status slc_place_of(const slc_cuda *cuda, const void *data, const char *stage, slc_place *place, sluice_error *error);

/* Device memory of this device, 2 MiB aligned, an allocation of its own so that it can be shared whole. */
sluice_status slc_device_allocate(const slc_device *device, size_t bytes, const char *what, CUdeviceptr *memory,
                                  sluice_error *error);
void slc_device_release(const slc_device *device, CUdeviceptr memory); /* 0 is allowed */

#endif
