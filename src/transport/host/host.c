/*
 * host.c: the operations of the host transport, and which road each copy takes. The roads themselves are map.c, pull.c and
 * ring.c; connect.c opens them.
 */
#include "transport/host/internal.h"

#include "base/available.h"
#include "transport/host/probe.h"
#include "transport/host/strided.h"
#include "transport/peers.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- shared by the other files ---- */

const char *slc_host_param(const slc_transport *transport, uint32_t param)
{
    return transport->config.plan == NULL ? "?" : slc_plan_at(transport->config.plan, param)->name;
}

/* ---- open and close ---- */

static bool parse_road(const char *name, slc_host_road *road)
{
    static const struct {
        const char *name;
        slc_host_road road;
    } known[] = { { "map", SLC_ROAD_MAP }, { "pull", SLC_ROAD_PULL }, { "ring", SLC_ROAD_RING } };
    *road = SLC_ROAD_BEST;
    if (name == NULL)
        return true;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i].name) == 0) {
            *road = known[i].road;
            return true;
        }
    return false;
}

static void host_close(slc_transport *transport)
{
    if (transport == NULL)
        return;
    for (size_t i = 0; transport->peer != NULL && i < transport->npeers; i++) {
        slc_host_peer *peer = &transport->peer[i];
        slc_ring_close(&peer->ring);
        slc_host_regions_clear(&peer->region);
        slc_host_table_clear(&peer->table);
        slc_pull_close(&peer->queue);
    }
    if (transport->listener >= 0)
        close(transport->listener);
    slc_host_table_clear(&transport->table);
    slc_host_regions_clear(&transport->region);
    slc_pull_bounce_close(&transport->bounce);
    for (size_t i = 0; i < transport->nstaging; i++)
        slc_release(transport->staging[i]);
    slc_release((void *)transport->staging);
    slc_release(transport->mark);
    slc_release(transport->slot);
    slc_release(transport->peer);
    slc_release(transport);
}

