/* gpu.c: see gpu.h. */
#include "gpu.h"

#include "base/clock.h"
#include "pattern.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 64 << 20, WRONG = 0, STOP = 1, ARRIVED = 2, WORDS = 3 };

void must(const gpu *g, CUresult result, const char *what)
{
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_cuda_check(&g->cuda, result, "gpu_bench", what, &error) != SLUICE_OK)
        die("%s", error.text);
}

/* ---- kernels ---- */

static void *slurp(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    enum { MOST = 16 << 20 };
    char *data = need(malloc(MOST));
    size_t got = fread(data, 1, MOST - 1, file);
    data[got] = '\0'; /* ends a PTX text; others know their size */
    fclose(file);
    return data;
}

static void load_kernels(gpu *g, const char *path)
{
    CUmodule module;
    int processors = 0;
    if (!slc_cuda_find(&g->cuda, "cuEventSynchronize", 2000, &g->EventSynchronize) ||
        !slc_cuda_find(&g->cuda, "cuEventElapsedTime", 2000, &g->EventElapsedTime)) { /* the specs' driver */
        snprintf(g->why_no_kernels, sizeof g->why_no_kernels, "this driver runs no kernels");
        return;
    }
    void *image = slurp(path);
    if (image == NULL) {
        snprintf(g->why_no_kernels, sizeof g->why_no_kernels, "%s was not built (nvcc makes it)", path);
        return;
    }
    must(g, g->cuda.ModuleLoadData(&module, image), path);
    free(image);
    CUresult found = g->cuda.ModuleGetFunction(&g->fill, module, "bench_fill");
    if (found == CUDA_ERROR_NOT_FOUND) {
        snprintf(g->why_no_kernels, sizeof g->why_no_kernels, "this driver runs no kernels of others");
        return;
    }
    must(g, found, "bench_fill");
    must(g, g->cuda.ModuleGetFunction(&g->check, module, "bench_check"), "bench_check");
    must(g, g->cuda.ModuleGetFunction(&g->spin, module, "bench_spin"), "bench_spin");
    must(g, g->cuda.DeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, g->ordinal), "counting multiprocessors");
    g->processors = processors;
}

/* ---- opening ---- */

bool gpu_open(gpu *g, int ordinal, const char *kernels, char *why, size_t size)
{
    sluice_error error = SLUICE_ERROR_INIT;
    CUdevice device;
    *g = (gpu){ .ordinal = ordinal };
    if (slc_cuda_open(&g->cuda, &error) != SLUICE_OK) {
        snprintf(why, size, "%s", error.text);
        return false;
    }
    if (g->cuda.DeviceGetCount(&g->count) != CUDA_SUCCESS || g->count == 0 || ordinal >= g->count) {
        snprintf(why, size, "GPU %d is wanted and this machine has %d", ordinal, g->count);
        return false;
    }
    must(g, g->cuda.DeviceGet(&device, ordinal), "opening a GPU");
    must(g, g->cuda.DeviceGetName(g->name, sizeof g->name, device), "naming a GPU");
    must(g, g->cuda.DevicePrimaryCtxRetain(&g->context, device), "a GPU's context");
    must(g, g->cuda.CtxPushCurrent(g->context), "a GPU's context");
    must(g, g->cuda.StreamCreate(&g->stream, CU_STREAM_NON_BLOCKING), "a stream");
    must(g, g->cuda.StreamCreate(&g->spinning, CU_STREAM_NON_BLOCKING), "a stream");
    g->words = gpu_allocate(g, WORDS * sizeof(uint64_t), "words");
    load_kernels(g, kernels);
    return true;
}

CUdeviceptr gpu_allocate(const gpu *g, size_t bytes, const char *what)
{
    enum { WHOLE = 2 << 20 };
    CUdeviceptr made = 0;
    size_t left = 0, all = 0;
    CUresult result = g->cuda.MemAlloc(&made, (bytes + WHOLE - 1) / WHOLE * WHOLE);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && g->cuda.MemGetInfo(&left, &all) == CUDA_SUCCESS)
        die("GPU %d has no room for %s: %zu bytes wanted, %zu of %zu free (--layers takes fewer)", g->ordinal, what, bytes, left,
            all);
    must(g, result, what);
    return made;
}

size_t gpu_free_bytes(const gpu *g)
{
    size_t left = 0, all = 0;
    must(g, g->cuda.MemGetInfo(&left, &all), "asking for free memory");
    return left;
}

/* ---- filling and checking ---- */

static void settle(const gpu *g, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        result = g->cuda.StreamSynchronize(g->stream);
    must(g, result, what);
}

