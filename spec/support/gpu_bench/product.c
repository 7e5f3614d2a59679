/*
 * product.c: what an update costs a worker that computes: the rate of bfloat16 matrix products (cuBLAS, found when the process
 * runs; random values) alone, and while one update after the other comes in; and the same with bare copies or NCCL in the
 * update's place. Weights are read in turn from more memory than the GPU's cache holds, as the layers of a model are.
 */
#include "base/symbol.h"
#include "rank.h"

#include <dlfcn.h>
#include <stdlib.h>

enum { SIDE_LENGTH = 8192, WEIGHTS = 8 };

/* No more than the driver queues ahead: else the first are over before the update beside them begins. */
static const struct {
    int rows, products;
} shapes[SHAPES] = { { SIDE_LENGTH, 160 }, { 2048, 640 }, { 256, 900 }, { 16, 900 } };

int product_rows(product_shape shape)
{
    return shapes[shape].rows;
}

enum { R_16BF = 14, COMPUTE_32F = 68, NO_TRANSPOSE = 0, ANY_WAY = -1 }; /* cublas_api.h's, library_types.h's */

typedef int (*create_function)(void **handle);
typedef int (*set_stream_function)(void *handle, CUstream stream);
typedef int (*product_function)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                                const void *a, int type_a, int lda, const void *b, int type_b, int ldb, const void *beta, void *c,
                                int type_c, int ldc, int compute, int algorithm);

struct product {
    void *library, *handle;
    create_function create;
    set_stream_function set_stream;
    product_function multiply;
    CUdeviceptr weights[WEIGHTS], b, c;
    CUstream stream;
    CUevent began, ended;
};

static bool find_cublas(struct product *p, const char *path)
{
    p->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    slc_symbol(p->library, "cublasCreate_v2", &p->create);
    slc_symbol(p->library, "cublasSetStream_v2", &p->set_stream);
    slc_symbol(p->library, "cublasGemmEx", &p->multiply);
    return p->create != NULL && p->set_stream != NULL && p->multiply != NULL;
}

const char *product_missing(rank *r)
{
    if (r->gpu.processors == 0)
        return r->gpu.why_no_kernels;
    if (r->product == NULL) {
        r->product = need(calloc(1, sizeof *r->product));
        if (!find_cublas(r->product, r->options->cublas))
            r->product->create = NULL;
    }
    return r->product->create != NULL ? NULL : "no libcublas.so.13 or .12 was found (--cublas names it)";
}

static CUdeviceptr random_matrix(const gpu *g, uint64_t seed)
{
    size_t count = (size_t)SIDE_LENGTH * SIDE_LENGTH;
    uint16_t *values = need(malloc(count * sizeof *values));
    for (size_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] = (uint16_t)((seed >> 40 & 0x807f) | 0x3f00); /* of either sign, 0.5 to 1 */
    }
    CUdeviceptr matrix = gpu_allocate(g, count * sizeof *values, "a matrix");
    must(g, g->cuda.MemcpyAsync(matrix, (CUdeviceptr)(uintptr_t)values, count * sizeof *values, g->stream), "filling a matrix");
    must(g, g->cuda.StreamSynchronize(g->stream), "filling a matrix");
    free(values);
    return matrix;
}

void product_open(rank *r, const course *row)
{
    struct product *p = r->product;
    const gpu *g = &r->gpu;
    row->open_beside(r, row);
    if (r->side == TRAINER || p->handle != NULL)
        return;
    for (int i = 0; i < WEIGHTS; i++)
        p->weights[i] = random_matrix(g, (uint64_t)i + 3);
    p->b = random_matrix(g, 1);
    p->c = random_matrix(g, 2);
    must(g, g->cuda.StreamCreate(&p->stream, CU_STREAM_NON_BLOCKING), "a stream");
    must(g, g->cuda.EventCreate(&p->began, CU_EVENT_DEFAULT), "an event");
    must(g, g->cuda.EventCreate(&p->ended, CU_EVENT_DEFAULT), "an event");
    if (p->create(&p->handle) != 0 || p->set_stream(p->handle, p->stream) != 0)
        die("cuBLAS does not start");
}

static void multiply_all(rank *r, product_shape shape)
{
    struct product *p = r->product;
    const float one = 1, zero = 0;
    const int n = SIDE_LENGTH, height = shapes[shape].rows;
    must(&r->gpu, r->gpu.cuda.EventRecord(p->began, p->stream), "an event");
    for (int i = 0; i < shapes[shape].products; i++)
        if (p->multiply(p->handle, NO_TRANSPOSE, NO_TRANSPOSE, n, height, n, &one, (void *)(uintptr_t)p->weights[i % WEIGHTS], R_16BF, n,
                        (void *)(uintptr_t)p->b, R_16BF, n, &zero, (void *)(uintptr_t)p->c, R_16BF, n, COMPUTE_32F, ANY_WAY) != 0)
            die("cublasGemmEx failed");
    must(&r->gpu, r->gpu.cuda.EventRecord(p->ended, p->stream), "an event");
}

/* TFLOP/s of the products between the two events. */
static double rate(rank *r, product_shape shape)
{
    float ms = 0;
    must(&r->gpu, r->gpu.EventSynchronize(r->product->ended), "matrix products");
    must(&r->gpu, r->gpu.EventElapsedTime(&ms, r->product->began, r->product->ended), "matrix products");
    return 2.0 * SIDE_LENGTH * SIDE_LENGTH * shapes[shape].rows * shapes[shape].products / (double)ms * 1e-9;
}

/* They follow one another until the products are done; the seconds are those of the first, which has them for company all the way. */
double product_run(rank *r, const course *row, outcome *out, int sample)
{
    double idle = 0, first = 0;
    if (r->side == WORKER) {
        multiply_all(r, row->shape);
        idle = rate(r, row->shape);
        multiply_all(r, row->shape);
    }
    for (bool again = true, counted = false; again; counted = true) {
        double seconds = row->beside(r, row, out, sample);
        first = counted ? first : seconds;
        if (r->side == WORKER)
            r->all->again = r->gpu.cuda.EventQuery(r->product->ended) == CUDA_ERROR_NOT_READY;
        meet(r->all, SIDES);
        again = r->all->again;
        meet(r->all, SIDES);
    }
    if (r->side == WORKER && sample >= 0) {
        out->sample[RATE_IDLE][sample] = idle;
        out->sample[RATE_BUSY][sample] = rate(r, row->shape);
    }
    return first;
}