static sluice_status make_peers(slc_transport *transport, sluice_error *error)
{
    const slc_program *program = transport->config.program;
    transport->peer = slc_allocate_zeroed(program->npeers, sizeof *transport->peer);
    if (transport->peer == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the peers of this rank", program->npeers * sizeof *transport->peer);
    transport->npeers = program->npeers;
    for (size_t i = 0; i < program->npeers; i++)
        transport->peer[i] = (slc_host_peer){ .rank = program->peer[i], .road = "", .ring.fd = -1, .table.fd = -1 };
    return slc_peers_index(&transport->config, &transport->slot, error);
}

/* Every live tensor must be writable memory. */
static sluice_status probe_live(const slc_transport *transport, sluice_error *error)
{
    const slc_live_set *live = transport->config.live;
    slc_host_mappings writable;
    sluice_status status = slc_host_mappings_read(true, &writable, error);
    for (size_t i = 0; status == SLUICE_OK && i < live->count; i++) {
        uintptr_t low, high;
        slc_live_span(&live->item[i], &low, &high);
        if (!slc_host_mapped(&writable, low, high))
            status = slc_fail(error, SLUICE_INVALID, SLC_RUNTIME,
                              "live tensor %s (0x%" PRIxPTR " to 0x%" PRIxPTR ") must lie in memory that this process can write",
                              live->item[i].name, low, high);
    }
    slc_host_mappings_clear(&writable);
    return status;
}

static sluice_status open_trainer(slc_transport *transport, sluice_error *error)
{
    const slc_transport_config *config = &transport->config;
    sluice_status status = slc_host_table_create(slc_host_params(transport), &transport->table, error);
    if (status != SLUICE_OK)
        return status;
    transport->region.item = slc_allocate_zeroed(config->nregions, sizeof *transport->region.item);
    if (transport->region.item == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "shared regions", config->nregions * sizeof *transport->region.item);
    transport->region.count = config->nregions;
    for (size_t i = 0; i < config->nregions; i++)
        transport->region.item[i] =
            (slc_host_region){ .address = (uint64_t)(uintptr_t)config->region[i].data, .bytes = config->region[i].bytes };
    status = slc_host_regions_sort(&transport->region, config->rank, error);
    return status == SLUICE_OK && transport->npeers > 0 ? slc_host_listen(transport, error) : status;
}

static sluice_status open_worker(slc_transport *transport, sluice_error *error)
{
    sluice_status status = slc_pull_bounce_open(&transport->bounce, error);
    return status == SLUICE_OK ? probe_live(transport, error) : status;
}

static sluice_status host_open(const slc_transport_config *config, slc_transport **out, sluice_error *error)
{
    *out = NULL;
    slc_host_road asked;
    if (!parse_road(config->road, &asked))
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "road (\"%s\") must be \"map\", \"pull\" or \"ring\"", config->road);
    slc_transport *transport = slc_allocate_zeroed(1, sizeof *transport);
    if (transport == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the host transport", sizeof *transport);
    transport->config = *config;
    transport->config.road = NULL; /* the caller's text need not live on */
    transport->asked = asked;
    transport->worker = config->rank >= config->trainers;
    transport->listener = -1;
    transport->table.fd = -1;
    sluice_status status = slc_host_card_make(&transport->card, error);
    if (status != SLUICE_OK)
        goto out;
    transport->mark = slc_allocate(SLC_MARK_BYTES);
    if (transport->mark == NULL) {
        status = slc_fail_memory(error, SLC_RUNTIME, "the mark of this process", SLC_MARK_BYTES);
        goto out;
    }
    memcpy(transport->mark, transport->card.mark, SLC_MARK_BYTES);
    transport->card.mark_address = (uint64_t)(uintptr_t)transport->mark;
    status = make_peers(transport, error);
    if (status == SLUICE_OK)
        status = transport->worker ? open_worker(transport, error) : open_trainer(transport, error);
out:
    if (status != SLUICE_OK)
        host_close(transport);
    else
        *out = transport;
    return status;
}

/* Memory that the machine has only promised would end a process when it is touched, not here. */
static sluice_status check_available(size_t slots, size_t slot_bytes, sluice_error *error)
{
    int64_t wanted, there = slc_memory_available();
    if (slc_multiply((int64_t)slots, (int64_t)slot_bytes, &wanted) && wanted <= there)
        return SLUICE_OK;
    return slc_fail(error, SLUICE_NO_MEMORY, SLC_RUNTIME, "%zu staging slots of %zu bytes must fit the memory that is available (%" PRId64 " bytes)",
                    slots, slot_bytes, there);
}

static sluice_status host_staging(slc_transport *transport, size_t slots, size_t slot_bytes, void **memory, sluice_error *error)
{
    sluice_status status = check_available(slots, slot_bytes, error);
    if (status != SLUICE_OK)
        return status;
    for (size_t i = 0; i < slots; i++)
        memory[i] = NULL;
    transport->staging = slc_allocate_zeroed(slots, sizeof *transport->staging);
    transport->nstaging = transport->staging == NULL ? 0 : slots;
    for (size_t i = 0; i < transport->nstaging; i++) {
        memory[i] = transport->staging[i] = slc_allocate(slot_bytes);
        if (memory[i] != NULL) /* now, not in the first update: memory that is only promised costs its time when it is touched */
            memset(memory[i], 0, slot_bytes);
    }
    for (size_t i = 0; i < slots; i++)
        if (memory[i] == NULL)
            return slc_fail(error, SLUICE_NO_MEMORY, SLC_RUNTIME, "out of memory for %zu staging slots of %zu bytes", slots, slot_bytes);
    return SLUICE_OK;
}

static sluice_status host_must_match(slc_transport *transport, slc_buffer *lines, sluice_error *error)
{
    if (!slc_buffer_text(lines, "host_transport=1\nhost_road=%s\n", slc_host_road_name(transport->asked)))
        return slc_fail_memory(error, SLC_RUNTIME, "what must match", 64);
    return SLUICE_OK;
}

static sluice_status host_card(slc_transport *transport, slc_buffer *card, sluice_error *error)
{
    return slc_host_card_write(&transport->card, card, error);
}

static sluice_status host_connect(slc_transport *transport, const unsigned char *const *card, const size_t *length,
                                  slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    slc_wait wait = slc_host_wait_begin(transport, deadline, watch, SLC_RUNTIME);
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_host_peer *peer = &transport->peer[i];
        sluice_status status = slc_host_card_read(card[i], length[i], peer->rank, &peer->card, error);
        if (status == SLUICE_OK)
            status = slc_host_card_check(&transport->card, &peer->card, peer->rank, error);
        if (status != SLUICE_OK)
            return status;
    }
    return transport->worker ? slc_host_connect_worker(transport, &wait, error)
                             : slc_host_connect_trainer(transport, &wait, error);
}

static const char *host_road(const slc_transport *transport, size_t peer)
{
    return transport->peer[peer].road;
}

