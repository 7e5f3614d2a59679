/*
 * kernels_speed.c: how fast the plugin's kernels move one large matrix, from one GPU's memory into another's or within one, beside a
 * plain copy: as it is, turned, and with each conversion.
 *
 *     kernels_speed [FROM [TO [ROWS [COLUMNS]]]]     GPUs, by default the first two; within one where both are the same
 *
 * Prints a table: bytes that land per second, medians of some launches, each followed by a wait. Nothing is compared here: that is
 * kernels_driver's matter.
 */
#include "base/clock.h"
#include "transport/nccl/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 9 };

typedef struct bench {
    slc_cuda cuda;
    slc_device source, target;
    slc_kernels kernels;
    CUstream stream;
    CUdeviceptr from, to;
    int64_t rows, columns;
} bench;

typedef struct work {
    const char *name;
    slc_cast cast;
    int64_t item; /* bytes before */
    bool turned;
} work;

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void tell(const char *name, int64_t bytes, double *seconds)
{
    qsort(seconds, SAMPLES, sizeof *seconds, by_value);
    printf("%-44s %7.1f GB/s  (%.1f to %.1f)\n", name, (double)bytes / seconds[SAMPLES / 2] * 1e-9,
           (double)bytes / seconds[SAMPLES - 1] * 1e-9, (double)bytes / seconds[0] * 1e-9);
}

static sluice_status plain(bench *b, sluice_error *error)
{
    double seconds[SAMPLES];
    CUresult result = CUDA_SUCCESS;
    const size_t bytes = (size_t)(b->rows * b->columns);
    for (int i = -1; i < SAMPLES && result == CUDA_SUCCESS; i++) {
        int64_t begin = slc_now_ns();
        result = b->cuda.MemcpyAsync(b->to, b->from, bytes, b->stream);
        if (result == CUDA_SUCCESS)
            result = b->cuda.StreamSynchronize(b->stream);
        if (i >= 0)
            seconds[i] = (double)(slc_now_ns() - begin) * 1e-9;
    }
    if (result == CUDA_SUCCESS)
        tell("a copy by copy engines", (int64_t)bytes, seconds);
    return slc_cuda_check(&b->cuda, result, "speed", "a copy", error);
}

/* The matrix, and its scales where it has some, as one launch. */
static sluice_status measure(bench *b, const work *w, sluice_error *error)
{
    const bool blocks = slc_cast_in_blocks(w->cast);
    const int64_t landed = w->cast == SLC_CAST_NONE ? w->item : slc_cast_to(w->cast), rows = b->rows, columns = b->columns;
    const slc_grid grid = { .extent = { rows, columns }, .step = { columns * w->item, w->item } };
    const int64_t lines[2] = { (rows + SLC_BLOCK - 1) / SLC_BLOCK, (columns + SLC_BLOCK - 1) / SLC_BLOCK };
    slc_stride dim[2] = { { rows, columns * w->item, w->turned ? landed : columns * landed },
                          { columns, w->item, w->turned ? rows * landed : landed } };
    const slc_stride scale[2] = { { lines[0], columns * w->item * SLC_BLOCK, lines[1] * 4 }, { lines[1], w->item * SLC_BLOCK, 4 } };
    slc_copy copy = { .run = landed, .cast = w->cast, .ndim = 2, .dim = dim, .grid = blocks ? &grid : NULL };
    slc_moves moves = { 0 };
    if (w->cast == SLC_CAST_NONE && !w->turned) {
        copy.run = columns * landed;
        copy.ndim = 1;
    }
    sluice_status status = slc_moves_add(&moves, b->from, b->to, &copy, error);
    int64_t bytes = rows * columns * landed;
    if (blocks && status == SLUICE_OK) {
        const slc_copy scales = { .run = 4, .cast = w->cast == SLC_CAST_BF16_F8 ? SLC_CAST_BF16_SCALE : SLC_CAST_F32_SCALE, .ndim = 2,
                                  .dim = scale, .grid = &grid };
        status = slc_moves_add(&moves, b->from, b->to + (CUdeviceptr)bytes, &scales, error);
        bytes += lines[0] * lines[1] * 4;
    }
    if (status == SLUICE_OK)
        status = slc_moves_place(&moves, &b->kernels, b->stream, error);
    double seconds[SAMPLES];
    CUresult result = CUDA_SUCCESS;
    for (int i = -1; i < SAMPLES && status == SLUICE_OK && result == CUDA_SUCCESS; i++) {
        int64_t begin = slc_now_ns();
        result = slc_moves_launch(&moves, &b->kernels, 0, moves.count, 0, b->stream);
        if (result == CUDA_SUCCESS)
            result = b->cuda.StreamSynchronize(b->stream);
        if (i >= 0)
            seconds[i] = (double)(slc_now_ns() - begin) * 1e-9;
    }
    if (status == SLUICE_OK && result == CUDA_SUCCESS)
        tell(w->name, bytes, seconds);
    slc_moves_clear(&moves, &b->kernels);
    return status == SLUICE_OK ? slc_cuda_check(&b->cuda, result, "speed", w->name, error) : status;
}

