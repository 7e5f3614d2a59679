/* library_on_cpu.h: what nccl_on_cpu.c and m2n_on_cpu.c both want: the driver that their process has, and faults on demand. */
#ifndef SPEC_SUPPORT_LIBRARY_ON_CPU_H
#define SPEC_SUPPORT_LIBRARY_ON_CPU_H

#include <cuda.h>
#include <cudaTypedefs.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_once_t once;
    CUresult (*launch)(CUstream, CUhostFn, void *);
    CUresult (*attributes)(unsigned int, CUpointer_attribute *, void **, CUdeviceptr);
    CUresult (*device)(CUdevice *);
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*release)(CUdeviceptr);
    CUresult (*capturing)(CUstream, CUstreamCaptureStatus *);
} driver = { .once = PTHREAD_ONCE_INIT };

static void find_driver(void)
{
    static const struct {
        const char *name;
        int version;
        void *to;
    } wanted[] = { { "cuLaunchHostFunc", 10000, &driver.launch }, { "cuPointerGetAttributes", 7000, &driver.attributes },
                   { "cuCtxGetDevice", 2000, &driver.device },    { "cuMemAlloc", 3020, &driver.allocate },
                   { "cuMemFree", 3020, &driver.release },        { "cuStreamIsCapturing", 10000, &driver.capturing } };
    PFN_cuGetProcAddress_v12000 look_up = NULL;
    CUdriverProcAddressQueryResult found;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *function = NULL;
    void *symbol = library == NULL ? NULL : dlsym(library, "cuGetProcAddress_v2");
    memcpy(&look_up, &symbol, sizeof look_up);
    for (size_t i = 0; look_up != NULL && i < sizeof wanted / sizeof wanted[0]; i++) {
        (void)look_up(wanted[i].name, &function, wanted[i].version, 0, &found);
        memcpy(wanted[i].to, &function, sizeof function);
    }
}

/* Whether `data` lies in memory of that device. The driver must have been found. */
static bool is_on(const void *data, CUdevice device)
{
    uint32_t type = 0, ordinal = 0;
    CUpointer_attribute attribute[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
    void *value[] = { &type, &ordinal };
    return driver.attributes(2, attribute, value, (CUdeviceptr)(uintptr_t)data) == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE &&
           (int)ordinal == device;
}

/* Whether this is the call that a variable, CALL:N, names; `seen` counts such calls. */
static bool is_number(const char *variable, const char *call, int *seen)
{
    const char *text = getenv(variable), *colon = text == NULL ? NULL : strchr(text, ':');
    if (colon == NULL || strlen(call) != (size_t)(colon - text) || strncmp(text, call, (size_t)(colon - text)) != 0)
        return false;
    return __atomic_add_fetch(seen, 1, __ATOMIC_RELAXED) == atoi(colon + 1);
}

#endif
