/*
 * kernels_driver.c: tables of random strided copies through the plugin's kernels, on a GPU or the stand-in for one, against
 * a loop over single bytes.
 *
 *     kernels_driver [SEED [CASES [DEVICE]]]      random shapes, some with conversions, some turned
 *     kernels_driver casts [DEVICE]               each conversion, of numbers on both sides of every halfway case; those in
 *                                                 blocks of all bfloat16 numbers, with many scales
 *
 * Prints one line: "seed S: N cases, B bytes: equal", "N numbers: equal", or the first difference and how to see it again. Exit status 1 for a
 * difference, 3 where there is no GPU.
 */
#include "base/memory.h"
#include "cast_oracle.h"
#include "transport/nccl/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MOVES = 6, MOST_BYTES = 1 << 18, ROOM = 4 << 20, POISON = 0xA5 };

typedef struct shape {
    uint64_t from, to; /* offsets */
    int64_t run;
    slc_cast cast;
    uint32_t ndim;
    slc_stride dim[SLC_MAX_DIMS];
    slc_grid grid; /* in blocks */
    uint64_t bytes;
} shape;

typedef struct bench {
    slc_cuda cuda;
    slc_device device;
    slc_kernels kernels;
    CUstream stream;
    CUdeviceptr from, to;
    unsigned char *source, *result, *expected;
    uint64_t state, moved;
} bench;

