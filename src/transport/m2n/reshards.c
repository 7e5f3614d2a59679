/* reshards.c: see reshards.h. Owns the lists, the stream, the event and the memory of the trial. */
#include "transport/m2n/reshards.h"

#include <time.h>

enum { TRIAL = 8, SETTLE_MS = 1000 }; /* elements of 8 bytes */
static const uint64_t MARK = 0x736c756963652d6d;

/* ---- lists ---- */

static sluice_status find_spots(const slc_transport_config *config, slc_reshards *reshards, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    reshards->spot = slc_allocate_zeroed(reshards->calls.count + 1, sizeof *reshards->spot);
    if (reshards->spot == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "where reshards land", reshards->calls.count * sizeof *reshards->spot);
    for (size_t i = 0; i < reshards->calls.count && status == SLUICE_OK; i++) {
        const slc_m2n_call *call = &reshards->calls.call[i];
        slc_m2n_spot *spot = &reshards->spot[i];
        spot->live = SIZE_MAX;
        if (slc_plan_at(config->plan, call->param)->mode == SLC_MODE_DIRECT)
            status = slc_m2n_land(config->plan, call, config->live, config->rank, &spot->live, &spot->offset, error);
    }
    return status;
}

sluice_status slc_reshards_make(const slc_transport_config *config, slc_reshards **out, sluice_error *error)
{
    *out = NULL;
    slc_reshards *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the m2n transport", sizeof *made);
    made->whole = config->program;
    sluice_status status = slc_m2n_calls_make(config->plan, config->mix, slc_m2n_staging(), &made->calls, error);
    if (status == SLUICE_OK)
        status = slc_m2n_rest_make(config->program, &made->calls, &made->rest, error);
    if (status == SLUICE_OK && config->live != NULL)
        status = find_spots(config, made, error);
    if (status == SLUICE_OK && config->live == NULL) {
        made->known = slc_allocate_zeroed(config->program->count + 1, sizeof *made->known);
        if (made->known == NULL)
            status = slc_fail_memory(error, SLC_RUNTIME, "the sources that were looked at", config->program->count * sizeof *made->known);
    }
    if (status == SLUICE_OK)
        *out = made;
    else
        slc_reshards_free(made);
    return status;
}

void slc_reshards_free(slc_reshards *reshards)
{
    if (reshards == NULL)
        return;
    slc_orders_clear(&reshards->orders);
    slc_m2n_calls_clear(&reshards->calls);
    slc_m2n_rest_clear(&reshards->rest);
    slc_release(reshards->spot);
    slc_release((void *)reshards->known);
    slc_release(reshards);
}

/* ---- before the first batch ---- */

