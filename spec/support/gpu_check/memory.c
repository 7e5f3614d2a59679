/* memory.c: see check.h. Owns nothing that must outlive the process. */
#include "base/symbol.h"
#include "check.h"

#include <dlfcn.h>
#include <stdlib.h>

enum { BUSY_BYTES = 32 << 20, BUSY_COPIES = 60 };

struct gpu {
    slc_cuda cuda;
    int ordinal;
    CUstream own, hosts;
    CUdeviceptr word, busy, room;
    size_t used, all; /* of `room` */
    PFN_cuMemCreate_v10020 create;
    int (*nccl_allocate)(void **data, size_t bytes);
};

static void must(const gpu *g, CUresult result, const char *what)
{
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_cuda_check(&g->cuda, result, "gpu_check", what, &error) != SLUICE_OK)
        die("%s", error.text);
}

static CUmemAllocationProp exportable(const gpu *g)
{
    return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->ordinal } };
}

/* A range of addresses over pieces of physical memory, one or many; each begins where the last one ends. */
static CUdeviceptr map(gpu *g, size_t bytes, bool in_pieces, size_t *rounded)
{
    const CUmemAllocationProp how = exportable(g);
    const CUmemAccessDesc access = { .location = how.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    size_t grain = 0;
    CUdeviceptr range = 0;
    must(g, g->cuda.MemGetAllocationGranularity(&grain, &how, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "cuMemGetAllocationGranularity");
    *rounded = (bytes + grain - 1) / grain * grain;
    must(g, g->cuda.MemAddressReserve(&range, *rounded, 0, 0, 0), "cuMemAddressReserve");
    for (size_t at = 0, size = in_pieces ? grain : *rounded; at < *rounded; at += size) {
        CUmemGenericAllocationHandle piece;
        must(g, g->create(&piece, size, &how, 0), "cuMemCreate");
        must(g, g->cuda.MemMap(range + at, size, 0, piece, 0), "cuMemMap");
        must(g, g->cuda.MemRelease(piece), "cuMemRelease");
    }
    must(g, g->cuda.MemSetAccess(range, *rounded, &access, 1), "cuMemSetAccess");
    return range;
}

gpu *gpu_open(int ordinal, memory_kind kind, const char *nccl, size_t bytes)
{
    sluice_error error = SLUICE_ERROR_INIT;
    gpu *g = calloc(1, sizeof *g);
    CUdevice device;
    CUcontext context;
    int count = 0;
    if (g == NULL || slc_cuda_open(&g->cuda, &error) != SLUICE_OK)
        leave(3, "%s", g == NULL ? "no memory" : error.text);
    if (g->cuda.DeviceGetCount(&count) != CUDA_SUCCESS || ordinal >= count)
        leave(3, "GPU %d is wanted and this machine has %d", ordinal, count);
    g->ordinal = ordinal;
    must(g, g->cuda.DeviceGet(&device, ordinal), "cuDeviceGet");
    must(g, g->cuda.DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(g, g->cuda.CtxPushCurrent(context), "cuCtxPushCurrent");
    must(g, g->cuda.StreamCreate(&g->own, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(g, g->cuda.StreamCreate(&g->hosts, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    if ((kind == MEMORY_VMM || kind == MEMORY_PIECES) && !slc_cuda_find(&g->cuda, "cuMemCreate", 10020, &g->create))
        leave(3, "this driver has no cuMemCreate");
    if (kind == MEMORY_NCCL)
        slc_symbol(dlopen(nccl, RTLD_NOW | RTLD_LOCAL), "ncclMemAlloc", &g->nccl_allocate);
    if (kind == MEMORY_NCCL && g->nccl_allocate == NULL)
        leave(3, "no ncclMemAlloc was found (--nccl names NCCL)");
    if (kind == MEMORY_PIECES)
        g->room = map(g, bytes, true, &g->all);
    g->busy = gpu_take(g, (size_t)2 * BUSY_BYTES, MEMORY_ALLOC);
    g->word = gpu_take(g, sizeof(uint64_t), MEMORY_ALLOC);
    const uint64_t zero = 0;
    gpu_write(g, g->word, &zero, sizeof zero);
    return g;
}

CUdeviceptr gpu_take(gpu *g, size_t bytes, memory_kind kind)
{
    enum { LEAST = 2 << 20, ALIGN = 512 };
    CUdeviceptr made = 0;
    void *data = NULL;
    if (kind == MEMORY_ALLOC) {
        must(g, g->cuda.MemAlloc(&made, bytes < LEAST ? LEAST : bytes), "cuMemAlloc");
    } else if (kind == MEMORY_VMM) {
        made = map(g, bytes, false, &bytes);
    } else if (kind == MEMORY_NCCL) {
        if (g->nccl_allocate(&data, bytes) != 0)
            die("ncclMemAlloc failed");
        made = (CUdeviceptr)(uintptr_t)data;
    } else {
        made = g->room + g->used;
        g->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
        if (g->used > g->all)
            die("%zu bytes are too few for all tensors", g->all);
    }
    return made;
}

static void copy(gpu *g, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    must(g, g->cuda.MemcpyAsync(to, from, bytes, g->own), "cuMemcpyAsync");
    must(g, g->cuda.StreamSynchronize(g->own), "copying");
}

void gpu_write(gpu *g, CUdeviceptr to, const void *from, size_t bytes)
{
    copy(g, to, (CUdeviceptr)(uintptr_t)from, bytes);
}

void gpu_read(gpu *g, void *to, CUdeviceptr from, size_t bytes)
{
    copy(g, (CUdeviceptr)(uintptr_t)to, from, bytes);
}

void *gpu_stream(gpu *g)
{
    return g->hosts;
}

void gpu_queue(gpu *g, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    must(g, g->cuda.MemcpyAsync(to, from, bytes, g->hosts), "cuMemcpyAsync");
}

void gpu_delay(gpu *g)
{
    for (int i = 0; i < BUSY_COPIES; i++)
        gpu_queue(g, g->busy + BUSY_BYTES, g->busy, BUSY_BYTES);
}

void gpu_stick(gpu *g)
{
    must(g, g->cuda.StreamWaitValue64(g->hosts, g->word, 1, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64");
}

bool gpu_is_late(gpu *g)
{
    return g->cuda.StreamQuery(g->hosts) == CUDA_ERROR_NOT_READY;
}

void gpu_settle(gpu *g)
{
    must(g, g->cuda.StreamSynchronize(g->hosts), "the host's stream");
}

void gpu_capture(gpu *g)
{
    must(g, g->cuda.StreamBeginCapture(g->hosts, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
}

CUgraphExec gpu_captured(gpu *g)
{
    CUgraph graph;
    CUgraphExec ready;
    must(g, g->cuda.StreamEndCapture(g->hosts, &graph), "cuStreamEndCapture");
    must(g, g->cuda.GraphInstantiateWithFlags(&ready, graph, 0), "cuGraphInstantiate");
    must(g, g->cuda.GraphDestroy(graph), "cuGraphDestroy");
    return ready;
}

void gpu_launch(gpu *g, CUgraphExec graph)
{
    must(g, g->cuda.GraphLaunch(graph, g->hosts), "cuGraphLaunch");
}