static uint64_t next(bench *b)
{
    uint64_t x = b->state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t below(bench *b, uint64_t most)
{
    return next(b) % most;
}

/*
 * Strides of one side: dims nested in a random order around `item` bytes, some with gaps, all multiples of `grain`. Returns the
 * bytes spanned.
 */
static uint64_t nest(bench *b, shape *s, bool to, int64_t grain, int64_t item)
{
    uint32_t order[SLC_MAX_DIMS] = { 0 };
    for (uint32_t d = 0; d < s->ndim; d++) {
        uint32_t other = (uint32_t)below(b, d + 1);
        order[d] = order[other];
        order[other] = d;
    }
    int64_t step = item;
    for (uint32_t i = 0; i < s->ndim; i++) {
        slc_stride *dim = &s->dim[order[i]];
        step += (int64_t)below(b, 3) * grain * (int64_t)below(b, 4);
        *(to ? &dim->destination : &dim->source) = step;
        step *= dim->count;
    }
    return (uint64_t)step;
}

/* False where it would not fit; the caller tries again. */
static bool invent(bench *b, shape *s, uint64_t *from_used, uint64_t *to_used)
{
    static const int64_t grains[] = { 1, 2, 4, 8, 16, 32 };
    const int64_t grain = grains[below(b, 6)];
    *s = (shape){ .ndim = (uint32_t)below(b, SLC_MAX_DIMS + 1), .cast = (slc_cast)below(b, SLC_CAST_BF16_F8) };
    if (s->cast != SLC_CAST_NONE && s->ndim == 0)
        return false;
    s->run = s->cast != SLC_CAST_NONE ? slc_cast_to(s->cast) : grain * (int64_t)(1 + below(b, below(b, 4) == 0 ? 5000 : 20));
    s->bytes = (uint64_t)s->run;
    for (uint32_t d = 0; d < s->ndim; d++) {
        s->dim[d].count = 1 + (int64_t)below(b, below(b, 8) == 0 ? 6000 : 7);
        s->bytes *= (uint64_t)s->dim[d].count;
        if (s->bytes > MOST_BYTES)
            return false;
    }
    uint64_t shift = below(b, 2) == 0 ? 0 : (uint64_t)grain * below(b, 16);
    uint64_t from_bytes = nest(b, s, false, grain, s->cast != SLC_CAST_NONE ? slc_cast_from(s->cast) : s->run);
    uint64_t to_bytes = nest(b, s, true, grain, s->run);
    s->from = *from_used + shift;
    s->to = *to_used + shift;
    *from_used = (s->from + from_bytes + 63) / 64 * 64;
    *to_used = (s->to + to_bytes + 63) / 64 * 64;
    return *from_used <= ROOM && *to_used <= ROOM;
}

/*
 * A plane of some hundred elements each way and up to two dims around it: turned as often as not, of every conversion, with gaps
 * and at odd addresses now and then; those in blocks may begin and end within them.
 */
static bool invent_plane(bench *b, shape *s, uint64_t *from_used, uint64_t *to_used)
{
    *s = (shape){ .ndim = 2 + (uint32_t)below(b, 3), .cast = (slc_cast)below(b, SLC_CASTS) };
    const bool blocks = slc_cast_in_blocks(s->cast), scales = slc_cast_scales(s->cast);
    const int64_t item = s->cast == SLC_CAST_NONE ? (int64_t)1 << below(b, 3) : slc_cast_from(s->cast);
    const int64_t grain = below(b, 4) == 0 ? 1 : item, unit = scales ? SLC_BLOCK : 1;
    s->run = s->cast == SLC_CAST_NONE ? item : slc_cast_to(s->cast);
    s->bytes = (uint64_t)s->run;
    uint32_t row = s->ndim - 2;
    for (uint32_t d = 0; d < s->ndim; d++)
        s->dim[d].count = 1 + (int64_t)below(b, d < row ? 3 : 300);
    uint64_t from_bytes = nest(b, s, false, grain, item); /* as elements lie, before scales step over them */
    int64_t extent[2] = { s->dim[row].count, s->dim[row + 1].count }, end[2];
    uint64_t skipped = 0;
    for (uint32_t i = 0; i < 2 && blocks; i++) {
        slc_stride *dim = &s->dim[row + i];
        int64_t at = below(b, 2) == 0 ? 0 : (int64_t)below(b, (uint64_t)extent[i]) / unit * unit;
        end[i] = below(b, 2) == 0 ? extent[i] : at + 1 + (int64_t)below(b, (uint64_t)(extent[i] - at));
        s->grid.extent[i] = extent[i];
        s->grid.at[i] = at;
        s->grid.step[i] = dim->source;
        skipped += (uint64_t)(at * dim->source);
        dim->count = (end[i] - at + unit - 1) / unit;
        dim->source *= unit;
    }
    uint64_t to_bytes = nest(b, s, true, below(b, 4) == 0 ? 1 : s->run, s->run);
    for (uint32_t d = 0; d < s->ndim; d++)
        s->bytes *= (uint64_t)s->dim[d].count;
    s->from = *from_used + skipped + (uint64_t)grain * below(b, 4);
    s->to = *to_used + (below(b, 4) == 0 ? below(b, 16) : 0);
    *from_used = (s->from - skipped + from_bytes + 63) / 64 * 64;
    *to_used = (s->to + to_bytes + 63) / 64 * 64;
    return s->bytes <= MOST_BYTES && *from_used <= ROOM && *to_used <= ROOM;
}

static uint32_t bits_at(const bench *b, slc_cast cast, uint64_t at)
{
    uint32_t bits = 0;
    memcpy((unsigned char *)&bits + 4 - slc_cast_from(cast), b->source + at, slc_cast_from(cast));
    return bits;
}

/* The scale of the block in which an element of the grid lies that begins at `origin`. */
static float expect_scale(const bench *b, const shape *s, uint64_t origin, int64_t row, int64_t column)
{
    double largest = 0;
    for (int64_t r = row / 128 * 128; r < row / 128 * 128 + 128 && r < s->grid.extent[0]; r++)
        for (int64_t c = column / 128 * 128; c < column / 128 * 128 + 128 && c < s->grid.extent[1]; c++)
            largest = oracle_largest(largest, bits_at(b, s->cast, origin + (uint64_t)(r * s->grid.step[0] + c * s->grid.step[1])));
    return oracle_scale(largest);
}

static void expect_grid(bench *b, const shape *s, uint64_t from, uint64_t to)
{
    const slc_stride *row = &s->dim[s->ndim - 2], *column = row + 1;
    const int64_t unit = slc_cast_scales(s->cast) ? 128 : 1;
    static float known[64][8];
    memset(known, 0, sizeof known);
    for (int64_t r = 0; r < row->count; r++)
        for (int64_t c = 0; c < column->count; c++) {
            int64_t at[2] = { s->grid.at[0] + r * unit, s->grid.at[1] + c * unit };
            uint64_t origin = from - (uint64_t)(s->grid.at[0] * s->grid.step[0] + s->grid.at[1] * s->grid.step[1]);
            float *scale = &known[at[0] / 128][at[1] / 128];
            if (*scale == 0)
                *scale = expect_scale(b, s, origin, at[0], at[1]);
            unsigned char *out = b->expected + to + (uint64_t)(r * row->destination + c * column->destination);
            if (unit == 128)
                memcpy(out, scale, sizeof *scale);
            else
                *out = oracle_scaled(bits_at(b, s->cast, from + (uint64_t)(r * row->source + c * column->source)), *scale);
        }
}

static void expect_cast(slc_cast cast, const unsigned char *from, unsigned char *to)
{
    uint32_t before;
    memcpy(&before, from, sizeof before);
    uint16_t behind = (uint16_t)small_oracle(cast == SLC_CAST_F32_BF16 ? BFLOAT16 : FLOAT16, before);
    memcpy(to, &behind, sizeof behind);
}

static void expect(bench *b, const shape *s)
{
    int64_t index[SLC_MAX_DIMS] = { 0 };
    const bool blocks = slc_cast_in_blocks(s->cast);
    const uint32_t ndim = blocks ? s->ndim - 2 : s->ndim;
    for (;;) {
        uint64_t from = s->from, to = s->to;
        for (uint32_t d = 0; d < ndim; d++) {
            from += (uint64_t)(index[d] * s->dim[d].source);
            to += (uint64_t)(index[d] * s->dim[d].destination);
        }
        if (blocks)
            expect_grid(b, s, from, to);
        else if (s->cast != SLC_CAST_NONE)
            expect_cast(s->cast, b->source + from, b->expected + to);
        for (int64_t i = 0; i < s->run && s->cast == SLC_CAST_NONE; i++)
            b->expected[to + (uint64_t)i] = b->source[from + (uint64_t)i];
        uint32_t d = ndim;
        while (d > 0 && ++index[d - 1] == s->dim[d - 1].count)
            index[--d] = 0;
        if (d == 0)
            break;
    }
    b->moved += s->bytes;
}

static CUresult compare(bench *b, size_t *where)
{
    CUresult result = b->cuda.MemcpyAsync((CUdeviceptr)(uintptr_t)b->result, b->to, ROOM, b->stream);
    if (result == CUDA_SUCCESS)
        result = b->cuda.StreamSynchronize(b->stream);
    *where = SIZE_MAX;
    for (size_t i = 0; result == CUDA_SUCCESS && i < ROOM && *where == SIZE_MAX; i++)
        if (b->result[i] != b->expected[i])
            *where = i;
    return result;
}

/* A run of the table's moves, then one of them that points elsewhere. */
static sluice_status one_case(bench *b, uint64_t number, sluice_error *error)
{
    shape made[MOST_MOVES];
    slc_moves moves = { 0 };
    size_t count = 1 + below(b, MOST_MOVES), where = SIZE_MAX;
    uint64_t from_used = 0, to_used = 0, kept[2] = { 0, 0 };
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < count && status == SLUICE_OK; i++) {
        while (!(below(b, 2) == 0 ? invent : invent_plane)(b, &made[i], &from_used, &to_used)) {
            from_used = kept[0];
            to_used = kept[1];
        }
        kept[0] = from_used;
        kept[1] = to_used;
        const slc_copy copy = { .run = made[i].run, .cast = made[i].cast, .ndim = made[i].ndim, .dim = made[i].dim,
                                .grid = slc_cast_in_blocks(made[i].cast) ? &made[i].grid : NULL };
        status = slc_moves_add(&moves, b->from + made[i].from, b->to + made[i].to, &copy, error);
    }
    if (status == SLUICE_OK)
        status = slc_moves_place(&moves, &b->kernels, b->stream, error);
    size_t first = below(b, count), some = 1 + below(b, count - first);
    memset(b->expected, POISON, ROOM);
    for (size_t i = first; i < first + some; i++)
        expect(b, &made[i]);
    CUresult result = status == SLUICE_OK ? b->cuda.MemsetD8Async(b->to, POISON, ROOM, b->stream) : CUDA_SUCCESS;
    if (status == SLUICE_OK && result == CUDA_SUCCESS)
        result = slc_moves_launch(&moves, &b->kernels, first, some, (uint32_t)below(b, 5), b->stream);
    uint64_t shift = 1 + below(b, 16);
    made[first].from += from_used + shift <= ROOM ? shift : 0; /* only the source: the other bytes stay as they are */
    if (status == SLUICE_OK && result == CUDA_SUCCESS) {
        slc_moves_aim(&moves, first, b->from + made[first].from, b->to + made[first].to);
        status = slc_moves_place(&moves, &b->kernels, b->stream, error);
        expect(b, &made[first]);
    }
    if (status == SLUICE_OK && result == CUDA_SUCCESS)
        result = slc_moves_launch(&moves, &b->kernels, first, 1, 0, b->stream);
    if (status == SLUICE_OK && result == CUDA_SUCCESS)
        result = compare(b, &where);
    slc_moves_clear(&moves, &b->kernels);
    if (status == SLUICE_OK && where != SIZE_MAX)
        status = slc_fail(error, SLUICE_DISAGREE, "kernels", "case %" PRIu64 ", byte %zu is %02x, must be %02x", number, where,
                          b->result[where], b->expected[where]);
    return status == SLUICE_OK ? slc_cuda_check(&b->cuda, result, "kernels", "a case", error) : status;
}