sluice_status slc_reshards_open(slc_transport *transport, sluice_error *error)
{
    slc_reshards *reshards = transport->reshards;
    const slc_transport_config *config = &transport->config;
    const slc_cuda *cuda = &transport->cuda;
    if (reshards->calls.count == 0)
        return SLUICE_OK;
    transport->everyone = true;
    sluice_status status = slc_epoch_open(config->keep, &transport->device, config->max_cta, &config->log, &reshards->member, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_nccl_check(transport, cuda->EventCreate(&reshards->moved, CU_EVENT_DISABLE_TIMING), SLC_RUNTIME, "creating an event", error);
    if (status == SLUICE_OK)
        status = slc_device_allocate(&transport->device, TRIAL * sizeof(uint64_t), "a first reshard", &reshards->trial, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, cuda->MemsetD8Async(reshards->trial, 0, TRIAL * sizeof(uint64_t), reshards->member->stream),
                                SLC_RUNTIME, "clearing what a first reshard moves", error);
    return status;
}

/* ---- a submission ---- */

/* All that is gathered; the GPU is through with it on return. */
static sluice_status submit(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    slc_reshards *reshards = transport->reshards;
    sluice_status status = slc_epoch_submit(reshards->member, &reshards->orders, transport->config.grouped, wait, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, transport->cuda.EventRecord(reshards->moved, reshards->member->stream), wait->stage,
                                "recording an event", error);
    if (status == SLUICE_OK)
        status = slc_wire_await(transport, reshards->moved, wait, error);
    if (status != SLUICE_OK)
        reshards->member->broken = true;
    return status;
}

/* The first one in a batch comes behind what the host has queued on its own stream. */
static sluice_status flush(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    slc_reshards *reshards = transport->reshards;
    slc_wait own = slc_wait_sooner(wait);
    sluice_status status = SLUICE_OK;
    if (reshards->orders.count == 0)
        return SLUICE_OK;
    if (!reshards->active)
        status = slc_nccl_check(transport, slc_caller_follow(&transport->caller, reshards->member->stream), SLC_UPDATE,
                                "waiting for options.stream on the GPU", error);
    reshards->active = true;
    return status == SLUICE_OK ? submit(transport, &own, error) : status;
}

sluice_status slc_reshards_try(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    slc_reshards *reshards = transport->reshards;
    const slc_cuda *cuda = &transport->cuda;
    const slc_transport_config *config = &transport->config;
    void *memory = (void *)(uintptr_t)reshards->trial;
    const slc_m2n_side whole = { .placement = { SLC_M2N_WHOLE, 0 }, .held = { TRIAL } };
    slc_order order = { .call = { .ndim = 1, .item = sizeof(uint64_t), .source = whole, .destination = whole },
                        .source = transport->worker ? NULL : memory,
                        .destination = transport->worker ? memory : NULL };
    order.call.source.dims[0] = config->trainers;
    order.call.destination.start = config->trainers;
    order.call.destination.dims[0] = config->workers;
    order.call.source.dims[1] = order.call.destination.dims[1] = 1;
    CUresult result = transport->worker ? CUDA_SUCCESS
                                        : cuda->StreamWriteValue64(reshards->member->stream, reshards->trial, MARK, CU_STREAM_WRITE_VALUE_DEFAULT);
    sluice_status status = slc_nccl_check(transport, result, SLC_RUNTIME, "writing what is moved first", error);
    if (status == SLUICE_OK)
        status = slc_orders_add(&reshards->orders, &order, error);
    if (status == SLUICE_OK)
        status = submit(transport, wait, error);
    if (status != SLUICE_OK || !transport->worker)
        return status;
    uint64_t came = 0;
    result = cuda->MemcpyAsync((CUdeviceptr)(uintptr_t)&came, reshards->trial, sizeof came, reshards->member->stream);
    if (result == CUDA_SUCCESS)
        result = cuda->StreamSynchronize(reshards->member->stream);
    status = slc_nccl_check(transport, result, SLC_RUNTIME, "reading what was moved first", error);
    return status == SLUICE_OK && came != MARK
               ? slc_fail(error, SLUICE_SYSTEM, SLC_RUNTIME, "nccl_m2n did not bring what the trainers sent first")
               : status;
}

/* ---- a batch ---- */

static bool is_of(const slc_m2n_side *side, int32_t rank)
{
    return rank >= side->start && rank - side->start < side->dims[0] * side->dims[1];
}

sluice_status slc_reshards_move(slc_transport *transport, uint32_t param, void *staging, slc_wait *wait, sluice_error *error)
{
    slc_reshards *reshards = transport->reshards;
    const slc_transport_config *config = &transport->config;
    const slc_param *planned = slc_plan_at(config->plan, param);
    sluice_status status = SLUICE_OK;
    for (size_t i = reshards->calls.first[param]; i < reshards->calls.first[param + 1] && status == SLUICE_OK; i++) {
        const slc_m2n_call *call = &reshards->calls.call[i];
        slc_order order = { .name = planned->name, .call = *call };
        if (transport->worker && is_of(&call->destination, config->rank)) {
            const slc_m2n_spot *spot = &reshards->spot[i];
            unsigned char *live = spot->live == SIZE_MAX ? NULL : config->live->item[spot->live].data;
            order.destination = planned->mode == SLC_MODE_FULL ? staging : live == NULL ? NULL : live + spot->offset;
        } else if (!transport->worker && is_of(&call->source, config->rank)) {
            status = slc_wire_check_source(transport, reshards->known, param, error);
            order.source = (char *)(uintptr_t)config->source[param] + call->offset;
        }
        if (status == SLUICE_OK)
            status = slc_orders_add(&reshards->orders, &order, error);
    }
    return status == SLUICE_OK && planned->mode == SLC_MODE_FULL ? flush(transport, wait, error) : status;
}

sluice_status slc_reshards_end(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = flush(transport, wait, error);
    transport->reshards->active = false;
    return status;
}

/* ---- the end ---- */

static bool settles(const slc_transport *transport, CUstream stream)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    for (int i = 0; i < SETTLE_MS && stream != NULL; i++) {
        if (transport->cuda.StreamQuery(stream) != CUDA_ERROR_NOT_READY)
            return true;
        (void)nanosleep(&pause, NULL);
    }
    return stream == NULL;
}

void slc_reshards_close(slc_transport *transport, bool broken)
{
    slc_reshards *reshards = transport->reshards;
    if (reshards->member == NULL)
        return;
    if (broken || reshards->member->broken)
        slc_epoch_break(reshards->member);
    bool settled = settles(transport, reshards->member->stream) && settles(transport, transport->wire.moving);
    transport->wire.comm.handle = NULL; /* the member's */
    slc_epoch_leave(transport->config.keep, reshards->member, &transport->cuda, settled, &transport->config.log);
    reshards->member = NULL;
    if (!settled) /* the GPU may still write */
        return;
    if (reshards->moved != NULL)
        (void)transport->cuda.EventDestroy(reshards->moved);
    slc_device_release(&transport->device, reshards->trial);
}

void slc_reshards_abort(slc_transport *transport)
{
    slc_m2n_member *member = transport->reshards->member;
    if (member == NULL)
        return;
    slc_epoch_break(member);
    if (settles(transport, member->stream) && settles(transport, transport->wire.moving))
        transport->wire.comm.handle = NULL; /* the member's, until the close */
    else
        slc_reshards_close(transport, true);
}