/* ---- a batch ---- */

static sluice_status refuse_aborted(sluice_error *error)
{
    return slc_fail(error, SLUICE_CANCELLED, SLC_UPDATE, "the transport was aborted");
}

/* Every peer that is pulled from is still the process it was. */
static sluice_status check_pulled(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    for (size_t i = 0; transport->worker && i < transport->npeers; i++)
        if (transport->peer[i].base == SLC_ROAD_PULL) {
            sluice_status status = slc_pull_check(&transport->peer[i], wait, error);
            if (status != SLUICE_OK)
                return status;
        }
    return SLUICE_OK;
}

/* Nothing can be made ready: a batch here is its copies. */
static sluice_status host_record(slc_transport *transport, const uint32_t *param, size_t count, slc_record **record, sluice_error *error)
{
    (void)transport;
    (void)param;
    (void)count;
    (void)error;
    *record = NULL;
    return SLUICE_OK;
}

/* There is no stream of the host's. */
static sluice_status host_captured(slc_transport *transport, bool *captured, sluice_error *error)
{
    (void)transport;
    (void)error;
    *captured = false;
    return SLUICE_OK;
}

static sluice_status host_gate(slc_transport *transport, sluice_error *error)
{
    (void)transport;
    return slc_fail(error, SLUICE_INTERNAL, SLC_UPDATE, "the host transport has no stream");
}

static void host_forget(slc_transport *transport, slc_record *record)
{
    (void)transport;
    (void)record;
}

static sluice_status host_replay(slc_transport *transport, slc_record *record, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    (void)transport;
    (void)record;
    (void)deadline;
    (void)watch;
    return slc_fail(error, SLUICE_INTERNAL, SLC_UPDATE, "the host transport makes no records");
}

static sluice_status host_ready(slc_transport *transport, const uint32_t *param, size_t count, sluice_error *error)
{
    (void)transport;
    (void)param;
    (void)count;
    (void)error;
    return SLUICE_OK;
}

/* What a processor reads it has read when it comes back. */
static void host_given_back(slc_transport *transport, const void *staging)
{
    (void)transport;
    (void)staging;
}

static sluice_status host_begin(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    if (transport->aborted)
        return refuse_aborted(error);
    slc_wait wait = slc_host_wait_begin(transport, deadline, watch, SLC_UPDATE);
    return transport->worker ? check_pulled(transport, &wait, error) : slc_host_publish(transport, SLC_UPDATE, error);
}