static CUresult launch(const gpu *g, CUfunction function, size_t items, void **arguments)
{
    enum { THREADS = 256 };
    size_t blocks = (items + THREADS - 1) / THREADS, most = (size_t)g->processors * 16;
    return g->cuda.LaunchKernel(function, (unsigned)(blocks < most ? blocks : most), 1, 1, THREADS, 1, 1, 0, g->stream, arguments,
                           NULL);
}

static void copy(const gpu *g, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    settle(g, g->cuda.MemcpyAsync(to, from, bytes, g->stream), "copying to or from a GPU");
}

static CUdeviceptr host(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

void gpu_fill(const gpu *g, CUdeviceptr to, size_t bytes, uint64_t seed)
{
    uint64_t words = bytes / 8;
    if (g->processors > 0) {
        void *arguments[] = { &to, &words, &seed };
        settle(g, launch(g, g->fill, words, arguments), "filling sources");
        return;
    }
    uint64_t *chunk = need(malloc(CHUNK));
    for (uint64_t done = 0; done < words;) {
        uint64_t count = words - done < CHUNK / 8 ? words - done : CHUNK / 8;
        for (uint64_t i = 0; i < count; i++)
            chunk[i] = pattern(seed, done + i);
        copy(g, to + done * 8, host(chunk), count * 8);
        done += count;
    }
    free(chunk);
}

void gpu_poison(const gpu *g, CUdeviceptr to, size_t bytes)
{
    settle(g, g->cuda.MemsetD8Async(to, 0xAA, bytes, g->stream), "clearing what is to be written");
}

static uint64_t wrong_here(const gpu *g, CUdeviceptr base, const piece *p, uint64_t seed, uint64_t *chunk)
{
    uint64_t wrong = 0, width = p->width / 8, words = width * p->height;
    for (uint64_t done = 0; done < words;) {
        uint64_t count = words - done < CHUNK / 8 ? words - done : CHUNK / 8;
        copy(g, host(chunk), base + p->to + done * 8, count * 8);
        for (uint64_t i = 0; i < count; i++)
            wrong += chunk[i] != pattern(seed, p->from / 8 + (done + i) / width * (p->pitch / 8) + (done + i) % width);
        done += count;
    }
    return wrong;
}

uint64_t gpu_wrong(const gpu *g, CUdeviceptr base, const piece *list, size_t count, uint64_t seed)
{
    uint64_t wrong = 0;
    if (g->processors == 0) {
        uint64_t *chunk = need(malloc(CHUNK));
        for (size_t i = 0; i < count; i++)
            wrong += wrong_here(g, base, &list[i], seed, chunk);
        free(chunk);
        return wrong;
    }
    CUdeviceptr counter = g->words + WRONG * 8;
    settle(g, g->cuda.MemsetD8Async(counter, 0, 8, g->stream), "counting what is wrong");
    for (size_t i = 0; i < count; i++) {
        CUdeviceptr at = base + list[i].to;
        uint64_t width = list[i].width / 8, height = list[i].height, from = list[i].from / 8, pitch = list[i].pitch / 8;
        void *arguments[] = { &at, &width, &height, &from, &pitch, &seed, &counter };
        must(g, launch(g, g->check, width * height, arguments), "checking live tensors");
    }
    copy(g, host(&wrong), counter, 8);
    return wrong;
}

/* ---- holding ---- */

void gpu_hold(const gpu *g)
{
    const unsigned threads = 1024;
    unsigned blocks = (unsigned)g->processors * 2; /* 2,048 threads fill an SM */
    uint64_t most_ns = UINT64_C(20000000000), arrived = 0;
    CUdeviceptr stop = g->words + STOP * 8, counter = g->words + ARRIVED * 8;
    settle(g, g->cuda.MemsetD8Async(stop, 0, 16, g->stream), "preparing to hold a GPU");
    void *arguments[] = { &stop, &counter, &most_ns };
    must(g, g->cuda.LaunchKernel(g->spin, blocks, 1, 1, threads, 1, 1, 0, g->spinning, arguments, NULL), "holding a GPU");
    slc_deadline deadline = slc_deadline_in(10);
    while (arrived < blocks) {
        if (slc_deadline_passed(deadline))
            die("a kernel of %u blocks does not fill GPU %d: %u are there", blocks, g->ordinal, (unsigned)arrived);
        copy(g, host(&arrived), counter, 8);
    }
}

void gpu_let_go(const gpu *g)
{
    settle(g, g->cuda.StreamWriteValue64(g->stream, g->words + STOP * 8, 1, CU_STREAM_WRITE_VALUE_DEFAULT), "letting a GPU go");
    must(g, g->cuda.StreamSynchronize(g->spinning), "letting a GPU go");
}
