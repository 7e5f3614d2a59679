/* copies_on_cpu.c: of the driver on processors, what streams do: copies and fills of boxes, alone and in batches, and kernels. */
#include "streams_on_cpu.h"

#include <cudaTypedefs.h>
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync

#include <stdlib.h>
#include <string.h>

/* Bytes from the first to behind the last of a box. */
static size_t reach(size_t width, size_t height, size_t depth, size_t pitch, size_t layer)
{
    return width + (height - 1) * pitch + (depth - 1) * layer;
}

/* Of two addresses at least one is on a device; the other may be the host's. */
static CUresult copy_box(CUstream stream, struct work *work)
{
    if (work->width == 0 || work->height == 0 || work->depth == 0 || work->to_pitch < work->width ||
        work->from_pitch < work->width)
        return CUDA_ERROR_INVALID_VALUE;
    bool to = cpu_is_device((CUdeviceptr)(uintptr_t)work->to,
                        reach(work->width, work->height, work->depth, work->to_pitch, work->to_layer));
    bool from = cpu_is_device((CUdeviceptr)(uintptr_t)work->from,
                          reach(work->width, work->height, work->depth, work->from_pitch, work->from_layer));
    work->what = COPY;
    return to || from ? cpu_enqueue(stream, work) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    struct work work = { .to = (unsigned char *)(uintptr_t)to,
                         .from = (const unsigned char *)(uintptr_t)from,
                         .width = bytes,
                         .height = 1,
                         .depth = 1,
                         .to_pitch = bytes,
                         .from_pitch = bytes };
    return copy_box(stream, &work);
}

static CUresult copy_plane(const CUDA_MEMCPY2D *plane, CUstream stream)
{
    struct work work = { .to = (unsigned char *)(uintptr_t)plane->dstDevice,
                         .from = (const unsigned char *)(uintptr_t)plane->srcDevice,
                         .width = plane->WidthInBytes,
                         .height = plane->Height,
                         .depth = 1,
                         .to_pitch = plane->dstPitch,
                         .from_pitch = plane->srcPitch };
    return copy_box(stream, &work);
}

static CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                           size_t *first, size_t nattributes, size_t *failed, CUstream stream)
{
    if (cpu_is_captured(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (count == 0 || nattributes != 1 || first[0] != 0 || attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult result = cpu_is_device(to[i], bytes[i]) && cpu_is_device(from[i], bytes[i]) ? copy(to[i], from[i], bytes[i], stream)
                                                                                     : CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS) {
            *failed = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult copy_boxes(size_t count, CUDA_MEMCPY3D_BATCH_OP *box, size_t *failed, unsigned long long flags, CUstream stream)
{
    if (cpu_is_captured(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (size_t i = 0; i < count; i++) {
        size_t to_pitch = box[i].dst.op.ptr.rowLength, from_pitch = box[i].src.op.ptr.rowLength;
        struct work work = { .to = (unsigned char *)(uintptr_t)box[i].dst.op.ptr.ptr,
                             .from = (const unsigned char *)(uintptr_t)box[i].src.op.ptr.ptr,
                             .width = box[i].extent.width,
                             .height = box[i].extent.height,
                             .depth = box[i].extent.depth,
                             .to_pitch = to_pitch,
                             .from_pitch = from_pitch,
                             .to_layer = to_pitch * box[i].dst.op.ptr.layerHeight,
                             .from_layer = from_pitch * box[i].src.op.ptr.layerHeight };
        bool layered = box[i].dst.op.ptr.layerHeight >= work.height && box[i].src.op.ptr.layerHeight >= work.height;
        CUresult result = flags == 0 && layered ? copy_box(stream, &work) : CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS) {
            *failed = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream)
{
    const struct work work = {
        .what = FILL, .to = (unsigned char *)(uintptr_t)to, .width = bytes, .height = 1, .depth = 1, .byte = byte
    };
    return cpu_is_device(to, bytes) ? cpu_enqueue(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill_plane(CUdeviceptr to, size_t pitch, unsigned char byte, size_t width, size_t height, CUstream stream)
{
    const struct work work = { .what = FILL,
                               .to = (unsigned char *)(uintptr_t)to,
                               .width = width,
                               .height = height,
                               .depth = 1,
                               .to_pitch = pitch,
                               .byte = byte };
    return cpu_is_device(to, reach(width, height, 1, pitch, 0)) ? cpu_enqueue(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels ---- */

struct CUmod_st {
    int ordinal;
};

/* An image is looked at no further than a driver must to know it for one. */
static CUresult module_load(CUmodule *module, const void *image)
{
    const uint32_t fatbin = 0xBA55ED50;
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (memcmp(image, &fatbin, sizeof fatbin) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    struct CUmod_st *made = getenv("SLUICE_CUDA_ON_CPU_OLD") != NULL ? NULL : malloc(sizeof *made); /* a GPU without an image */
    if (made == NULL)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    made->ordinal = cpu_here()->ordinal;
    *module = made;
    return CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module)
{
    if (cpu_here() == NULL || cpu_here()->ordinal != module->ordinal)
        return CUDA_ERROR_INVALID_CONTEXT;
    free(module);
    return CUDA_SUCCESS;
}

static CUresult module_function(CUfunction *function, CUmodule module, const char *name)
{
    const kernel *found = kernel_find(name);
    *function = (CUfunction)(uintptr_t)found;
    return cpu_here() == NULL || cpu_here()->ordinal != module->ordinal ? CUDA_ERROR_INVALID_CONTEXT
           : found == NULL                                      ? CUDA_ERROR_NOT_FOUND
                                                                : CUDA_SUCCESS;
}

static bool holds(uint64_t address, size_t bytes)
{
    return cpu_is_device(address, bytes);
}

static CUresult launch(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int threads, unsigned int ty,
                       unsigned int tz, unsigned int shared, CUstream stream, void **parameters, void **extra)
{
    const kernel *known = (const void *)function;
    struct work work = { .what = KERNEL, .launched = known, .blocks = x, .threads = threads };
    if (x == 0 || threads == 0 || threads > known->threads || y != 1 || z != 1 || ty != 1 || tz != 1 || shared != 0 ||
        extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(work.parameters, parameters[0], known->parameters);
    return known->is_sound(work.parameters, holds) ? cpu_enqueue(stream, &work) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

const struct cpu_named *cpu_copy_functions(size_t *count)
{
    static const struct cpu_named known[] = {
        { "cuMemcpyAsync", (cpu_function)copy },
        { "cuMemcpy2DAsync", (cpu_function)copy_plane },
        { "cuMemsetD8Async", (cpu_function)fill },
        { "cuMemsetD2D8Async", (cpu_function)fill_plane },
        { "cuModuleLoadData", (cpu_function)module_load },
        { "cuModuleUnload", (cpu_function)module_unload },
        { "cuModuleGetFunction", (cpu_function)module_function },
        { "cuLaunchKernel", (cpu_function)launch },
        { "cuMemcpyBatchAsync", (cpu_function)copy_batch },
        { "cuMemcpy3DBatchAsync", (cpu_function)copy_boxes },
    };
    *count = sizeof known / sizeof known[0];
    return known;
}
