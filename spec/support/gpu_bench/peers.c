/*
 * peers.c: the same bytes as weights are sent today over NCCL, which is found when the process runs: a broadcast for each
 * parameter, sends and receives in groups, and a packed broadcast through two buffers of 1 GiB that are filled on one side
 * and emptied on the other by copies.
 */
#include "base/clock.h"
#include "nccl_calls.h"
#include "rank.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFERS = 2 };
static const size_t BUFFER = (size_t)1 << 30;

struct peers {
    nccl_calls nccl;
    bool found;
    ncclComm_t comm;
    CUstream stream[BUFFERS];
    CUdeviceptr buffer[BUFFERS];
    CUdeviceptr *to, *from; /* of copies into or out of a buffer */
    size_t *bytes;
};

static void nccl_must(const struct peers *p, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess)
        die("%s: %s", call, p->nccl.GetErrorString(result));
}

const char *peers_missing(rank *r)
{
    if (r->options->gpu[TRAINER] == r->options->gpu[WORKER])
        return "trainer and worker share a GPU, and NCCL wants one for each rank";
    if (r->gpu.EventElapsedTime == NULL) /* the last that is looked up */
        return r->gpu.why_no_kernels;
    if (r->peers == NULL) {
        r->peers = need(calloc(1, sizeof *r->peers));
        r->peers->found = nccl_calls_find(&r->peers->nccl, r->options->nccl);
        if (r->peers->found)
            (void)r->peers->nccl.GetVersion(&r->all->nccl);
    }
    return r->peers->found ? NULL : "no libnccl.so.2 was found (--nccl names it)";
}

static void *tensor(const rank *r, const piece *p)
{
    return (void *)(uintptr_t)(r->side == TRAINER ? r->source + p->from : r->live + p->to);
}

static void broadcast_each(const rank *r, const work *w)
{
    const struct peers *p = r->peers;
    for (size_t i = 0; i < w->npieces; i++) {
        void *data = tensor(r, &w->piece[i]);
        nccl_must(p, p->nccl.Broadcast(data, data, w->piece[i].width * w->piece[i].height, ncclUint8, 0, p->comm, p->stream[0]),
                  "ncclBroadcast");
    }
}

static void send_groups(const rank *r, const work *w, size_t group)
{
    const struct peers *p = r->peers;
    for (size_t i = 0; i < w->npieces;) {
        nccl_must(p, p->nccl.GroupStart(), "ncclGroupStart");
        for (size_t end = i + group < w->npieces ? i + group : w->npieces; i < end; i++) {
            size_t bytes = w->piece[i].width * w->piece[i].height;
            void *data = tensor(r, &w->piece[i]);
            nccl_must(p,
                      r->side == TRAINER ? p->nccl.Send(data, bytes, ncclUint8, WORKER, p->comm, p->stream[0])
                                         : p->nccl.Recv(data, bytes, ncclUint8, TRAINER, p->comm, p->stream[0]),
                      "ncclSend or ncclRecv");
        }
        nccl_must(p, p->nccl.GroupEnd(), "ncclGroupEnd");
    }
}

/* Whole tensors that stand in a buffer side by side, out of it or into it. */
static void copy_packed(const rank *r, const work *w, size_t first, size_t end, int b)
{
    struct peers *p = r->peers;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    size_t zero = 0, failed = SIZE_MAX, offset = 0;
    for (size_t i = first; i < end; i++) {
        CUdeviceptr packed = p->buffer[b] + offset, data = (CUdeviceptr)(uintptr_t)tensor(r, &w->piece[i]);
        p->to[i - first] = r->side == TRAINER ? packed : data;
        p->from[i - first] = r->side == TRAINER ? data : packed;
        p->bytes[i - first] = w->piece[i].width * w->piece[i].height;
        offset += p->bytes[i - first];
    }
    must(&r->gpu,
         r->gpu.cuda.MemcpyBatchAsync(p->to, p->from, p->bytes, end - first, &attributes, &zero, 1, &failed, p->stream[b]),
         "packing or unpacking");
}

static void broadcast_packed(const rank *r, const work *w)
{
    const struct peers *p = r->peers;
    int b = 0;
    for (size_t first = 0, end; first < w->npieces; first = end, b = (b + 1) % BUFFERS) {
        size_t bytes = 0;
        for (end = first; end < w->npieces && bytes + w->piece[end].width * w->piece[end].height <= BUFFER; end++)
            bytes += w->piece[end].width * w->piece[end].height;
        if (end == first)
            die("a tensor is larger than the buffer of the packed broadcast");
        if (r->side == TRAINER)
            copy_packed(r, w, first, end, b);
        void *data = (void *)(uintptr_t)p->buffer[b];
        nccl_must(p, p->nccl.Broadcast(data, data, bytes, ncclUint8, 0, p->comm, p->stream[b]), "ncclBroadcast");
        if (r->side == WORKER)
            copy_packed(r, w, first, end, b);
    }
}

void peers_open(rank *r, const course *row)
{
    struct peers *p = r->peers;
    const work *w = &r->work[WORK_DIRECT];
    size_t most = w->nparams;
    if (p->comm == NULL) {
        ncclUniqueId id;
        if (r->side == TRAINER) {
            nccl_must(p, p->nccl.GetUniqueId(&id), "ncclGetUniqueId");
            memcpy(r->all->nccl_id, &id, sizeof id);
        }
        meet(r->all, SIDES);
        memcpy(&id, r->all->nccl_id, sizeof id);
        nccl_must(p, p->nccl.CommInitRankConfig(&p->comm, SIDES, id, r->side, NULL), "ncclCommInitRankConfig");
        p->to = need(calloc(most, sizeof *p->to));
        p->from = need(calloc(most, sizeof *p->from));
        p->bytes = need(calloc(most, sizeof *p->bytes));
        for (int i = 0; i < BUFFERS; i++)
            must(&r->gpu, r->gpu.cuda.StreamCreate(&p->stream[i], CU_STREAM_NON_BLOCKING), "a stream");
        /* A run whose first call was a send did not come to its end with NCCL 2.28.9. */
        broadcast_each(r, w);
        must(&r->gpu, r->gpu.cuda.StreamSynchronize(p->stream[0]), "the first broadcasts");
    }
    for (int i = 0; row->variant == PEERS_PACKED && i < BUFFERS; i++)
        if (p->buffer[i] == 0)
            p->buffer[i] = gpu_allocate(&r->gpu, BUFFER, "a buffer of the packed broadcast");
}

double peers_run(rank *r, const course *row, outcome *out, int sample)
{
    const work *w = &r->work[row->work];
    meet(r->all, SIDES);
    double began = slc_now_s();
    if (row->variant == PEERS_BROADCAST)
        broadcast_each(r, w);
    else if (row->variant == PEERS_PACKED)
        broadcast_packed(r, w);
    else
        send_groups(r, w, row->variant == PEERS_GROUP ? w->npieces : 32);
    double issued = slc_now_s();
    for (int i = 0; i < BUFFERS; i++)
        must(&r->gpu, r->gpu.cuda.StreamSynchronize(r->peers->stream[i]), row->name);
    double ended = slc_now_s();
    if (sample >= 0 && r->side == TRAINER)
        out->sample[ISSUE_US][sample] = (issued - began) * 1e6;
    return ended - began;
}

void peers_close(rank *r)
{
    if (r->peers != NULL && r->peers->comm != NULL)
        (void)r->peers->nccl.CommDestroy(r->peers->comm);
}
