/*
 * record.c: batches that come again and again. What a trainer would gather and launch in one is gathered once, and launched
 * as it is in each replay. By the wire nothing is made ready: its parts are gathered anew in each replay, from where the
 * sources lie then. A worker does too little in a batch to make it ready; it looks, before each, whether its live
 * tensors' memory is what its peers have mapped. Owns the records of a transport.
 */
#include "transport/nccl/internal.h"

#include <stdlib.h>

static const char RECORD[] = "record";

/* ---- the worker ---- */

/* What a live tensor lies in. Those of one allocation go with it, all at once: one of them, `first`, speaks for all. */
typedef struct slc_home {
    uint64_t id;
    uint32_t first;
    uint64_t looked; /* of the first: the last look at a batch in which it was asked for */
} slc_home;

static int by_id(const void *a, const void *b)
{
    const slc_home *x = *(const slc_home *const *)a, *y = *(const slc_home *const *)b;
    return x->id != y->id ? (x->id > y->id) - (x->id < y->id) : (x > y) - (x < y);
}

static sluice_status share_homes(slc_transport *transport, sluice_error *error)
{
    size_t count = transport->config.live->count;
    slc_home **sorted = slc_allocate(count * sizeof *sorted);
    if (sorted == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "what live tensors lie in", count * sizeof *sorted);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &transport->home[i];
    qsort(sorted, count, sizeof *sorted, by_id);
    for (size_t i = 1; i < count; i++)
        if (sorted[i]->id == sorted[i - 1]->id && sorted[i]->first != SLC_STAGING && sorted[i - 1]->first != SLC_STAGING)
            sorted[i]->first = sorted[i - 1]->first;
    for (size_t i = 0; i < count; i++)
        if (transport->home[i].first == SLC_STAGING)
            transport->home[i].first = (uint32_t)i;
    slc_release((void *)sorted);
    return SLUICE_OK;
}

sluice_status slc_live_remember(slc_transport *transport, sluice_error *error)
{
    const slc_live_set *live = transport->config.live;
    transport->home = slc_allocate_zeroed(live->count, sizeof *transport->home);
    if (transport->home == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "what live tensors lie in", live->count * sizeof *transport->home);
    for (size_t i = 0; i < live->count; i++) {
        slc_place place;
        sluice_status status = slc_place_of(&transport->cuda, live->item[i].data, SLC_RUNTIME, &place, error);
        if (status != SLUICE_OK)
            return status;
        /* Of VMM, pieces are unmapped one by one. */
        transport->home[i] = (slc_home){ .id = slc_memory_id(&transport->cuda, live->item[i].data), .first = place.ipc ? (uint32_t)i : SLC_STAGING };
    }
    return share_homes(transport, error);
}

static sluice_status check_one(slc_transport *transport, uint32_t buffer, sluice_error *error)
{
    const slc_live *live = &transport->config.live->item[buffer];
    slc_home *first = &transport->home[transport->home[buffer].first];
    if (first->looked == transport->looked)
        return SLUICE_OK;
    first->looked = transport->looked;
    return slc_memory_id(&transport->cuda, live->data) == first->id
               ? SLUICE_OK
               : slc_fail(error, SLUICE_STATE, SLC_UPDATE,
                          "live tensor %s (%p) no longer lies in the memory that peers have mapped since init: it was freed", live->name,
                          (const void *)live->data);
}

sluice_status slc_live_check(slc_transport *transport, const slc_program *program, const uint32_t *param, size_t count,
                             sluice_error *error)
{
    uint32_t last = SLC_STAGING;
    transport->looked++;
    for (size_t i = 0; i < count; i++) {
        const slc_segment *segment = &program->segment[param[i]];
        for (uint32_t c = 0; c < segment->ncopies + segment->nfills; c++) {
            uint32_t buffer = c < segment->ncopies ? segment->copy[c].buffer : segment->fill[c - segment->ncopies].buffer;
            if (buffer == last || buffer == SLC_STAGING)
                continue;
            last = buffer;
            sluice_status status = check_one(transport, buffer, error);
            if (status != SLUICE_OK)
                return status;
        }
    }
    return SLUICE_OK;
}

