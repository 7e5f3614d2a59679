/* nccl.c: the operations of the nccl transport. */
#include "transport/nccl/internal.h"

#include "transport/host/map.h"
#include "transport/nccl/nccl.h"
#include "transport/peers.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- close ---- */

/* Whether a stream has come to its end within a second: what it uses must not go before. */
static bool has_settled(const slc_transport *transport, CUstream stream)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    for (int i = 0; stream != NULL && i < 1000; i++) {
        if (transport->cuda.StreamQuery(stream) != CUDA_ERROR_NOT_READY)
            return true;
        (void)nanosleep(&pause, NULL);
    }
    return stream == NULL;
}

/* The same of what the host's stream still reads of staging slots. */
static bool has_read(const slc_transport *transport)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    for (int i = 0; i < 1000 && !slc_caller_settled(&transport->caller); i++)
        (void)nanosleep(&pause, NULL);
    return slc_caller_settled(&transport->caller);
}

static void close_stream(const slc_transport *transport, CUstream stream)
{
    if (stream != NULL)
        (void)transport->cuda.StreamDestroy(stream);
}

static void close_peer(slc_transport *transport, slc_nccl_peer *peer)
{
    close_stream(transport, peer->stream);
    slc_peer_memory_clear(&peer->memory);
    if (peer->mailboxes != NULL)
        munmap(peer->mailboxes, slc_host_pages(peer->mailbox_bytes));
    slc_buffer_clear(&peer->landings);
    slc_release(peer->landing);
    slc_release(peer->offset);
    slc_moves_clear(&peer->moves, &transport->kernels);
    slc_release(peer->first);
    slc_copies_clear(&peer->copies);
}

static void close_memory(slc_transport *transport)
{
    bool settled = has_settled(transport, transport->stream) && has_settled(transport, transport->rescue) && has_read(transport) &&
                   has_settled(transport, transport->wire.moving) && has_settled(transport, transport->wire.copying);
    for (size_t i = 0; transport->peer != NULL && i < transport->npeers; i++)
        settled = has_settled(transport, transport->peer[i].stream) && settled;
    if (!settled) { /* the GPU may still write: better lost than given to somebody else */
        slc_say(&transport->config.log, SLUICE_LOG_ERROR,
                "nccl: the GPU did not come to rest; its buffers are left to the process' end");
        return;
    }
    slc_records_clear(transport);
    for (size_t i = 0; transport->peer != NULL && i < transport->npeers; i++)
        close_peer(transport, &transport->peer[i]);
    slc_wire_close(transport);
    close_stream(transport, transport->stream);
    close_stream(transport, transport->rescue);
    slc_caller_close(&transport->caller);
    slc_device_release(&transport->device, transport->words);
    slc_device_release(&transport->device, transport->staging);
}

static void nccl_close(slc_transport *transport)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (transport == NULL)
        return;
    if (transport->device.context != NULL && slc_device_enter(&transport->device, SLC_RUNTIME, &ignored) == SLUICE_OK) {
        slc_comm_close(&transport->wire.comm, &transport->config.log);
        close_memory(transport);
        slc_kernels_unload(&transport->kernels);
        slc_device_leave(&transport->device);
    }
    if (transport->listener >= 0)
        close(transport->listener);
    if (transport->mailbox_fd >= 0)
        close(transport->mailbox_fd);
    if (transport->mailbox != NULL)
        munmap(transport->mailbox, transport->mailbox_bytes);
    slc_pieces_clear(&transport->pieces);
    slc_device_close(&transport->device);
    slc_cuda_close(&transport->cuda);
    slc_release(transport->seen);
    slc_release(transport->home);
    slc_release(transport->slot);
    slc_release(transport->peer);
    slc_release(transport);
}

/* ---- open ---- */

static sluice_status make_peers(slc_transport *transport, sluice_error *error)
{
    const slc_program *program = transport->config.program;
    transport->peer = slc_allocate_zeroed(program->npeers, sizeof *transport->peer);
    if (transport->peer == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the peers of this rank", program->npeers * sizeof *transport->peer);
    transport->npeers = program->npeers;
    for (size_t i = 0; i < program->npeers; i++)
        transport->peer[i] = (slc_nccl_peer){ .rank = program->peer[i], .memory = { .device = &transport->device } };
    return slc_peers_index(&transport->config, &transport->slot, error);
}

/* The GPU of the first tensor that this rank registered; others are held to it. Without any, the GPU that the host is on. */
static sluice_status find_device(slc_transport *transport, int *ordinal, sluice_error *error)
{
    const slc_transport_config *config = &transport->config;
    const void *data = NULL;
    const char *name = "";
    *ordinal = 0;
    if (transport->worker && config->live->count > 0) {
        data = config->live->item[0].data;
        name = config->live->item[0].name;
    }
    for (size_t i = 0; !transport->worker && data == NULL && i < config->program->count; i++) {
        data = config->source[i];
        name = slc_plan_at(config->plan, i)->name;
    }
    if (data == NULL)
        return slc_caller_device(&transport->cuda, config->stream, ordinal, error);
    slc_place place;
    sluice_status status = slc_place_of(&transport->cuda, data, SLC_RUNTIME, &place, error);
    if (status == SLUICE_OK && !place.on_device)
        status = slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "%s (%p) must lie in GPU memory for transport nccl", name, data);
    *ordinal = place.ordinal;
    return status;
}

