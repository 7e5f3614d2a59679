/*
 * cuda_on_cpu.c: the part of CUDA's driver that the nccl transport uses, done by processors and ordinary memory, so that the
 * transport runs where there is no GPU: two devices, contexts, streams that really run beside their host (a thread each),
 * words that streams wait for, memory of one process mapped in another. It is strict where the real driver is: calls without
 * a current context fail, a handle opens once a process and never in its own, copies must lie inside allocations.
 *
 *     cuda_on_cpu.c      devices, contexts, and the door
 *     memory_on_cpu.c    allocations, and handles of them for other processes
 *     pieces_on_cpu.c    memory that is mapped piece by piece
 *     streams_on_cpu.c   streams, events, captures and graphs
 *     copies_on_cpu.c    what streams do: copies, fills, kernels
 *     kernels_on_cpu.c   the kernels themselves
 *
 * Built as libcuda.so.1 for specs; never installed. Addresses are those of shared memory (memfd), mapped by whoever opens
 * a handle.
 */
#include "cuda_on_cpu.h"

#include <cudaTypedefs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVER = 13000, MOST_CONTEXTS = 16 };

/* ---- contexts ---- */

static struct CUctx_st primary[DEVICES] = { { 0 }, { 1 } };
static _Thread_local CUcontext current[MOST_CONTEXTS];
static _Thread_local int entered;

CUcontext cpu_here(void)
{
    return entered > 0 ? current[entered - 1] : NULL;
}

CUcontext cpu_context(int ordinal)
{
    return &primary[ordinal];
}

static CUresult init(unsigned int flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult driver_version(int *version)
{
    *version = DRIVER;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_count(int *count)
{
    *count = DEVICES;
    return CUDA_SUCCESS;
}

static CUresult device_name(char *name, int length, CUdevice device)
{
    snprintf(name, (size_t)length, "processor as GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = 4;
    return attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && device < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult context_retain(CUcontext *context, CUdevice device)
{
    *context = &primary[device];
    return CUDA_SUCCESS;
}

static CUresult context_release(CUdevice device)
{
    return device >= 0 && device < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult context_push(CUcontext context)
{
    if (entered == MOST_CONTEXTS)
        return CUDA_ERROR_INVALID_CONTEXT;
    current[entered++] = context;
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context)
{
    if (entered == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = current[--entered];
    return CUDA_SUCCESS;
}

static CUresult context_device(CUdevice *device)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = cpu_here()->ordinal;
    return CUDA_SUCCESS;
}

static CUresult context_peer(CUcontext context, unsigned int flags)
{
    (void)flags;
    return cpu_here() == NULL || context == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                                : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

static CUresult error_string(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY              ? "out of memory"
            : error == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ? "peer access is not supported between these two devices"
            : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                                : "an error";
    return CUDA_SUCCESS;
}

/* ---- the door ---- */

static const struct cpu_named *cpu_context_functions(size_t *count)
{
    static const struct cpu_named known[] = {
        { "cuInit", (cpu_function)init },
        { "cuDriverGetVersion", (cpu_function)driver_version },
        { "cuDeviceGet", (cpu_function)device_get },
        { "cuDeviceGetCount", (cpu_function)device_count },
        { "cuDeviceGetName", (cpu_function)device_name },
        { "cuDeviceGetUuid", (cpu_function)device_uuid },
        { "cuDeviceGetAttribute", (cpu_function)device_attribute },
        { "cuDevicePrimaryCtxRetain", (cpu_function)context_retain },
        { "cuDevicePrimaryCtxRelease", (cpu_function)context_release },
        { "cuCtxPushCurrent", (cpu_function)context_push },
        { "cuCtxPopCurrent", (cpu_function)context_pop },
        { "cuCtxGetDevice", (cpu_function)context_device },
        { "cuCtxEnablePeerAccess", (cpu_function)context_peer },
        { "cuGetErrorName", (cpu_function)error_name },
        { "cuGetErrorString", (cpu_function)error_string },
    };
    *count = sizeof known / sizeof known[0];
    return known;
}

__attribute__((visibility("default"))) CUresult cuDriverGetVersion(int *version)
{
    return driver_version(version);
}

#undef cuGetProcAddress
__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found)
{
    static const struct cpu_named *(*const parts[])(size_t *count) = { cpu_context_functions, cpu_memory_functions, cpu_piece_functions,
                                                                       cpu_stream_functions, cpu_copy_functions };
    const char *old = getenv("SLUICE_CUDA_ON_CPU_VERSION"); /* a driver that is older than some functions */
    (void)flags;
    *function = NULL;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && (old == NULL || version <= atoi(old)); i++) {
        size_t count = 0;
        const struct cpu_named *known = parts[i](&count);
        for (size_t k = 0; k < count; k++)
            if (strcmp(known[k].name, symbol) == 0)
                memcpy(function, &known[k].function, sizeof *function);
    }
    *found = *function == NULL ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
    return *function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
