/*
 * m2n.c: the operations of transport m2n. It is transport nccl over the rest of the program, which also has the GPU, the host's
 * stream, staging and padding, and beside that the reshards; see transport/nccl/internal.h. Where nothing is left to nccl, its
 * program is empty and no rank meets another but by the communicator.
 */
#include "transport/m2n/m2n.h"

#include "transport/m2n/reshards.h"
#include "transport/nccl/nccl.h"

static const slc_transport_ops *const nccl = &slc_nccl_transport;

/* ---- open and close ---- */

static void m2n_close(slc_transport *transport)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (transport == NULL)
        return;
    slc_reshards *reshards = transport->reshards;
    if (slc_device_enter(&transport->device, SLC_RUNTIME, &ignored) == SLUICE_OK) {
        slc_reshards_close(transport, transport->wire.comm.broken);
        slc_device_leave(&transport->device);
    }
    nccl->close(transport);
    slc_reshards_free(reshards);
}

static sluice_status open_reshards(slc_transport *transport, sluice_error *error)
{
    sluice_status status = slc_device_enter(&transport->device, SLC_RUNTIME, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_reshards_open(transport, error);
    slc_device_leave(&transport->device);
    return status;
}

static sluice_status m2n_open(const slc_transport_config *config, slc_transport **out, sluice_error *error)
{
    slc_transport_config rest = *config;
    slc_reshards *reshards;
    *out = NULL;
    if (config->no_sm)
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "no_sm (true) and transport m2n do not go together: nccl_m2n's kernels take SMs");
    sluice_status status = slc_reshards_make(config, &reshards, error);
    if (status != SLUICE_OK)
        return status;
    rest.program = &reshards->rest.program;
    slc_transport *transport;
    slc_m2n_file file; /* found before transport nccl may look for an NCCL of its own */
    if (reshards->calls.count > 0)
        status = slc_m2n_find(NULL, &file, error);
    if (status == SLUICE_OK)
        status = nccl->open(&rest, &transport, error);
    if (status != SLUICE_OK) {
        slc_reshards_free(reshards);
        return status;
    }
    transport->reshards = reshards;
    status = open_reshards(transport, error);
    if (status != SLUICE_OK)
        m2n_close(transport);
    else
        *out = transport;
    return status;
}

static sluice_status m2n_must_match(slc_transport *transport, slc_buffer *lines, sluice_error *error)
{
    slc_buffer_text(lines, "m2n_api=%d\nmix=%d\ngrouped=%d\n", SLC_M2N_API, transport->config.mix, transport->config.grouped);
    slc_m2n_environment(lines);
    if (transport->road == SLC_ROAD_LINK && transport->everyone) /* else it is told below */
        slc_nccl_environment(lines);
    return nccl->must_match(transport, lines, error);
}

/* ---- connect ---- */

/* The cards of those peers that nccl has. */
static sluice_status m2n_connect(slc_transport *transport, const unsigned char *const *card, const size_t *length,
                                 slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    const slc_reshards *reshards = transport->reshards;
    size_t count = reshards->rest.program.npeers;
    const unsigned char **inner = slc_allocate_zeroed(count + 1, sizeof *inner);
    size_t *lengths = slc_allocate_zeroed(count + 1, sizeof *lengths);
    sluice_status status = inner == NULL || lengths == NULL ? slc_fail_memory(error, SLC_RUNTIME, "cards", count * sizeof *inner) : SLUICE_OK;
    for (size_t i = 0; i < reshards->whole->npeers && status == SLUICE_OK; i++)
        if (reshards->rest.inner[i] != SIZE_MAX) {
            inner[reshards->rest.inner[i]] = card[i];
            lengths[reshards->rest.inner[i]] = length[i];
        }
    if (status == SLUICE_OK)
        status = nccl->connect(transport, inner, lengths, deadline, watch, error);
    slc_release((void *)inner);
    slc_release(lengths);
    return status;
}

static const char *m2n_road(const slc_transport *transport, size_t peer)
{
    const slc_m2n_rest *rest = &transport->reshards->rest;
    if (rest->inner[peer] == SIZE_MAX)
        return "m2n";
    const char *road = nccl->road(transport, rest->inner[peer]);
    return !rest->reshards[peer] ? road : *road == 'l' ? "m2n+link" : "m2n+wire";
}

/* ---- the communicator ---- */

static sluice_status m2n_member(slc_transport *transport, slc_buffer *card, sluice_error *error)
{
    return nccl->communicator->card(transport, card, error);
}

static sluice_status m2n_check(const slc_member *member, size_t count, sluice_error *error)
{
    return nccl->communicator->check(member, count, error);
}

static sluice_status m2n_make_id(slc_transport *transport, unsigned char id[SLC_COMMUNICATOR_ID_BYTES], sluice_error *error)
{
    return nccl->communicator->make_id(transport, id, error);
}

/* While rules are reloaded the next transport goes on with the communicator of the one in use, which has been tried. */
static sluice_status m2n_join(slc_transport *transport, const unsigned char id[SLC_COMMUNICATOR_ID_BYTES], const int32_t *rank,
                              size_t count, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    slc_m2n_member *member = transport->reshards->member;
    bool joined = member != NULL && member->comm.handle != NULL;
    if (joined)
        transport->wire.comm = member->comm;
    sluice_status status = nccl->communicator->join(transport, id, rank, count, deadline, watch, error);
    if (member == NULL || joined)
        return status;
    member->nccl = transport->wire.nccl;
    member->comm = transport->wire.comm;
    member->comm.nccl = transport->wire.comm.nccl = &member->nccl;
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_RUNTIME);
    if (status == SLUICE_OK)
        status = slc_device_enter(&transport->device, SLC_RUNTIME, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_epoch_twin(member, &wait, error);
    if (status == SLUICE_OK)
        status = slc_reshards_try(transport, &wait, error);
    slc_device_leave(&transport->device);
    return status;
}