static sluice_status make_streams(slc_transport *transport, sluice_error *error)
{
    CUresult result = transport->cuda.StreamCreate(&transport->rescue, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS && transport->worker)
        result = transport->cuda.StreamCreate(&transport->stream, CU_STREAM_NON_BLOCKING);
    for (size_t i = 0; i < transport->npeers && result == CUDA_SUCCESS && !transport->worker; i++)
        result = transport->cuda.StreamCreate(&transport->peer[i].stream, CU_STREAM_NON_BLOCKING);
    return slc_nccl_check(transport, result, SLC_RUNTIME, "creating a stream", error);
}

static sluice_status make_words(slc_transport *transport, sluice_error *error)
{
    size_t bytes = transport->npeers * 2 * sizeof(uint64_t);
    sluice_status status = slc_device_allocate(&transport->device, bytes, "words between ranks", &transport->words, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, transport->cuda.MemsetD8Async(transport->words, 0, bytes, transport->rescue),
                                SLC_RUNTIME, "clearing the words", error);
    return status == SLUICE_OK ? slc_nccl_check(transport, transport->cuda.StreamSynchronize(transport->rescue), SLC_RUNTIME,
                                                "clearing the words", error)
                               : status;
}

/*
 * Everything that trainers write to: live tensors, the staging slots, this rank's words. Tensors that cannot be shared are
 * reached by wire, where that is allowed; all must lie on this GPU.
 */
static sluice_status share_memory(slc_transport *transport, sluice_error *error)
{
    const slc_live_set *live = transport->config.live;
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < live->count && status == SLUICE_OK; i++) {
        sluice_error why = SLUICE_ERROR_INIT;
        uintptr_t low, high;
        slc_live_span(&live->item[i], &low, &high);
        status = slc_pieces_add(&transport->device, &transport->pieces, (const void *)low, high - low, live->item[i].name, &why);
        bool elsewhere = status == SLUICE_UNSUPPORTED && transport->road != SLC_ROAD_LINK;
        if (elsewhere && transport->unshared.status == SLUICE_OK)
            slc_error_copy(&transport->unshared, &why);
        status = elsewhere ? SLUICE_OK : status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &why);
    }
    if (status == SLUICE_OK && transport->staging != 0)
        status = slc_pieces_add(&transport->device, &transport->pieces, (const void *)(uintptr_t)transport->staging,
                                transport->slots * transport->slot_bytes, "staging", error);
    if (status == SLUICE_OK)
        status =
            slc_pieces_add(&transport->device, &transport->pieces, (const void *)(uintptr_t)transport->words, 1, "words", error);
    slc_pieces_settle(&transport->pieces);
    return status;
}

static sluice_status open_worker(slc_transport *transport, sluice_error *error)
{
    transport->seen = slc_allocate_zeroed(transport->npeers, 2 * sizeof *transport->seen);
    if (transport->seen == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "a copy of the words", transport->npeers * 2 * sizeof *transport->seen);
    transport->mailbox_bytes = slc_host_pages(transport->npeers * sizeof *transport->mailbox);
    sluice_status status = slc_host_memfd("sluice-mailboxes", transport->mailbox_bytes, &transport->mailbox_fd, error);
    void *mailboxes = NULL;
    if (status == SLUICE_OK)
        status = slc_host_map(transport->mailbox_fd, transport->mailbox_bytes, true, transport->config.rank, "mailbox",
                              &mailboxes, error);
    transport->mailbox = mailboxes;
    return status == SLUICE_OK && transport->npeers > 0
               ? slc_local_listen(SLC_RUNTIME, transport->card.socket, &transport->listener, error)
               : status;
}

/* Copy engines do without. */
static sluice_status load_kernels(slc_transport *transport, sluice_error *error)
{
    sluice_error why = SLUICE_ERROR_INIT;
    sluice_status status = slc_kernels_load(&transport->device, &transport->kernels, &why);
    if (status == SLUICE_UNSUPPORTED)
        slc_say(&transport->config.log, SLUICE_LOG_WARN, "nccl: no kernels: %s", why.text);
    return status == SLUICE_OK || status == SLUICE_UNSUPPORTED ? SLUICE_OK : slc_error_copy(error, &why);
}