static sluice_status open_bench(bench *b, int ordinal, sluice_error *error)
{
    sluice_status status = slc_cuda_open(&b->cuda, error);
    if (status == SLUICE_OK)
        status = slc_device_open(&b->cuda, ordinal, &b->device, error);
    if (status == SLUICE_OK)
        status = slc_device_enter(&b->device, "kernels", error);
    if (status == SLUICE_OK)
        status = slc_kernels_load(&b->device, &b->kernels, error);
    if (status == SLUICE_OK)
        status = slc_cuda_check(&b->cuda, b->cuda.StreamCreate(&b->stream, CU_STREAM_NON_BLOCKING), "kernels", "a stream", error);
    if (status == SLUICE_OK)
        status = slc_device_allocate(&b->device, ROOM, "sources", &b->from, error);
    if (status == SLUICE_OK)
        status = slc_device_allocate(&b->device, ROOM, "results", &b->to, error);
    b->source = malloc(ROOM);
    b->result = malloc(ROOM);
    b->expected = malloc(ROOM);
    for (size_t i = 0; status == SLUICE_OK && i < ROOM; i++)
        b->source[i] = (unsigned char)next(b);
    if (status == SLUICE_OK)
        status = slc_cuda_check(&b->cuda, b->cuda.MemcpyAsync(b->from, (CUdeviceptr)(uintptr_t)b->source, ROOM, b->stream),
                                "kernels", "filling the source", error);
    if (status == SLUICE_OK) /* `source` may be written again */
        status = slc_cuda_check(&b->cuda, b->cuda.StreamSynchronize(b->stream), "kernels", "filling the source", error);
    return status;
}

