/* copies.c: see copies.h. Owns the arrays of a gathering. */
#include "transport/nccl/copies.h"

#include "base/error.h"
#include "base/memory.h"

/* ---- cutting ---- */

/* Whether dim `outer` can be the layers of rows that are dim `rows`: whole rows apart, none inside another. */
static bool are_layers(const slc_stride *outer, const slc_stride *rows)
{
    return rows->source > 0 && rows->destination > 0 && outer->source % rows->source == 0 && outer->destination % rows->destination == 0 &&
           outer->source / rows->source >= rows->count && outer->destination / rows->destination >= rows->count;
}

sluice_status slc_landing_cut(const slc_stride *dim, uint32_t ndim, const slc_landing *first, slc_take_landing take,
                              void *context, sluice_error *error)
{
    const int64_t widest_pitch = INT32_MAX;
    slc_landing landing = *first;
    uint32_t outer = ndim;
    if (outer > 0 && dim[outer - 1].source <= widest_pitch && dim[outer - 1].destination <= widest_pitch) {
        const slc_stride *rows = &dim[--outer];
        landing.height = rows->count;
        landing.from_pitch = rows->source;
        landing.to_pitch = rows->destination;
        if (outer > 0 && are_layers(&dim[outer - 1], rows)) {
            const slc_stride *layers = &dim[--outer];
            landing.depth = layers->count;
            landing.from_layer = layers->source / rows->source;
            landing.to_layer = layers->destination / rows->destination;
        }
    }
    int64_t index[SLC_MAX_DIMS] = { 0 };
    for (;;) {
        sluice_status status = take(context, &landing, error);
        if (status != SLUICE_OK)
            return status;
        uint32_t d = outer;
        while (d > 0) {
            const slc_stride *step = &dim[d - 1];
            landing.from += step->source;
            landing.to += (uint64_t)step->destination;
            if (++index[d - 1] < step->count)
                break;
            landing.from -= step->source * step->count;
            landing.to -= (uint64_t)(step->destination * step->count);
            index[--d] = 0;
        }
        if (d == 0)
            return SLUICE_OK;
    }
}

/* ---- gathering ---- */

sluice_status slc_copies_make(slc_copies *copies, size_t capacity, sluice_error *error)
{
    *copies = (slc_copies){ .capacity = capacity,
                            .to = slc_allocate_zeroed(capacity, sizeof *copies->to),
                            .from = slc_allocate_zeroed(capacity, sizeof *copies->from),
                            .bytes = slc_allocate_zeroed(capacity, sizeof *copies->bytes),
                            .box = slc_allocate_zeroed(capacity, sizeof *copies->box) };
    if (copies->to != NULL && copies->from != NULL && copies->bytes != NULL && copies->box != NULL)
        return SLUICE_OK;
    slc_copies_clear(copies);
    return slc_fail_memory(error, "runtime", "the copies of a launch", capacity * (3 * sizeof(size_t) + sizeof *copies->box));
}

sluice_status slc_copies_take(slc_copies *from, slc_copies *to, sluice_error *error)
{
    size_t nspans = from->nspans, nboxes = from->nboxes;
    sluice_status status = slc_copies_make(to, nspans > nboxes ? nspans : nboxes, error);
    from->nspans = from->nboxes = 0;
    if (status != SLUICE_OK)
        return status;
    to->nspans = nspans;
    to->nboxes = nboxes;
    for (size_t i = 0; i < nspans; i++) {
        to->to[i] = from->to[i];
        to->from[i] = from->from[i];
        to->bytes[i] = from->bytes[i];
    }
    for (size_t i = 0; i < nboxes; i++)
        to->box[i] = from->box[i];
    return SLUICE_OK;
}

void slc_copies_clear(slc_copies *copies)
{
    slc_release(copies->to);
    slc_release(copies->from);
    slc_release(copies->bytes);
    slc_release(copies->box);
    *copies = (slc_copies){ 0 };
}