static sluice_status open_on_device(slc_transport *transport, sluice_error *error)
{
    int ordinal;
    sluice_status status = find_device(transport, &ordinal, error);
    if (status == SLUICE_OK)
        status = slc_device_open(&transport->cuda, ordinal, &transport->device, error);
    if (status == SLUICE_OK)
        status = slc_device_enter(&transport->device, SLC_RUNTIME, error);
    if (status != SLUICE_OK)
        return status;
    status = load_kernels(transport, error);
    if (status == SLUICE_OK)
        status = slc_caller_open(&transport->device, transport->config.stream, &transport->caller, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, transport->cuda.DeviceGetUuid(&transport->uuid, transport->device.device), SLC_RUNTIME,
                            "cuDeviceGetUuid", error);
    if (status == SLUICE_OK)
        status = make_streams(transport, error);
    if (status == SLUICE_OK)
        status = make_words(transport, error);
    slc_device_leave(&transport->device);
    return status == SLUICE_OK && transport->worker ? open_worker(transport, error) : status;
}

static sluice_status nccl_open(const slc_transport_config *config, slc_transport **out, sluice_error *error)
{
    *out = NULL;
    slc_transport *transport = slc_allocate_zeroed(1, sizeof *transport);
    if (transport == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the nccl transport", sizeof *transport);
    transport->config = *config;
    transport->worker = config->rank >= config->trainers;
    transport->listener = transport->mailbox_fd = -1;
    sluice_status status = slc_host_card_make(&transport->card, error);
    if (status == SLUICE_OK)
        status = make_peers(transport, error);
    if (status == SLUICE_OK)
        status = slc_road_open(transport, error);
    if (status == SLUICE_OK)
        status = slc_cuda_open(&transport->cuda, error);
    if (status == SLUICE_OK)
        status = open_on_device(transport, error);
    if (status != SLUICE_OK)
        nccl_close(transport);
    else
        *out = transport;
    return status;
}

static sluice_status nccl_staging(slc_transport *transport, size_t slots, size_t slot_bytes, void **memory, sluice_error *error)
{
    size_t bytes;
    *memory = NULL;
    transport->slots = slots;
    transport->slot_bytes = (slot_bytes + 511) / 512 * 512;
    if (!slc_multiply_size(slots, transport->slot_bytes, &bytes))
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "%zu staging slots of %zu bytes are more than there can be", slots,
                        slot_bytes);
    sluice_status status = slc_device_enter(&transport->device, SLC_RUNTIME, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_caller_slots(&transport->caller, slots, error);
    slc_device_leave(&transport->device);
    if (status == SLUICE_OK)
        status = slc_device_allocate(&transport->device, bytes, "staging slots", &transport->staging, error);
    for (size_t i = 0; i < slots && status == SLUICE_OK; i++)
        memory[i] = (void *)(uintptr_t)(transport->staging + i * transport->slot_bytes);
    return status;
}

/* ---- connect ---- */

static sluice_status connect_worker(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = share_memory(transport, error);
    if (status == SLUICE_OK)
        status = slc_live_remember(transport, error);
    if (status == SLUICE_OK)
        status = slc_landings_write(transport, error);
    if (status == SLUICE_OK)
        status = slc_nccl_serve(transport, wait, error);
    for (size_t i = 0; i < transport->npeers; i++)
        slc_buffer_clear(&transport->peer[i].landings);
    if (transport->listener >= 0)
        close(transport->listener);
    transport->listener = -1;
    return status;
}

static sluice_status connect_trainer(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < transport->npeers && status == SLUICE_OK; i++)
        if (!transport->peer[i].by_wire)
            status = slc_nccl_greet(transport, &transport->peer[i], wait, error);
    return status;
}

static sluice_status nccl_connect(slc_transport *transport, const unsigned char *const *card, const size_t *length,
                                  slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_RUNTIME);
    for (size_t i = 0; i < transport->npeers; i++) {
        sluice_status status = slc_road_choose(transport, &transport->peer[i], card[i], length[i], error);
        if (status != SLUICE_OK)
            return status;
    }
    sluice_status status = slc_device_enter(&transport->device, SLC_RUNTIME, error);
    if (status != SLUICE_OK)
        return status;
    status = transport->worker ? connect_worker(transport, &wait, error) : connect_trainer(transport, &wait, error);
    if (status == SLUICE_OK)
        status = slc_wire_prepare(transport, error);
    slc_device_leave(&transport->device);
    return status;
}

static slc_ways nccl_ways(const slc_transport *transport)
{
    slc_ways ways = { 0 };
    for (size_t i = 0; i < transport->npeers; i++) {
        if (transport->peer[i].by_wire)
            continue;
        ways.engine_bytes += transport->peer[i].engine_bytes;
        ways.kernel_bytes += transport->peer[i].kernel_bytes;
    }
    return ways;
}

