/*
 * peers.c: every parameter gathered on trainer 0 by sends and receives and broadcast from there to all workers, one by one or
 * packed into two buffers in turn; workers copy out what they keep.
 */
#include "base/clock.h"
#include "bench.h"
#include "moves.h"

#include <stdlib.h>
#include <string.h>

enum { ALL_TRAINERS, DOWN, COMMS }; /* trainer 0 and all workers are in DOWN */
enum { BUFFERS = 2, GROUP = 1024 }; /* operations a group */

const char *const way_names[WAYS] = { "broadcast", "packed" };
const char *const way_titles[WAYS] = { "gather and broadcast a parameter", "packed broadcast, two buffers" };

typedef struct peer {
    place *p;
    const moves *m;
    nccl_calls nccl;
    ncclComm_t comm[COMMS];
    CUstream stream[BUFFERS];
    CUdeviceptr memory, buffer[BUFFERS]; /* memory: a trainer's shards, or what a worker keeps */
    size_t room;
    CUdeviceptr *to, *from; /* copies of a chunk */
    size_t *bytes, ncopies;
    piece *kept;
    size_t *of_trainer; /* where the kept pieces of each trainer begin; trainers + 1 */
} peer;

static bool is_worker(const peer *e) { return e->p->number >= e->m->trainers; }

static void nccl_must(const peer *e, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess)
        die("%s: %s", call, e->nccl.GetErrorString(result));
}

static void join(peer *e, int which, int count, int rank)
{
    ncclUniqueId id;
    memcpy(&id, e->p->all->id[which], sizeof id);
    nccl_must(e, e->nccl.CommInitRankConfig(&e->comm[which], count, id, rank, NULL), "ncclCommInitRankConfig");
    /* A run whose first call was a send did not come to its end with NCCL 2.28.9. */
    void *memory = (void *)(uintptr_t)e->memory;
    nccl_must(e, e->nccl.Broadcast(memory, memory, 8, ncclUint8, 0, e->comm[which], e->stream[0]), "ncclBroadcast");
    must(&e->p->gpu, e->p->gpu.cuda.StreamSynchronize(e->stream[0]), "the first broadcast");
}

static void join_all(peer *e)
{
    int number = e->p->number, trainers = e->m->trainers;
    for (int which = 0; which < COMMS && number == 0; which++) {
        ncclUniqueId id;
        nccl_must(e, e->nccl.GetUniqueId(&id), "ncclGetUniqueId");
        memcpy(e->p->all->id[which], &id, sizeof id);
    }
    meet(e->p);
    if (trainers > 1 && !is_worker(e))
        join(e, ALL_TRAINERS, trainers, number);
    if (number == 0 || is_worker(e))
        join(e, DOWN, 1 + e->m->workers, number == 0 ? 0 : number - trainers + 1);
}

/* ---- one chunk ---- */

static void add_copy(peer *e, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    e->to[e->ncopies] = to;
    e->from[e->ncopies] = from;
    e->bytes[e->ncopies++] = bytes;
}

static void copy_all(peer *e, CUstream stream)
{
    const slc_cuda *cuda = &e->p->gpu.cuda;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    size_t zero = 0, failed = SIZE_MAX;
    CUresult result = CUDA_SUCCESS;
    if (cuda->MemcpyBatchAsync != NULL && e->ncopies > 0)
        result = cuda->MemcpyBatchAsync(e->to, e->from, e->bytes, e->ncopies, &attributes, &zero, 1, &failed, stream);
    for (size_t i = 0; cuda->MemcpyBatchAsync == NULL && i < e->ncopies && result == CUDA_SUCCESS; i++)
        result = cuda->MemcpyAsync(e->to[i], e->from[i], e->bytes[i], stream);
    must(&e->p->gpu, result, "packing or unpacking");
    e->ncopies = 0;
}

/* Parameters [first, end) side by side in buffer b of trainer 0. */
static void gather(peer *e, size_t first, size_t end, int b)
{
    int number = e->p->number;
    size_t at = 0, operations = 0;
    for (size_t i = first; i < end; at += e->m->param[i++].bytes)
        for (size_t s = 0; s < e->m->param[i].count; s++) {
            const shard *one = &e->m->shard[e->m->param[i].first + s];
            CUdeviceptr own = e->memory + one->at, there = e->buffer[b] + at + one->from;
            if (one->trainer == 0 && number == 0)
                add_copy(e, there, own, one->bytes);
            if (one->trainer == 0 || (number != 0 && number != one->trainer))
                continue;
            if (operations++ % GROUP == 0 && operations > 1) {
                nccl_must(e, e->nccl.GroupEnd(), "ncclGroupEnd");
                nccl_must(e, e->nccl.GroupStart(), "ncclGroupStart");
            } else if (operations == 1)
                nccl_must(e, e->nccl.GroupStart(), "ncclGroupStart");
            ncclResult_t result = number == 0 ? e->nccl.Recv((void *)(uintptr_t)there, one->bytes, ncclUint8, one->trainer,
                                                             e->comm[ALL_TRAINERS], e->stream[b])
                                              : e->nccl.Send((void *)(uintptr_t)own, one->bytes, ncclUint8, 0,
                                                             e->comm[ALL_TRAINERS], e->stream[b]);
            nccl_must(e, result, "ncclSend or ncclRecv");
        }
    if (operations > 0)
        nccl_must(e, e->nccl.GroupEnd(), "ncclGroupEnd");
    copy_all(e, e->stream[b]);
}

