/* device.c: see device.h. Owns the hold on the primary context. */
#include "transport/nccl/device.h"

static const char STAGE[] = "runtime";

sluice_status slc_device_open(const slc_cuda *cuda, int ordinal, slc_device *device, sluice_error *error)
{
    *device = (slc_device){ .cuda = cuda, .ordinal = ordinal };
    int count = 0;
    sluice_status status = slc_cuda_check(cuda, cuda->DeviceGetCount(&count), STAGE, "counting GPUs", error);
    if (status != SLUICE_OK)
        return status;
    if (ordinal < 0 || ordinal >= count)
        return slc_fail(error, SLUICE_INVALID, STAGE, "device (%d) must be below the number of GPUs that this process sees (%d)",
                        ordinal, count);
    status = slc_cuda_check(cuda, cuda->DeviceGet(&device->device, ordinal), STAGE, "cuDeviceGet", error);
    if (status == SLUICE_OK)
        status = slc_cuda_check(cuda, cuda->DevicePrimaryCtxRetain(&device->context, device->device), STAGE,
                                "the context of the GPU", error);
    if (status != SLUICE_OK)
        device->context = NULL;
    return status;
}

void slc_device_close(slc_device *device)
{
    if (device->context != NULL)
        (void)device->cuda->DevicePrimaryCtxRelease(device->device);
    device->context = NULL;
}

sluice_status slc_device_enter(const slc_device *device, const char *stage, sluice_error *error)
{
    return slc_cuda_check(device->cuda, device->cuda->CtxPushCurrent(device->context), stage, "entering the GPU's context",
                          error);
}

void slc_device_leave(const slc_device *device)
{
    CUcontext left;
    (void)device->cuda->CtxPopCurrent(&left);
}

slc_current slc_device_current(const slc_device *device)
{
    return (slc_current){ .push = device->cuda->CtxPushCurrent, .pop = device->cuda->CtxPopCurrent, .context = device->context };
}

CUresult slc_current_enter(const slc_current *current)
{
    return current->push(current->context);
}

void slc_current_leave(const slc_current *current)
{
    CUcontext left;
    (void)current->pop(&left);
}

sluice_status slc_place_of(const slc_cuda *cuda, const void *data, const char *stage, slc_place *place, sluice_error *error)
{
    /* Some are documented as booleans and enumerations without a width: each gets eight bytes. */
    enum { TYPE, ORDINAL, IPC, HANDLES, MAPPING, MAPPED, FACTS };
    uint64_t fact[FACTS] = { 0 };
    void *value[FACTS];
    CUpointer_attribute attribute[FACTS] = {
        [TYPE] = CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        [ORDINAL] = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        [IPC] = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
        [HANDLES] = CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
        [MAPPING] = CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
        [MAPPED] = CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    };
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)data;
    for (size_t i = 0; i < FACTS; i++)
        value[i] = &fact[i];
    *place = (slc_place){ 0 };
    sluice_status status = slc_cuda_check(cuda, cuda->PointerGetAttributes(FACTS, attribute, value, at), stage,
                                          "asking what a pointer points to", error);
    if (status != SLUICE_OK || (uint32_t)fact[TYPE] != CU_MEMORYTYPE_DEVICE)
        return status;
    place->on_device = true;
    place->ordinal = (int)(uint32_t)fact[ORDINAL];
    place->ipc = (fact[IPC] & 0xff) != 0;
    place->exportable = !place->ipc && (fact[HANDLES] & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    place->base = fact[MAPPING]; /* a range may be mapped piece by piece, and each piece is shared on its own */
    place->size = fact[MAPPED];
    return SLUICE_OK;
}

uint64_t slc_memory_id(const slc_cuda *cuda, const void *data)
{
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    uint64_t id = 0;
    void *value = &id;
    return cuda->PointerGetAttributes(1, &attribute, &value, (CUdeviceptr)(uintptr_t)data) == CUDA_SUCCESS ? id : 0;
}

sluice_status slc_device_allocate(const slc_device *device, size_t bytes, const char *what, CUdeviceptr *memory,
                                  sluice_error *error)
{
    enum { WHOLE = 2 << 20 }; /* smaller ones share a block with others, and a handle shares the block */
    const slc_cuda *cuda = device->cuda;
    size_t rounded = bytes < WHOLE ? WHOLE : bytes, left = 0, all = 0;
    *memory = 0;
    sluice_status status = slc_device_enter(device, STAGE, error);
    if (status != SLUICE_OK)
        return status;
    CUresult result = cuda->MemAlloc(memory, rounded);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && cuda->MemGetInfo(&left, &all) == CUDA_SUCCESS)
        status = slc_fail(error, SLUICE_NO_MEMORY, STAGE, "no memory on GPU %d for %s: %zu bytes wanted, %zu of %zu free",
                          device->ordinal, what, rounded, left, all);
    else
        status = slc_cuda_check(cuda, result, STAGE, what, error);
    slc_device_leave(device);
    return status;
}

void slc_device_release(const slc_device *device, CUdeviceptr memory)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (memory == 0 || slc_device_enter(device, STAGE, &ignored) != SLUICE_OK)
        return;
    (void)device->cuda->MemFree(memory);
    slc_device_leave(device);
}