static void close_bench(bench *b)
{
    slc_device_release(&b->device, b->from);
    slc_device_release(&b->device, b->to);
    if (b->stream != NULL)
        (void)b->cuda.StreamDestroy(b->stream);
    slc_kernels_unload(&b->kernels);
    if (b->device.context != NULL)
        slc_device_leave(&b->device);
    slc_device_close(&b->device);
    slc_cuda_close(&b->cuda);
    free(b->source);
    free(b->result);
    free(b->expected);
}

/* Every upper part of a float32 that a float16 can tell from the next, with what lies on either side of halfway. */
static uint32_t number_at(size_t i)
{
    static const uint32_t rest[] = { 0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF };
    const size_t count = sizeof rest / sizeof rest[0];
    return (uint32_t)(i / count) << 13 | rest[i % count];
}

/* A shape at the begin of the memory, of what `source` holds now. */
static sluice_status one_shape(bench *b, const shape *s, sluice_error *error)
{
    const slc_copy copy = { .run = s->run, .cast = s->cast, .ndim = s->ndim, .dim = s->dim, .grid = slc_cast_in_blocks(s->cast) ? &s->grid : NULL };
    slc_moves moves = { 0 };
    size_t where = SIZE_MAX;
    memset(b->expected, POISON, ROOM);
    expect(b, s);
    CUresult result = b->cuda.MemcpyAsync(b->from, (CUdeviceptr)(uintptr_t)b->source, ROOM, b->stream);
    if (result == CUDA_SUCCESS)
        result = b->cuda.MemsetD8Async(b->to, POISON, ROOM, b->stream);
    sluice_status status = slc_moves_add(&moves, b->from, b->to, &copy, error);
    if (status == SLUICE_OK)
        status = slc_moves_place(&moves, &b->kernels, b->stream, error);
    if (status == SLUICE_OK && result == CUDA_SUCCESS)
        result = slc_moves_launch(&moves, &b->kernels, 0, 1, 0, b->stream);
    if (status == SLUICE_OK && result == CUDA_SUCCESS)
        result = compare(b, &where);
    slc_moves_clear(&moves, &b->kernels);
    if (status == SLUICE_OK && where != SIZE_MAX)
        status = slc_fail(error, SLUICE_DISAGREE, "kernels", "conversion %d: byte %zu is %02x, must be %02x", (int)s->cast, where, b->result[where],
                          b->expected[where]);
    return status == SLUICE_OK ? slc_cuda_check(&b->cuda, result, "kernels", "conversions", error) : status;
}

