/* gpu.c: see gpu.h. Owns a hold on the driver, a context and a stream. */
#include "transport/nccl/gpu.h"

#include "base/memory.h"
#include "transport/nccl/device.h"

static const char STAGE[] = "gpu";

struct slc_gpu {
    slc_cuda cuda;
    slc_device device;
    CUstream stream;
};

static sluice_status count_gpus(int *count, sluice_error *error)
{
    slc_cuda cuda;
    *count = 0;
    sluice_status status = slc_cuda_open(&cuda, error);
    if (status == SLUICE_OK) {
        status = slc_cuda_check(&cuda, cuda.DeviceGetCount(count), STAGE, "counting GPUs", error);
        slc_cuda_close(&cuda);
    }
    return status;
}

static void close_gpu(slc_gpu *gpu)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (gpu == NULL)
        return;
    if (gpu->stream != NULL && slc_device_enter(&gpu->device, STAGE, &ignored) == SLUICE_OK) {
        (void)gpu->cuda.StreamDestroy(gpu->stream);
        slc_device_leave(&gpu->device);
    }
    slc_device_close(&gpu->device);
    slc_cuda_close(&gpu->cuda);
    slc_release(gpu);
}

static sluice_status open_gpu(int ordinal, slc_gpu **out, sluice_error *error)
{
    *out = NULL;
    slc_gpu *gpu = slc_allocate_zeroed(1, sizeof *gpu);
    if (gpu == NULL)
        return slc_fail_memory(error, STAGE, "a GPU", sizeof *gpu);
    sluice_status status = slc_cuda_open(&gpu->cuda, error);
    if (status == SLUICE_OK)
        status = slc_device_open(&gpu->cuda, ordinal, &gpu->device, error);
    if (status == SLUICE_OK)
        status = slc_device_enter(&gpu->device, STAGE, error);
    if (status == SLUICE_OK) {
        status = slc_cuda_check(&gpu->cuda, gpu->cuda.StreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING), STAGE,
                                "creating a stream", error);
        slc_device_leave(&gpu->device);
    }
    if (status == SLUICE_OK)
        *out = gpu;
    else
        close_gpu(gpu);
    return status;
}

static sluice_status allocate(slc_gpu *gpu, size_t bytes, void **memory, sluice_error *error)
{
    CUdeviceptr made = 0;
    sluice_status status = slc_device_allocate(&gpu->device, bytes, "tensors", &made, error);
    *memory = (void *)(uintptr_t)made;
    return status;
}

static void release(slc_gpu *gpu, void *memory)
{
    slc_device_release(&gpu->device, (CUdeviceptr)(uintptr_t)memory);
}

static sluice_status copy(slc_gpu *gpu, const void *to, const void *from, size_t bytes, sluice_error *error)
{
    sluice_status status = slc_device_enter(&gpu->device, STAGE, error);
    if (status != SLUICE_OK)
        return status;
    CUresult result = gpu->cuda.MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, gpu->stream);
    if (result == CUDA_SUCCESS)
        result = gpu->cuda.StreamSynchronize(gpu->stream);
    slc_device_leave(&gpu->device);
    return slc_cuda_check(&gpu->cuda, result, STAGE, "copying to or from a GPU", error);
}

static sluice_status write_gpu(slc_gpu *gpu, void *to, const void *from, size_t bytes, sluice_error *error)
{
    return copy(gpu, to, from, bytes, error);
}

static sluice_status read_gpu(slc_gpu *gpu, void *to, const void *from, size_t bytes, sluice_error *error)
{
    return copy(gpu, to, from, bytes, error);
}

const slc_gpu_ops slc_gpu_table = {
    .count = count_gpus,
    .open = open_gpu,
    .close = close_gpu,
    .allocate = allocate,
    .release = release,
    .write = write_gpu,
    .read = read_gpu,
};
