/* limit.c: what the copy engines of the trainer's GPU do by themselves: the same bytes, issued in one call, and nothing else. */
#include "base/clock.h"
#include "rank.h"

#include <stdlib.h>

typedef struct batch {
    size_t nspans, nboxes;
    CUdeviceptr *to, *from;
    size_t *bytes;
    CUDA_MEMCPY3D_BATCH_OP *box;
} batch;

static batch make_batch(const rank *r, const work *w)
{
    batch b = { .to = need(calloc(w->npieces, sizeof *b.to)),
                .from = need(calloc(w->npieces, sizeof *b.from)),
                .bytes = need(calloc(w->npieces, sizeof *b.bytes)),
                .box = need(calloc(w->npieces, sizeof *b.box)) };
    for (size_t i = 0; i < w->npieces; i++) {
        const piece *p = &w->piece[i];
        if (p->height == 1 || p->width == p->pitch) {
            b.from[b.nspans] = r->source + p->from;
            b.to[b.nspans] = r->limit + p->to;
            b.bytes[b.nspans++] = p->width * p->height;
            continue;
        }
        CUDA_MEMCPY3D_BATCH_OP *box = &b.box[b.nboxes++];
        box->srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        box->src.type = box->dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
        box->src.op.ptr.ptr = r->source + p->from;
        box->src.op.ptr.rowLength = p->pitch;
        box->dst.op.ptr.ptr = r->limit + p->to;
        box->dst.op.ptr.rowLength = p->width;
        box->src.op.ptr.layerHeight = box->dst.op.ptr.layerHeight = p->height;
        box->extent = (CUextent3D){ .width = p->width, .height = p->height, .depth = 1 };
    }
    return b;
}

static void drop_batch(batch *b)
{
    free(b->to), free(b->from), free(b->bytes), free(b->box);
}

/* The worker's memory as the trainer reaches it; opened once. */
void limit_open(rank *r, const course *row)
{
    (void)row;
    const slc_cuda *cuda = &r->gpu.cuda;
    size_t most = 0;
    for (work_id id = 0; id < WORKS; id++)
        most = r->work[id].live_bytes > most ? r->work[id].live_bytes : most;
    bool first = r->limit == 0;
    if (first && r->side == WORKER) {
        r->limit = gpu_allocate(&r->gpu, most, "what bare copies write");
        must(&r->gpu, cuda->IpcGetMemHandle(&r->all->limit_memory, r->limit), "sharing memory");
    }
    meet(r->all, SIDES);
    if (first && r->side == TRAINER)
        must(&r->gpu, cuda->IpcOpenMemHandle(&r->limit, r->all->limit_memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             "mapping memory");
}

static CUresult issue(const rank *r, batch *b)
{
    const slc_cuda *cuda = &r->gpu.cuda;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    size_t first = 0, failed = SIZE_MAX;
    CUresult result = CUDA_SUCCESS;
    if (b->nspans > 0)
        result = cuda->MemcpyBatchAsync(b->to, b->from, b->bytes, b->nspans, &attributes, &first, 1, &failed, r->gpu.stream);
    if (result == CUDA_SUCCESS && b->nboxes > 0)
        result = cuda->Memcpy3DBatchAsync(b->nboxes, b->box, &failed, 0, r->gpu.stream);
    return result;
}

double limit_run(rank *r, const course *row, outcome *out, int sample)
{
    const work *w = &r->work[row->work];
    batch b = r->side == TRAINER ? make_batch(r, w) : (batch){ 0 };
    meet(r->all, SIDES);
    if (r->side == WORKER)
        return 0;
    double began = slc_now_s();
    CUresult result = row->variant == LIMIT_ONE_COPY
                          ? r->gpu.cuda.MemcpyAsync(r->limit, r->source, w->source_bytes, r->gpu.stream)
                          : issue(r, &b);
    double issued = slc_now_s();
    if (result == CUDA_SUCCESS)
        result = r->gpu.cuda.StreamSynchronize(r->gpu.stream);
    double ended = slc_now_s();
    must(&r->gpu, result, "bare copies");
    drop_batch(&b);
    if (sample >= 0)
        out->sample[ISSUE_US][sample] = (issued - began) * 1e6;
    return ended - began;
}