static void unpack(peer *e, size_t first, size_t end, int b, size_t *kept)
{
    size_t at = 0;
    for (size_t i = first; i < end; at += e->m->param[i++].bytes) {
        size_t from, to = share(e->m, e->p->number - e->m->trainers, e->m->param[i].bytes, &from);
        if (to > from)
            add_copy(e, e->memory + *kept, e->buffer[b] + at + from, to - from);
        *kept += to - from;
    }
    copy_all(e, e->stream[b]);
}

static void move(peer *e, int way)
{
    int b = 0;
    size_t kept = 0;
    for (size_t first = 0, end; first < e->m->nparams; first = end) {
        size_t bytes = e->m->param[first].bytes;
        for (end = first + 1; way == 1 && end < e->m->nparams && bytes + e->m->param[end].bytes <= e->room; end++)
            bytes += e->m->param[end].bytes;
        if (!is_worker(e))
            gather(e, first, end, b);
        void *data = (void *)(uintptr_t)e->buffer[b];
        if (e->comm[DOWN] != NULL)
            nccl_must(e, e->nccl.Broadcast(data, data, bytes, ncclUint8, 0, e->comm[DOWN], e->stream[b]),
                      "ncclBroadcast");
        if (is_worker(e))
            unpack(e, first, end, b, &kept);
        b = way == 1 ? (b + 1) % BUFFERS : 0;
    }
    for (int i = 0; i < BUFFERS; i++)
        must(&e->p->gpu, e->p->gpu.cuda.StreamSynchronize(e->stream[i]), way_names[way]);
}

/* ---- memory ---- */

/* The kept pieces of a worker, those of each trainer together; returns their bytes. */
static size_t list_kept(peer *e)
{
    const moves *m = e->m;
    size_t count = 0, all = 0;
    e->kept = need(calloc(m->nshards + 1, sizeof *e->kept));
    e->of_trainer = need(calloc((size_t)m->trainers + 1, sizeof *e->of_trainer));
    for (int trainer = 0; trainer < m->trainers; trainer++) {
        size_t at = 0;
        for (size_t i = 0; i < m->nparams; i++) {
            size_t from, to = share(m, e->p->number - m->trainers, m->param[i].bytes, &from);
            for (size_t s = 0; s < m->param[i].count; s++) {
                const shard *one = &m->shard[m->param[i].first + s];
                size_t low = one->from > from ? one->from : from, high = one->from + one->bytes < to ? one->from + one->bytes : to;
                if (one->trainer == trainer && low < high)
                    e->kept[count++] = (piece){ .from = one->at + low - one->from, .to = at + low - from, .width = high - low,
                                                .height = 1, .pitch = high - low };
            }
            at += to - from;
        }
        e->of_trainer[trainer + 1] = count;
        all = at;
    }
    return all;
}

static size_t allocate(peer *e)
{
    const moves *m = e->m;
    const gpu *g = &e->p->gpu;
    size_t bytes = is_worker(e) ? list_kept(e) : m->held[e->p->number];
    e->room = e->p->options->bytes > m->largest ? e->p->options->bytes : m->largest;
    e->memory = gpu_allocate(g, bytes < 8 ? 8 : bytes, "shards, or what a worker keeps");
    for (int b = 0; b < BUFFERS; b++) {
        must(g, g->cuda.StreamCreate(&e->stream[b], CU_STREAM_NON_BLOCKING), "a stream");
        if (e->p->number == 0 || is_worker(e))
            e->buffer[b] = gpu_allocate(g, e->room, "a buffer");
    }
    e->to = need(calloc(m->nshards + 1, sizeof *e->to));
    e->from = need(calloc(m->nshards + 1, sizeof *e->from));
    e->bytes = need(calloc(m->nshards + 1, sizeof *e->bytes));
    return bytes;
}

/* ---- samples ---- */

static uint64_t seed_of(int sample, int way, int trainer)
{
    return ((uint64_t)(sample + 1) * WAYS + (uint64_t)way) * MOST_RANKS + (uint64_t)trainer;
}

static void one_sample(peer *e, int way, int sample, size_t held)
{
    place *p = e->p;
    if (held > 0 && is_worker(e))
        gpu_poison(&p->gpu, e->memory, held);
    else if (held > 0)
        gpu_fill(&p->gpu, e->memory, held, seed_of(sample, way, p->number));
    meet(p);
    double began = slc_now_s();
    move(e, way);
    p->all->lane[p->number] = slc_now_s() - began;
    meet(p);
    for (int trainer = 0; is_worker(e) && trainer < e->m->trainers; trainer++)
        p->all->wrong += gpu_wrong(&p->gpu, e->memory, e->kept + e->of_trainer[trainer],
                                   e->of_trainer[trainer + 1] - e->of_trainer[trainer], seed_of(sample, way, trainer));
    if (p->number == 0 && sample >= 0) {
        double slowest = 0;
        for (int i = 0; i < p->count; i++)
            slowest = p->all->lane[i] > slowest ? p->all->lane[i] : slowest;
        p->all->way[way][sample] = slowest;
    }
    meet(p);
}

void peers_run(place *p, const moves *m)
{
    peer e = { .p = p, .m = m };
    if (!nccl_calls_find(&e.nccl, p->options->nccl))
        die("%s cannot be opened, or is too old", p->options->nccl);
    (void)e.nccl.GetVersion(&p->all->nccl);
    size_t held = allocate(&e);
    join_all(&e);
    for (int sample = -1; sample < p->options->samples; sample++)
        for (int way = 0; way < WAYS; way++)
            one_sample(&e, way, sample, held);
}