/* ---- a batch ---- */

static sluice_status refuse_aborted(sluice_error *error)
{
    return slc_fail(error, SLUICE_CANCELLED, SLC_UPDATE, "the transport was aborted");
}

static sluice_status nccl_ready(slc_transport *transport, const uint32_t *param, size_t count, sluice_error *error)
{
    sluice_status status = slc_device_enter(&transport->device, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_caller_check(&transport->caller, SLC_UPDATE, error);
    if (status == SLUICE_OK && transport->worker)
        status = slc_live_check(transport, transport->config.program, param, count, error);
    slc_device_leave(&transport->device);
    return status;
}

static sluice_status nccl_begin(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    (void)deadline;
    (void)watch;
    if (transport->aborted)
        return refuse_aborted(error);
    sluice_status status = slc_device_enter(&transport->device, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_caller_begin(&transport->caller, error);
    if (status == SLUICE_OK && transport->worker)
        status = slc_nccl_check(transport, slc_caller_follow(&transport->caller, transport->stream), SLC_UPDATE,
                                "waiting for options.stream on the GPU", error);
    slc_device_leave(&transport->device);
    return status;
}

static void nccl_given_back(slc_transport *transport, const void *staging)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (transport->caller.stream == NULL || slc_device_enter(&transport->device, SLC_UPDATE, &ignored) != SLUICE_OK)
        return;
    slc_caller_gave(&transport->caller, (size_t)(((uint64_t)(uintptr_t)staging - transport->staging) / transport->slot_bytes));
    slc_device_leave(&transport->device);
}

static sluice_status nccl_run(slc_transport *transport, const slc_segment *segment, void *staging, slc_deadline deadline,
                              slc_watch watch, sluice_error *error)
{
    if (transport->aborted)
        return refuse_aborted(error);
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_UPDATE);
    sluice_status status = SLUICE_OK;
    if (transport->worker || transport->wire.open)
        status = slc_nccl_enter(transport, SLC_UPDATE, error);
    if (status == SLUICE_OK)
        status = transport->worker ? slc_link_receive(transport, segment, staging, &wait, error)
                                   : slc_link_send(transport, segment, &wait, error);
    if (status == SLUICE_OK)
        status = slc_wire_move(transport, segment, staging, &wait, error);
    slc_nccl_leave(transport);
    return status;
}

/* A trainer's: a worker makes no records. */
static sluice_status nccl_replay(slc_transport *transport, slc_record *record, slc_deadline deadline, slc_watch watch,
                                 sluice_error *error)
{
    if (transport->aborted)
        return refuse_aborted(error);
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_UPDATE);
    sluice_status status = slc_nccl_enter(transport, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_link_replay(transport, record, error);
    for (size_t i = 0; i < record->count && status == SLUICE_OK && transport->wire.open; i++)
        status = slc_wire_move(transport, &transport->config.program->segment[record->param[i]], NULL, &wait, error);
    slc_nccl_leave(transport);
    return status;
}

static sluice_status nccl_end(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    if (transport->aborted)
        return refuse_aborted(error);
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_UPDATE);
    sluice_status status = slc_nccl_enter(transport, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_wire_end(transport, &wait, error);
    if (status == SLUICE_OK)
        status = slc_link_end(transport, &wait, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, slc_caller_end(&transport->caller), SLC_UPDATE, "opening the gate in a graph of the host's",
                                error);
    slc_nccl_leave(transport);
    return status;
}

static void nccl_abort(slc_transport *transport)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (transport->aborted || slc_device_enter(&transport->device, SLC_UPDATE, &ignored) != SLUICE_OK)
        return;
    transport->aborted = true;
    slc_link_abort(transport);
    (void)slc_caller_end(&transport->caller);
    slc_wire_abort(transport);
    slc_device_leave(&transport->device);
}

const slc_transport_ops slc_nccl_transport = {
    .name = "nccl",
    .communicator = &slc_road_communicator,
    .open = nccl_open,
    .staging = nccl_staging,
    .must_match = slc_road_must_match,
    .card = slc_road_card,
    .connect = nccl_connect,
    .road = slc_road_name,
    .record = slc_nccl_record,
    .forget = slc_nccl_forget,
    .captured = slc_nccl_captured,
    .place = slc_nccl_place,
    .gate = slc_nccl_gate,
    .ready = nccl_ready,
    .ways = nccl_ways,
    .begin = nccl_begin,
    .given_back = nccl_given_back,
    .run = nccl_run,
    .replay = nccl_replay,
    .end = nccl_end,
    .abort = nccl_abort,
    .close = nccl_close,
};