static const char *m2n_library(const slc_transport *transport)
{
    const slc_m2n_member *member = transport->reshards->member;
    return member == NULL ? nccl->communicator->library(transport) : member->m2n.text;
}

static const slc_communicator_ops communicator = {
    .card = m2n_member,
    .check = m2n_check,
    .make_id = m2n_make_id,
    .join = m2n_join,
    .library = m2n_library,
};

/* ---- what nccl does ---- */

static sluice_status m2n_staging(slc_transport *transport, size_t slots, size_t slot_bytes, void **memory, sluice_error *error)
{
    return nccl->staging(transport, slots, slot_bytes, memory, error);
}

static sluice_status m2n_card(slc_transport *transport, slc_buffer *card, sluice_error *error)
{
    return nccl->card(transport, card, error);
}

static slc_ways m2n_ways(const slc_transport *transport)
{
    return nccl->ways(transport);
}

static void m2n_given_back(slc_transport *transport, const void *staging)
{
    nccl->given_back(transport, staging);
}

/* ---- recordings ---- */

/* Nothing of a reshard can be made ready. */
static sluice_status m2n_record(slc_transport *transport, const uint32_t *param, size_t count, slc_record **record, sluice_error *error)
{
    (void)transport;
    (void)param;
    (void)count;
    (void)error;
    *record = NULL;
    return SLUICE_OK;
}

static void m2n_forget(slc_transport *transport, slc_record *record)
{
    (void)transport;
    (void)record;
}

static sluice_status m2n_captured(slc_transport *transport, bool *captured, sluice_error *error)
{
    return nccl->captured(transport, captured, error);
}

static sluice_status m2n_place(slc_transport *transport, sluice_error *error)
{
    (void)transport;
    return slc_fail(error, SLUICE_UNSUPPORTED, "record",
                    "options.stream is being captured, and nccl_m2n does not go with a capture: record before or after it, or use transport nccl");
}

static sluice_status m2n_gate(slc_transport *transport, sluice_error *error)
{
    return m2n_place(transport, error);
}

/* ---- a batch ---- */

static sluice_status m2n_ready(slc_transport *transport, const uint32_t *param, size_t count, sluice_error *error)
{
    sluice_status status = nccl->ready(transport, param, count, error);
    if (status == SLUICE_OK && transport->worker)
        status = slc_device_enter(&transport->device, SLC_UPDATE, error);
    if (status != SLUICE_OK || !transport->worker)
        return status;
    status = slc_live_check(transport, transport->reshards->whole, param, count, error);
    slc_device_leave(&transport->device);
    return status;
}

static sluice_status m2n_begin(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    return nccl->begin(transport, deadline, watch, error);
}

static sluice_status m2n_run(slc_transport *transport, const slc_segment *segment, void *staging, slc_deadline deadline,
                             slc_watch watch, sluice_error *error)
{
    const slc_reshards *reshards = transport->reshards;
    sluice_status status = nccl->run(transport, &reshards->rest.program.segment[segment->param], staging, deadline, watch, error);
    if (status != SLUICE_OK || !slc_m2n_carries(&reshards->calls, segment->param))
        return status;
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_UPDATE);
    status = slc_device_enter(&transport->device, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_reshards_move(transport, segment->param, staging, &wait, error);
    slc_device_leave(&transport->device);
    return status;
}

static sluice_status m2n_replay(slc_transport *transport, slc_record *record, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    (void)transport;
    (void)record;
    (void)deadline;
    (void)watch;
    return slc_fail(error, SLUICE_INTERNAL, SLC_UPDATE, "transport m2n makes no records");
}

static sluice_status m2n_end(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_UPDATE);
    sluice_status status = transport->aborted ? SLUICE_OK : slc_device_enter(&transport->device, SLC_UPDATE, error);
    if (status == SLUICE_OK && !transport->aborted) {
        status = slc_reshards_end(transport, &wait, error);
        slc_device_leave(&transport->device);
    }
    return status == SLUICE_OK ? nccl->end(transport, deadline, watch, error) : status;
}

static void m2n_abort(slc_transport *transport)
{
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (!transport->aborted && slc_device_enter(&transport->device, SLC_UPDATE, &ignored) == SLUICE_OK) {
        slc_reshards_abort(transport);
        slc_device_leave(&transport->device);
    }
    nccl->abort(transport);
}

const slc_transport_ops slc_m2n_transport = {
    .name = "m2n",
    .communicator = &communicator,
    .open = m2n_open,
    .staging = m2n_staging,
    .must_match = m2n_must_match,
    .card = m2n_card,
    .connect = m2n_connect,
    .road = m2n_road,
    .record = m2n_record,
    .forget = m2n_forget,
    .captured = m2n_captured,
    .place = m2n_place,
    .gate = m2n_gate,
    .ready = m2n_ready,
    .ways = m2n_ways,
    .begin = m2n_begin,
    .given_back = m2n_given_back,
    .run = m2n_run,
    .replay = m2n_replay,
    .end = m2n_end,
    .abort = m2n_abort,
    .close = m2n_close,
};