void slc_copies_add(slc_copies *copies, const slc_landing *landing, CUdeviceptr to, CUdeviceptr from)
{
    if (landing->height == 1 && landing->depth == 1) {
        copies->from[copies->nspans] = from;
        copies->to[copies->nspans] = to;
        copies->bytes[copies->nspans++] = (size_t)landing->width;
        return;
    }
    CUDA_MEMCPY3D_BATCH_OP *box = &copies->box[copies->nboxes++];
    *box = (CUDA_MEMCPY3D_BATCH_OP){ .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    box->src.type = box->dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    box->src.op.ptr.ptr = from;
    box->src.op.ptr.rowLength = (size_t)landing->from_pitch;
    box->src.op.ptr.layerHeight = landing->depth == 1 ? (size_t)landing->height : (size_t)landing->from_layer;
    box->dst.op.ptr.ptr = to;
    box->dst.op.ptr.rowLength = (size_t)landing->to_pitch;
    box->dst.op.ptr.layerHeight = landing->depth == 1 ? (size_t)landing->height : (size_t)landing->to_layer;
    box->extent =
        (CUextent3D){ .width = (size_t)landing->width, .height = (size_t)landing->height, .depth = (size_t)landing->depth };
}

/* ---- launching ---- */

static CUresult launch_spans(const slc_cuda *cuda, slc_copies *copies, CUstream stream)
{
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    size_t first = 0, failed = SIZE_MAX;
    if (copies->nspans == 0)
        return CUDA_SUCCESS;
    if (cuda->MemcpyBatchAsync != NULL)
        return cuda->MemcpyBatchAsync(copies->to, copies->from, copies->bytes, copies->nspans, &attributes, &first, 1, &failed,
                                      stream);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < copies->nspans && result == CUDA_SUCCESS; i++)
        result = cuda->MemcpyAsync(copies->to[i], copies->from[i], copies->bytes[i], stream);
    return result;
}

static CUresult launch_box(const slc_cuda *cuda, const CUDA_MEMCPY3D_BATCH_OP *box, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t layer = 0; layer < box->extent.depth && result == CUDA_SUCCESS; layer++) {
        const CUDA_MEMCPY2D plane = {
            .srcMemoryType = CU_MEMORYTYPE_DEVICE,
            .srcDevice = box->src.op.ptr.ptr + layer * box->src.op.ptr.layerHeight * box->src.op.ptr.rowLength,
            .srcPitch = box->src.op.ptr.rowLength,
            .dstMemoryType = CU_MEMORYTYPE_DEVICE,
            .dstDevice = box->dst.op.ptr.ptr + layer * box->dst.op.ptr.layerHeight * box->dst.op.ptr.rowLength,
            .dstPitch = box->dst.op.ptr.rowLength,
            .WidthInBytes = box->extent.width,
            .Height = box->extent.height,
        };
        result = cuda->Memcpy2DAsync(&plane, stream);
    }
    return result;
}

static CUresult launch_boxes(const slc_cuda *cuda, slc_copies *copies, CUstream stream)
{
    size_t failed = SIZE_MAX;
    if (copies->nboxes == 0)
        return CUDA_SUCCESS;
    if (cuda->Memcpy3DBatchAsync != NULL)
        return cuda->Memcpy3DBatchAsync(copies->nboxes, copies->box, &failed, 0, stream);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < copies->nboxes && result == CUDA_SUCCESS; i++)
        result = launch_box(cuda, &copies->box[i], stream);
    return result;
}

CUresult slc_copies_issue(const slc_cuda *cuda, slc_copies *copies, CUstream stream)
{
    CUresult result = launch_spans(cuda, copies, stream);
    return result == CUDA_SUCCESS ? launch_boxes(cuda, copies, stream) : result;
}

CUresult slc_copies_launch(const slc_cuda *cuda, slc_copies *copies, CUstream stream)
{
    CUresult result = slc_copies_issue(cuda, copies, stream);
    copies->nspans = copies->nboxes = 0;
    return result;
}
