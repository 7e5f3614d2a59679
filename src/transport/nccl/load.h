/*
 * load.h: CUDA's driver as the process finds it. The plugin links no CUDA library: each function is looked up once by name
 * and version, so that one build runs with every driver from 12.0 on and a missing driver is an error that says so.
 */
#ifndef SLC_TRANSPORT_NCCL_LOAD_H
#define SLC_TRANSPORT_NCCL_LOAD_H

#include "base/error.h"

#include <cudaTypedefs.h>

/* X(name, version): cu<name>, as its type PFN_cu<name>_v<version> says. */
#define SLC_CUDA_LIST(X)                                                                                               \
    X(Init, 2000)                                                                                                      \
    X(DriverGetVersion, 2020)                                                                                          \
    X(DeviceGet, 2000)                                                                                                 \
    X(DeviceGetCount, 2000)                                                                                            \
    X(DeviceGetName, 2000)                                                                                             \
    X(DeviceGetUuid, 11040)                                                                                            \
    X(DeviceGetAttribute, 2000)                                                                                        \
    X(DevicePrimaryCtxRetain, 7000)                                                                                    \
    X(DevicePrimaryCtxRelease, 11000)                                                                                  \
    X(CtxPushCurrent, 4000)                                                                                            \
    X(CtxPopCurrent, 4000)                                                                                             \
    X(CtxGetDevice, 2000)                                                                                              \
    X(CtxEnablePeerAccess, 4000)                                                                                       \
    X(GetErrorName, 6000)                                                                                              \
    X(GetErrorString, 6000)                                                                                            \
    X(MemAlloc, 3020)                                                                                                  \
    X(MemFree, 3020)                                                                                                   \
    X(MemGetInfo, 3020)                                                                                                \
    X(MemGetAddressRange, 3020)                                                                                        \
    X(PointerGetAttributes, 7000)                                                                                      \
    X(MemcpyAsync, 4000)                                                                                               \
    X(Memcpy2DAsync, 3020)                                                                                             \
    X(MemsetD8Async, 3020)                                                                                             \
    X(MemsetD2D8Async, 3020)                                                                                           \
    X(ModuleLoadData, 2000)                                                                                            \
    X(ModuleUnload, 2000)                                                                                              \
    X(ModuleGetFunction, 2000)                                                                                         \
    X(LaunchKernel, 4000)                                                                                              \
    X(StreamCreate, 2000)                                                                                              \
    X(StreamDestroy, 4000)                                                                                             \
    X(StreamQuery, 2000)                                                                                               \
    X(StreamSynchronize, 2000)                                                                                         \
    X(StreamWriteValue64, 11070)                                                                                       \
    X(StreamWaitValue64, 11070)                                                                                        \
    X(StreamWaitEvent, 3020)                                                                                           \
    X(StreamGetCtx, 9020)                                                                                              \
    X(StreamIsCapturing, 10000)                                                                                        \
    X(StreamBeginCapture, 10010)                                                                                       \
    X(StreamEndCapture, 10000)                                                                                         \
    X(ThreadExchangeStreamCaptureMode, 10010)                                                                          \
    X(EventCreate, 2000)                                                                                               \
    X(EventDestroy, 4000)                                                                                              \
    X(EventRecord, 2000)                                                                                               \
    X(EventQuery, 2000)                                                                                                \
    X(GraphInstantiateWithFlags, 11040)                                                                                \
    X(GraphLaunch, 10000)                                                                                              \
    X(GraphDestroy, 10000)                                                                                             \
    X(GraphExecDestroy, 10000)                                                                                         \
    X(IpcGetMemHandle, 4010)                                                                                           \
    X(IpcOpenMemHandle, 11000)                                                                                         \
    X(IpcCloseMemHandle, 4010)                                                                                         \
    X(MemRetainAllocationHandle, 11000)                                                                                \
    X(MemGetAllocationPropertiesFromHandle, 10020)                                                                     \
    X(MemExportToShareableHandle, 10020)                                                                               \
    X(MemImportFromShareableHandle, 10020)                                                                             \
    X(MemGetAllocationGranularity, 10020)                                                                              \
    X(MemAddressReserve, 10020)                                                                                        \
    X(MemAddressFree, 10020)                                                                                           \
    X(MemMap, 10020)                                                                                                   \
    X(MemUnmap, 10020)                                                                                                 \
    X(MemSetAccess, 10020)                                                                                             \
    X(MemRelease, 10020)

/* The same, of drivers from 12.8 on; NULL before, and the transport then issues one copy at a time. */
#define SLC_CUDA_NEWER_LIST(X)                                                                                         \
    X(MemcpyBatchAsync, 12080)                                                                                         \
    X(Memcpy3DBatchAsync, 12080)

typedef struct slc_cuda {
    void *library;
    PFN_cuGetProcAddress_v12000 look_up; /* the door that every driver has, whatever else it lacks */
    int driver; /* CUDA version that the driver knows: 13000 for 13.0 */
#define SLC_CUDA_MEMBER(name, version) PFN_cu##name##_v##version name;
    SLC_CUDA_LIST(SLC_CUDA_MEMBER)
    SLC_CUDA_NEWER_LIST(SLC_CUDA_MEMBER)
#undef SLC_CUDA_MEMBER
} slc_cuda;

/* Opens the driver and fills the table; INVALID, UNSUPPORTED or SYSTEM say what is missing and what to do about it. */
sluice_status slc_cuda_open(slc_cuda *cuda, sluice_error *error);
void slc_cuda_close(slc_cuda *cuda);

/* One function more, `version` as in the lists above; false, and `function` NULL, where the driver has it not. */
bool slc_cuda_find(const slc_cuda *cuda, const char *name, int version, void *function);

/* The error of a driver call: `what` was tried, and the driver's own name and words for `result`. OK for CUDA_SUCCESS. */
sluice_status slc_cuda_check(const slc_cuda *cuda, CUresult result, const char *stage, const char *what, sluice_error *error);

#endif