static sluice_status measure_all(bench *b, sluice_error *error)
{
    static const work all[] = {
        { "by the kernel as it is", SLC_CAST_NONE, 2, false },
        { "turned, 1 byte", SLC_CAST_NONE, 1, true },
        { "turned, 2 bytes", SLC_CAST_NONE, 2, true },
        { "turned, 4 bytes", SLC_CAST_NONE, 4, true },
        { "float32 to bfloat16", SLC_CAST_F32_BF16, 4, false },
        { "float32 to bfloat16, turned", SLC_CAST_F32_BF16, 4, true },
        { "bfloat16 to float8 with scales", SLC_CAST_BF16_F8, 2, false },
        { "bfloat16 to float8 with scales, turned", SLC_CAST_BF16_F8, 2, true },
        { "float32 to float8 with scales", SLC_CAST_F32_F8, 4, false },
    };
    sluice_status status = plain(b, error);
    for (size_t i = 0; i < sizeof all / sizeof all[0] && status == SLUICE_OK; i++)
        status = measure(b, &all[i], error);
    return status;
}

static sluice_status open_bench(bench *b, int from, int to, sluice_error *error)
{
    const size_t bytes = (size_t)(b->rows * b->columns) * 4 + (1 << 20);
    sluice_status status = slc_cuda_open(&b->cuda, error);
    if (status == SLUICE_OK)
        status = slc_device_open(&b->cuda, to, &b->target, error);
    if (status == SLUICE_OK)
        status = slc_device_open(&b->cuda, from, &b->source, error);
    if (status == SLUICE_OK)
        status = slc_device_enter(&b->target, "speed", error);
    if (status == SLUICE_OK) {
        status = slc_device_allocate(&b->target, bytes, "results", &b->to, error);
        slc_device_leave(&b->target);
    }
    if (status == SLUICE_OK)
        status = slc_device_enter(&b->source, "speed", error);
    if (status == SLUICE_OK && from != to)
        status = slc_cuda_check(&b->cuda, b->cuda.CtxEnablePeerAccess(b->target.context, 0), "speed", "access to the other GPU", error);
    if (status == SLUICE_OK)
        status = slc_kernels_load(&b->source, &b->kernels, error);
    if (status == SLUICE_OK)
        status = slc_cuda_check(&b->cuda, b->cuda.StreamCreate(&b->stream, CU_STREAM_NON_BLOCKING), "speed", "a stream", error);
    if (status == SLUICE_OK)
        status = slc_device_allocate(&b->source, bytes, "sources", &b->from, error);
    if (status == SLUICE_OK) /* finite numbers */
        status = slc_cuda_check(&b->cuda, b->cuda.MemsetD8Async(b->from, 0x3C, bytes, b->stream), "speed", "filling the source", error);
    return status;
}

int main(int argc, char **argv)
{
    int from = argc > 1 ? atoi(argv[1]) : 0, to = argc > 2 ? atoi(argv[2]) : 1;
    sluice_error error = SLUICE_ERROR_INIT;
    bench b = { .rows = argc > 3 ? atoll(argv[3]) : 16384, .columns = argc > 4 ? atoll(argv[4]) : 16384 };
    sluice_status status = open_bench(&b, from, to, &error);
    if (status == SLUICE_OK) {
        printf("%lld x %lld, GPU %d to GPU %d\n", (long long)b.rows, (long long)b.columns, from, to);
        status = measure_all(&b, &error);
    }
    if (status != SLUICE_OK)
        printf("%s\n", error.text);
    return status == SLUICE_OK ? 0 : 1; /* the process' end gives all back */
}