/* As many of them as the memory holds, again and again. */
static sluice_status all_casts(bench *b, uint64_t *numbers, sluice_error *error)
{
    const size_t all = 6 << 19, most = ROOM / sizeof(uint32_t);
    sluice_status status = SLUICE_OK;
    for (slc_cast cast = SLC_CAST_F32_BF16; cast <= SLC_CAST_F32_F16; cast++)
        for (size_t first = 0; first < all && status == SLUICE_OK; first += most) {
            size_t count = all - first < most ? all - first : most;
            for (size_t i = 0; i < count; i++) {
                uint32_t number = number_at(first + i);
                memcpy(b->source + i * sizeof number, &number, sizeof number);
            }
            const slc_stride dim = { .count = (int64_t)count, .source = 4, .destination = 2 };
            const shape s = { .run = 2, .cast = cast, .ndim = 1, .dim = { dim } };
            status = one_shape(b, &s, error);
            *numbers += count;
        }
    return status;
}

/* ROOM has 64 blocks of float32: so many in a row, elements and then scales. */
static sluice_status all_blocks(bench *b, uint64_t *numbers, sluice_error *error)
{
    const uint32_t together = 64;
    sluice_status status = SLUICE_OK;
    for (slc_cast cast = SLC_CAST_BF16_F8; cast < SLC_CASTS; cast++)
        for (uint32_t first = 0; first < ORACLE_BLOCKS && status == SLUICE_OK; first += together) {
            const uint32_t blocks = ORACLE_BLOCKS - first < together ? ORACLE_BLOCKS - first : together, item = slc_cast_from(cast);
            const bool scales = slc_cast_scales(cast);
            for (uint32_t i = 0; i < blocks * ORACLE_BLOCK; i++) {
                uint32_t bits = oracle_number(first * ORACLE_BLOCK + i, item == 2 ? 0 : (uint32_t)(next(b) >> 40));
                memcpy(b->source + i * item, (unsigned char *)&bits + 4 - item, item);
            }
            shape s = { .cast = cast, .run = slc_cast_to(cast), .ndim = 2 };
            s.grid = (slc_grid){ .extent = { 128 * (int64_t)blocks, 128 }, .step = { 128 * (int64_t)item, item } };
            s.dim[0] = (slc_stride){ .count = scales ? blocks : blocks * 128,
                                       .source = item * 128 * (scales ? 128 : 1),
                                       .destination = scales ? 4 : 128 };
            s.dim[1] = (slc_stride){ .count = scales ? 1 : 128, .source = item * (scales ? 128 : 1), .destination = scales ? 4 : 1 };
            status = one_shape(b, &s, error);
            *numbers += (uint64_t)(s.dim[0].count * s.dim[1].count);
        }
    return status;
}

static int run_casts(int ordinal)
{
    sluice_error error = SLUICE_ERROR_INIT;
    bench b = { .state = 1 };
    uint64_t numbers = 0;
    sluice_status status = open_bench(&b, ordinal, &error);
    bool is_open = status == SLUICE_OK;
    if (is_open)
        status = all_casts(&b, &numbers, &error);
    if (status == SLUICE_OK)
        status = all_blocks(&b, &numbers, &error);
    if (status == SLUICE_OK)
        printf("%" PRIu64 " numbers: equal\n", numbers);
    else
        printf("%s\n", error.text);
    if (is_open)
        close_bench(&b);
    return status == SLUICE_OK ? 0 : is_open ? 1 : 3;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "casts") == 0)
        return run_casts(argc > 2 ? atoi(argv[2]) : 0);
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, cases = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;
    sluice_error error = SLUICE_ERROR_INIT;
    bench b = { .state = seed };
    sluice_status status = open_bench(&b, argc > 3 ? atoi(argv[3]) : 0, &error);
    bool is_open = status == SLUICE_OK;
    for (uint64_t i = 0; i < cases && status == SLUICE_OK; i++)
        status = one_case(&b, i, &error);
    if (status == SLUICE_OK)
        printf("seed %" PRIu64 ": %" PRIu64 " cases, %" PRIu64 " bytes: equal\n", seed, cases, b.moved);
    else
        printf("seed %" PRIu64 ": %s\n", seed, error.text);
    if (is_open || b.cuda.library != NULL)
        close_bench(&b);
    return status == SLUICE_OK ? 0 : is_open ? 1 : 3;
}