static sluice_status trainer_run(slc_transport *transport, const slc_segment *segment, slc_wait *wait, sluice_error *error)
{
    uint64_t address = transport->table.address[segment->param];
    if (segment->ncopies > 0 && address == 0)
        return slc_fail(error, SLUICE_INVALID, SLC_UPDATE, "parameter %s has no source memory on this rank",
                        slc_host_param(transport, segment->param));
    for (uint32_t i = 0; i < segment->ncopies; i++) {
        const slc_copy *copy = &segment->copy[i];
        slc_host_peer *peer = slc_host_peer_of(transport, copy->peer);
        if (peer->base != SLC_ROAD_RING)
            continue;
        if (slc_host_region_for(transport, peer, segment->param, copy) != NULL)
            continue; /* the worker reads it where it lies */
        const unsigned char *source = (const unsigned char *)(uintptr_t)address + copy->source;
        sluice_status status = slc_ring_send(transport, peer, copy, source, wait, error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

/* A copy out of a mapping, in pieces of at most PIECE bytes or one step of the outermost dim, so that waits are watched. */
static sluice_status copy_mapped(const slc_host_peer *peer, unsigned char *destination, const unsigned char *source,
                                 const slc_copy *copy, slc_wait *wait, sluice_error *error)
{
    enum { PIECE = 64 << 20 };
    sluice_status status = SLUICE_OK;
    if (copy->bytes <= PIECE) {
        slc_strided_move(destination, source, copy);
        return slc_wait_tick(wait, "copying from", peer->rank, error);
    }
    if (copy->ndim == 0) {
        for (int64_t at = 0; status == SLUICE_OK && at < copy->run; at += PIECE) {
            memcpy(destination + at, source + at, (size_t)(copy->run - at < PIECE ? copy->run - at : PIECE));
            status = slc_wait_tick(wait, "copying from", peer->rank, error);
        }
        return status;
    }
    slc_copy part = *copy;
    slc_stride dim[SLC_MAX_DIMS];
    slc_stride outer = copy->dim[0];
    slc_grid grid = { 0 };
    memcpy(dim, copy->dim, copy->ndim * sizeof *dim);
    part.dim = dim;
    if (copy->grid != NULL) {
        grid = *copy->grid;
        part.grid = &grid;
    }
    int64_t each = copy->bytes / outer.count, most = each >= PIECE ? 1 : PIECE / each;
    for (int64_t i = 0; status == SLUICE_OK && i < outer.count; i += most) {
        dim[0].count = outer.count - i < most ? outer.count - i : most;
        if (copy->grid != NULL && copy->ndim == 2)
            grid.at[0] = copy->grid->at[0] + i * slc_grid_unit(copy->cast);
        slc_strided_move(destination + i * outer.destination, source + i * outer.source, &part);
        status = slc_wait_tick(wait, "copying from", peer->rank, error);
    }
    return status;
}

static sluice_status receive(slc_transport *transport, uint32_t param, const slc_copy *copy, unsigned char *destination,
                             slc_wait *wait, sluice_error *error)
{
    slc_host_peer *peer = slc_host_peer_of(transport, copy->peer);
    uint64_t address = peer->table.address[param];
    const slc_host_region *region = slc_host_region_for(transport, peer, param, copy);
    if (region != NULL) {
        const unsigned char *source = (const unsigned char *)region->data + (address + (uint64_t)copy->source - region->address);
        return copy_mapped(peer, destination, source, copy, wait, error);
    }
    if (address == 0 || peer->base == SLC_ROAD_NONE)
        return slc_host_outside(transport, peer, param, SLC_UPDATE, error);
    if (peer->base == SLC_ROAD_RING)
        return slc_ring_receive(transport, peer, copy, destination, wait, error);
    return slc_pull_copy(transport, peer, copy, destination, address + (uint64_t)copy->source, wait, error);
}

static sluice_status worker_run(slc_transport *transport, const slc_segment *segment, unsigned char *staging, slc_wait *wait,
                                sluice_error *error)
{
    const slc_live_set *live = transport->config.live;
    for (uint32_t i = 0; i < segment->ncopies; i++) {
        const slc_copy *copy = &segment->copy[i];
        unsigned char *base = copy->buffer == SLC_STAGING ? staging : live->item[copy->buffer].data;
        sluice_status status = receive(transport, segment->param, copy, base + copy->destination, wait, error);
        if (status != SLUICE_OK)
            return status;
    }
    for (uint32_t i = 0; i < segment->nfills; i++) {
        const slc_fill *fill = &segment->fill[i];
        slc_strided_clear(live->item[fill->buffer].data + fill->destination, fill->run, fill->ndim, fill->dim);
    }
    return staging == NULL ? SLUICE_OK : slc_pull_drain(transport, wait, error);
}

static sluice_status host_run(slc_transport *transport, const slc_segment *segment, void *staging, slc_deadline deadline,
                              slc_watch watch, sluice_error *error)
{
    if (transport->aborted)
        return refuse_aborted(error);
    slc_wait wait = slc_host_wait_begin(transport, deadline, watch, SLC_UPDATE);
    return transport->worker ? worker_run(transport, segment, staging, &wait, error)
                             : trainer_run(transport, segment, &wait, error);
}

static sluice_status host_end(slc_transport *transport, slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    if (transport->aborted)
        return refuse_aborted(error);
    slc_wait wait = slc_host_wait_begin(transport, deadline, watch, SLC_UPDATE);
    slc_ring_show(transport);
    sluice_status status = transport->worker ? slc_pull_drain(transport, &wait, error) : SLUICE_OK;
    return status == SLUICE_OK ? check_pulled(transport, &wait, error) : status;
}

static void host_abort(slc_transport *transport)
{
    transport->aborted = true;
    for (size_t i = 0; i < transport->npeers; i++)
        slc_ring_hang_up(&transport->peer[i].ring);
}

const slc_transport_ops slc_host_transport = {
    .name = "host",
    .open = host_open,
    .staging = host_staging,
    .must_match = host_must_match,
    .card = host_card,
    .connect = host_connect,
    .road = host_road,
    .record = host_record,
    .forget = host_forget,
    .captured = host_captured,
    .place = host_gate,
    .gate = host_gate,
    .ready = host_ready,
    .begin = host_begin,
    .given_back = host_given_back,
    .run = host_run,
    .replay = host_replay,
    .end = host_end,
    .abort = host_abort,
    .close = host_close,
};