/* ---- in a graph of the host's ---- */

sluice_status slc_nccl_captured(slc_transport *transport, bool *captured, sluice_error *error)
{
    sluice_status status = slc_device_enter(&transport->device, RECORD, error);
    *captured = false;
    if (status != SLUICE_OK)
        return status;
    status = slc_caller_captured(&transport->caller, RECORD, captured, error);
    slc_device_leave(&transport->device);
    return status;
}

/* What this thread does here is none of the host's capture, whose mode would forbid it. */
static CUstreamCaptureMode exchange_mode(const slc_transport *transport, CUstreamCaptureMode mode)
{
    (void)transport->cuda.ThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

sluice_status slc_nccl_place(slc_transport *transport, sluice_error *error)
{
    slc_gate *gate;
    sluice_status status = slc_device_enter(&transport->device, RECORD, error);
    if (status != SLUICE_OK)
        return status;
    CUstreamCaptureMode mode = exchange_mode(transport, CU_STREAM_CAPTURE_MODE_RELAXED);
    status = slc_gate_of(transport->config.keep, &transport->device, &gate, error);
    (void)exchange_mode(transport, mode);
    if (status == SLUICE_OK)
        status = slc_gate_place(gate, transport->caller.stream, error);
    slc_device_leave(&transport->device);
    return status;
}

sluice_status slc_nccl_gate(slc_transport *transport, sluice_error *error)
{
    slc_gate *gate;
    sluice_status status = slc_device_enter(&transport->device, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_gate_of(transport->config.keep, &transport->device, &gate, error);
    if (status == SLUICE_OK)
        status = slc_gate_close(gate, error);
    if (status == SLUICE_OK)
        transport->caller.gate = gate;
    slc_device_leave(&transport->device);
    return status;
}

/* ---- the trainer ---- */

static void clear(const slc_transport *transport, slc_record *record)
{
    for (size_t i = 0; i < record->nto; i++) {
        slc_sending *to = &record->to[i];
        if (to->graph != NULL)
            (void)transport->cuda.GraphExecDestroy(to->graph);
        for (size_t k = 0; k < to->count; k++)
            slc_copies_clear(&to->launch[k].copies);
        slc_release(to->launch);
    }
    slc_release(record->to);
    slc_release(record->param);
    slc_release(record);
}

/* Whether the last launch is of the kernel alone, and so is what comes behind it: then it is one launch. */
static bool goes_on(const slc_sending *to, const slc_nccl_peer *peer)
{
    const slc_launch *last = to->count == 0 ? NULL : &to->launch[to->count - 1];
    return last != NULL && slc_copies_count(&last->copies) == 0 && slc_copies_count(&peer->copies) == 0 && last->end_move == peer->first_move;
}

sluice_status slc_record_take(slc_record *record, slc_nccl_peer *peer, sluice_error *error)
{
    slc_sending *to = record->to;
    while (to < record->to + record->nto && to->peer != peer)
        to++;
    if (to == record->to + record->nto) /* there is room for every peer */
        record->to[record->nto++].peer = peer;
    if (slc_copies_count(&peer->copies) == 0 && peer->first_move == peer->end_move)
        return SLUICE_OK;
    if (goes_on(to, peer)) {
        to->launch[to->count - 1].end_move = peer->end_move;
        peer->first_move = peer->end_move;
        return SLUICE_OK;
    }
    if (!SLC_ROOM(to->launch, to->capacity, to->count, 4))
        return slc_fail_memory(error, RECORD, "launches", (to->count + 1) * sizeof *to->launch);
    slc_launch *launch = &to->launch[to->count];
    *launch = (slc_launch){ .first_move = peer->first_move, .end_move = peer->end_move };
    peer->first_move = peer->end_move;
    sluice_status status = slc_copies_take(&peer->copies, &launch->copies, error);
    to->count += status == SLUICE_OK;
    return status;
}

/* One call for all copies of a worker, where the driver has none for many. */
static sluice_status make_graph(const slc_transport *transport, slc_sending *to, sluice_error *error)
{
    const slc_cuda *cuda = &transport->cuda;
    CUgraph graph = NULL;
    CUresult result = cuda->StreamBeginCapture(to->peer->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (result != CUDA_SUCCESS)
        return slc_nccl_check(transport, result, RECORD, "capturing copies", error);
    for (size_t i = 0; i < to->count && result == CUDA_SUCCESS; i++)
        result = slc_copies_issue(cuda, &to->launch[i].copies, to->peer->stream);
    CUresult ended = cuda->StreamEndCapture(to->peer->stream, &graph);
    result = result == CUDA_SUCCESS ? ended : result;
    if (result == CUDA_SUCCESS)
        result = cuda->GraphInstantiateWithFlags(&to->graph, graph, 0);
    if (graph != NULL)
        (void)cuda->GraphDestroy(graph);
    return slc_nccl_check(transport, result, RECORD, "a graph of copies", error);
}

static bool stages_any(const slc_transport *transport, const uint32_t *param, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (slc_plan_at(transport->config.plan, param[i])->mode == SLC_MODE_FULL)
            return true;
    return false;
}

static sluice_status gather(slc_transport *transport, const uint32_t *param, size_t count, slc_record *record, sluice_error *error)
{
    const slc_watch nobody = { .check = NULL };
    slc_wait wait = slc_nccl_wait(transport, slc_deadline_in(1), nobody, RECORD); /* nothing here waits */
    sluice_status status = SLUICE_OK;
    transport->recording = record;
    for (size_t i = 0; i < count && status == SLUICE_OK; i++)
        status = slc_link_send(transport, &transport->config.program->segment[param[i]], &wait, error);
    sluice_status ended = slc_link_record_end(transport, status == SLUICE_OK ? error : NULL);
    transport->recording = NULL;
    return status == SLUICE_OK ? ended : status;
}

sluice_status slc_nccl_record(slc_transport *transport, const uint32_t *param, size_t count, slc_record **record, sluice_error *error)
{
    *record = NULL;
    if (transport->worker || stages_any(transport, param, count))
        return SLUICE_OK;
    sluice_status status = slc_nccl_enter(transport, RECORD, error);
    if (status != SLUICE_OK)
        return status;
    slc_record *made = slc_allocate_zeroed(1, sizeof *made);
    slc_sending *to = slc_allocate_zeroed(transport->npeers, sizeof *to);
    uint32_t *list = slc_allocate_zeroed(count, sizeof *list);
    if (made == NULL || to == NULL || list == NULL) {
        slc_release(made);
        slc_release(to);
        slc_release(list);
        slc_nccl_leave(transport);
        return slc_fail_memory(error, RECORD, "a record", transport->npeers * sizeof *to + count * sizeof *list);
    }
    *made = (slc_record){ .param = list, .count = count, .to = to };
    for (size_t i = 0; i < count; i++)
        list[i] = param[i];
    CUstreamCaptureMode mode = exchange_mode(transport, CU_STREAM_CAPTURE_MODE_RELAXED);
    status = gather(transport, param, count, made, error);
    for (size_t i = 0; i < made->nto && status == SLUICE_OK && transport->cuda.MemcpyBatchAsync == NULL; i++)
        if (made->to[i].count > 0)
            status = make_graph(transport, &made->to[i], error);
    (void)exchange_mode(transport, mode);
    if (status != SLUICE_OK) {
        clear(transport, made);
    } else {
        made->next = transport->record;
        *record = transport->record = made;
    }
    slc_nccl_leave(transport);
    return status;
}

void slc_nccl_forget(slc_transport *transport, slc_record *record)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    slc_record **at = &transport->record;
    while (*at != NULL && *at != record)
        at = &(*at)->next;
    if (*at == NULL || slc_device_enter(&transport->device, RECORD, &ignored) != SLUICE_OK)
        return;
    *at = record->next;
    clear(transport, record);
    slc_device_leave(&transport->device);
}

void slc_records_clear(slc_transport *transport)
{
    while (transport->record != NULL) {
        slc_record *next = transport->record->next;
        clear(transport, transport->record);
        transport->record = next;
    }
}
