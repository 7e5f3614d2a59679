/* wire.c: see wire.h. Owns the communicator, the buffers and the streams of the road. */
#include "transport/nccl/wire.h"

#include "transport/nccl/internal.h"
#include "transport/peers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, GATHERED = 4096, LEAST_MOVES = 64, MOST_MOVES = 8192, MOVES_OF_COPY = 3, TRIAL = sizeof(uint64_t) };
enum { WHOLE = 8 }; /* how many times as much a turn has that needs no buffer for large parts */
static const uint64_t SMALL = 256 << 10, TURN = 128 << 20, LEAST_TURN = 4096, MOST_TURN = (uint64_t)1 << 40;

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- before the first batch ---- */

sluice_status slc_wire_bytes(uint64_t *bytes, sluice_error *error)
{
    const char *text = getenv("SLUICE_WIRE_BYTES");
    char *end = NULL;
    *bytes = TURN;
    if (text == NULL || *text == '\0')
        return SLUICE_OK;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value < LEAST_TURN || value > MOST_TURN)
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "SLUICE_WIRE_BYTES (%.40s) must be a number of bytes, %" PRIu64 " to %" PRIu64,
                        text, LEAST_TURN, MOST_TURN);
    *bytes = value;
    return SLUICE_OK;
}

static bool is_whole(const slc_transport *transport, const slc_copy *copy)
{
    if (!transport->worker && copy->cast != SLC_CAST_NONE)
        return false;
    int64_t inner = copy->run;
    for (uint32_t d = copy->ndim; d > 0; d--) {
        if (copy->dim[d - 1].count > 1 && slc_wire_stride(transport->worker, &copy->dim[d - 1]) != inner)
            return false;
        inner *= copy->dim[d - 1].count;
    }
    return true;
}

bool slc_wire_is_whole(const slc_transport *transport)
{
    const slc_program *program = transport->config.program;
    for (size_t i = 0; i < program->count; i++)
        for (uint32_t c = 0; c < program->segment[i].ncopies; c++)
            if (!is_whole(transport, &program->segment[i].copy[c]))
                return false;
    return true;
}

/* How much of a turn each pair has: what both can give it. */
static bool make_windows(slc_transport *transport)
{
    bool any = false, whole = slc_wire_is_whole(transport);
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_wire_peer *wire = &transport->peer[i].wire;
        uint64_t own = transport->wire.bytes / transport->npeers, window = own < wire->share ? own : wire->share;
        wire->member = -1;
        wire->window = (window < LEAST_TURN ? LEAST_TURN : window) / ALIGNMENT * ALIGNMENT;
        wire->window *= whole && wire->whole ? WHOLE : 1;
        wire->small = wire->window / 4 < SMALL ? wire->window / 4 : SMALL;
        any = any || transport->peer[i].by_wire;
    }
    return any;
}

/* What each peer's part of a buffer must have: no more than a turn, and no more than the whole plan would take there. */
static uint64_t make_room(slc_transport *transport)
{
    const slc_program *program = transport->config.program;
    uint64_t all = 0;
    for (size_t i = 0; i < program->count; i++)
        for (uint32_t c = 0; c < program->segment[i].ncopies; c++) {
            const slc_copy *copy = &program->segment[i].copy[c];
            slc_wire_peer *peer = &slc_nccl_peer_of(transport, copy->peer)->wire;
            if (peer->room < peer->window && ((uint64_t)copy->bytes < peer->small || !is_whole(transport, copy)))
                peer->room += aligned((uint64_t)copy->bytes);
        }
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_wire_peer *peer = &transport->peer[i].wire;
        peer->room = (peer->room < peer->window ? peer->room : peer->window) + ALIGNMENT;
        all += transport->peer[i].by_wire ? peer->room : 0;
    }
    return all;
}

static CUresult make_streams(slc_transport *transport)
{
    const slc_cuda *cuda = &transport->cuda;
    slc_wire *wire = &transport->wire;
    wire->open = true;
    CUresult result = cuda->StreamCreate(&wire->moving, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = cuda->StreamCreate(&wire->copying, CU_STREAM_NON_BLOCKING);
    for (int b = 0; b < SLC_WIRE_BUFFERS && result == CUDA_SUCCESS; b++) {
        result = cuda->EventCreate(&wire->moved[b], CU_EVENT_DISABLE_TIMING);
        if (result == CUDA_SUCCESS)
            result = cuda->EventCreate(&wire->copied[b], CU_EVENT_DISABLE_TIMING);
    }
    return result;
}

/* Tables with room for what a turn is likely to have: an update allocates nothing. */
static sluice_status make_tables(slc_transport *transport, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    const slc_copy any = { .run = 1 };
    sluice_status status = SLUICE_OK;
    if (transport->kernels.device == NULL)
        return slc_copies_make(&wire->copies, GATHERED, error);
    size_t copies = transport->config.program->copies;
    wire->most_moves = copies < MOST_MOVES / MOVES_OF_COPY ? LEAST_MOVES + copies * MOVES_OF_COPY : MOST_MOVES;
    for (int b = 0; b < SLC_WIRE_BUFFERS && status == SLUICE_OK; b++) {
        slc_moves *moves = &wire->moves[b];
        while (moves->count < wire->most_moves && status == SLUICE_OK)
            status = slc_moves_add(moves, 0, 0, &any, error);
        if (status == SLUICE_OK)
            status = slc_moves_place(moves, &transport->kernels, wire->copying, error);
        moves->count = 0;
    }
    return status;
}

static sluice_status make_memory(slc_transport *transport, uint64_t bytes, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    sluice_status status = slc_device_allocate(&transport->device, bytes * SLC_WIRE_BUFFERS, "buffers of the wire", &wire->memory, error);
    if (status != SLUICE_OK)
        return status;
    CUdeviceptr at = wire->memory;
    for (int b = 0; b < SLC_WIRE_BUFFERS; b++)
        for (size_t i = 0; i < transport->npeers; i++)
            if (transport->peer[i].by_wire) {
                transport->peer[i].wire.buffer[b] = at;
                at += transport->peer[i].wire.room;
            }
    /* The gaps between small parts travel, too: nothing that was there before. And what moves first, moves after the clearing. */
    const slc_cuda *cuda = &transport->cuda;
    CUresult result = cuda->MemsetD8Async(wire->memory, 0, bytes * SLC_WIRE_BUFFERS, wire->copying);
    if (result == CUDA_SUCCESS)
        result = cuda->EventRecord(wire->copied[0], wire->copying);
    if (result == CUDA_SUCCESS)
        result = cuda->StreamWaitEvent(wire->moving, wire->copied[0], 0);
    return slc_nccl_check(transport, result, SLC_RUNTIME, "clearing buffers of the wire", error);
}

static sluice_status check_conversions(const slc_transport *transport, sluice_error *error)
{
    const slc_program *program = transport->config.program;
    for (size_t i = 0; i < program->count && !transport->worker; i++)
        for (uint32_t c = 0; c < program->segment[i].ncopies; c++) {
            sluice_status status = slc_way_converts(transport, (uint32_t)i, program->segment[i].copy[c].cast, error);
            if (status != SLUICE_OK)
                return status;
        }
    return SLUICE_OK;
}

sluice_status slc_wire_prepare(slc_transport *transport, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    size_t count = transport->config.program->count;
    if (!make_windows(transport))
        return SLUICE_OK;
    uint64_t bytes = make_room(transport);
    sluice_status able = check_conversions(transport, error);
    if (able != SLUICE_OK)
        return able;
    if (!transport->worker) {
        wire->known = slc_allocate_zeroed(count, sizeof *wire->known);
        if (wire->known == NULL)
            return slc_fail_memory(error, SLC_RUNTIME, "the sources that were looked at", count * sizeof *wire->known);
    }
    sluice_status status = slc_nccl_check(transport, make_streams(transport), SLC_RUNTIME, "creating streams of the wire", error);
    if (status == SLUICE_OK)
        status = make_tables(transport, error);
    return status == SLUICE_OK ? make_memory(transport, bytes, error) : status;
}

/* ---- gathering ---- */

static sluice_status add_part(slc_wire_peer *peer, const slc_wire_part *part, sluice_error *error)
{
    if (!SLC_ROOM(peer->part, peer->capacity, peer->nparts, 256))
        return slc_fail_memory(error, SLC_UPDATE, "the parts of a batch", (peer->nparts + 1) * sizeof *peer->part);
    peer->part[peer->nparts++] = *part;
    return SLUICE_OK;
}

static void next_turn(slc_wire_peer *peer)
{
    peer->turn++;
    peer->filled = peer->used = 0;
}

/* How much of what is left of a copy goes into the turn; 0: nothing. No part of a large copy is small, and no small one is cut. */
static uint64_t part_bytes(const slc_wire_peer *peer, uint64_t left)
{
    uint64_t room = peer->window - peer->filled;
    if (left <= room)
        return left;
    if (left < peer->small || room < peer->small)
        return 0;
    uint64_t bytes = left - room < peer->small ? left - peer->small : room;
    return bytes < peer->small ? 0 : bytes;
}

static sluice_status gather(slc_transport *transport, slc_wire_peer *peer, const slc_copy *copy, CUdeviceptr base, sluice_error *error)
{
    bool whole = is_whole(transport, copy), large = (uint64_t)copy->bytes >= peer->small;
    sluice_status status = SLUICE_OK;
    for (int64_t first = 0; first < copy->bytes && status == SLUICE_OK;) {
        uint64_t bytes = part_bytes(peer, (uint64_t)(copy->bytes - first));
        if (bytes == 0) {
            next_turn(peer);
            continue;
        }
        const slc_wire_part part = { .copy = copy, .base = base, .first = first, .bytes = (int64_t)bytes, .turn = peer->turn,
                                     .large = large, .whole = whole, .at = peer->used };
        status = add_part(peer, &part, error);
        peer->filled += aligned(bytes);
        if (peer->filled > peer->window)
            peer->filled = peer->window;
        if (!large || !whole)
            peer->used += aligned(bytes);
        first += (int64_t)bytes;
    }
    return status;
}

/* ---- a batch ---- */

sluice_status slc_wire_check_source(const slc_transport *transport, const void **known, uint32_t param, sluice_error *error)
{
    slc_place place;
    const void *source = transport->config.source[param];
    const char *name = slc_plan_at(transport->config.plan, param)->name;
    if (source == NULL)
        return slc_fail(error, SLUICE_INVALID, SLC_UPDATE, "parameter %s has no source memory on this rank", name);
    if (known[param] == source)
        return SLUICE_OK;
    sluice_status status = slc_place_of(&transport->cuda, source, SLC_UPDATE, &place, error);
    if (status == SLUICE_OK && (!place.on_device || place.ordinal != transport->device.ordinal))
        status = slc_fail(error, SLUICE_INVALID, SLC_UPDATE, "the source of %s (%p) must lie in memory of GPU %d, as this rank's others do",
                          name, source, transport->device.ordinal);
    if (status == SLUICE_OK)
        known[param] = source;
    return status;
}

static CUdeviceptr base_of(const slc_transport *transport, const slc_segment *segment, const slc_copy *copy, void *staging)
{
    const slc_transport_config *config = &transport->config;
    if (!transport->worker)
        return (CUdeviceptr)(uintptr_t)config->source[segment->param] + (CUdeviceptr)copy->source;
    const void *to = copy->buffer == SLC_STAGING ? staging : config->live->item[copy->buffer].data;
    return (CUdeviceptr)(uintptr_t)to + (CUdeviceptr)copy->destination;
}

sluice_status slc_wire_move(slc_transport *transport, const slc_segment *segment, void *staging, slc_wait *wait, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    if (!transport->wire.open)
        return SLUICE_OK;
    slc_wait own = slc_wait_sooner(wait);
    for (uint32_t i = 0; i < segment->ncopies && status == SLUICE_OK; i++) {
        const slc_copy *copy = &segment->copy[i];
        slc_nccl_peer *peer = slc_nccl_peer_of(transport, copy->peer);
        if (!peer->by_wire)
            continue;
        if (!transport->worker)
            status = slc_wire_check_source(transport, transport->wire.known, segment->param, error);
        if (status == SLUICE_OK)
            status = gather(transport, &peer->wire, copy, base_of(transport, segment, copy, staging), error);
    }
    if (status == SLUICE_OK && slc_plan_at(transport->config.plan, segment->param)->mode == SLC_MODE_FULL)
        status = slc_wire_flush(transport, &own, error);
    return status;
}

sluice_status slc_wire_end(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    if (!transport->wire.open)
        return SLUICE_OK;
    slc_wait own = slc_wait_sooner(wait);
    sluice_status status = slc_wire_flush(transport, &own, error);
    for (int b = 0; b < SLC_WIRE_BUFFERS && status == SLUICE_OK; b++)
        status = slc_wire_await(transport, transport->wire.moved[b], &own, error);
    transport->wire.active = false;
    return status;
}

/* ---- the communicator ---- */

static sluice_status find_members(slc_transport *transport, const int32_t *rank, size_t count, int32_t *own, sluice_error *error)
{
    *own = -1;
    for (size_t m = 0; m < count; m++) {
        if (rank[m] == transport->config.rank)
            *own = (int32_t)m;
        bool other = (rank[m] < transport->config.trainers) == transport->worker;
        if (other && transport->slot[transport->worker ? rank[m] : rank[m] - transport->config.trainers] != SLC_NO_PEER)
            slc_nccl_peer_of(transport, rank[m])->wire.member = (int32_t)m;
    }
    for (size_t i = 0; i < transport->npeers && *own >= 0; i++)
        if (transport->peer[i].by_wire && transport->peer[i].wire.member < 0)
            return slc_fail(error, SLUICE_INTERNAL, SLC_RUNTIME, "rank %" PRId32 " is reached by wire from here only", transport->peer[i].rank);
    return *own >= 0 ? SLUICE_OK : slc_fail(error, SLUICE_INTERNAL, SLC_RUNTIME, "this rank is in no communicator");
}

/* What a trainer sends a worker to see whether it arrives there. */
static uint64_t trial_of(const slc_transport *transport, const slc_nccl_peer *peer)
{
    uint64_t own = (uint64_t)(uint32_t)transport->config.rank, other = (uint64_t)(uint32_t)peer->rank;
    return transport->worker ? other << 32 | own : own << 32 | other;
}

static sluice_status post_trials(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    ncclResult_t result = wire->nccl.GroupStart(), posted = ncclSuccess;
    if (result != ncclSuccess)
        return slc_comm_settle(&wire->comm, result, "ncclGroupStart", wait, error);
    for (size_t i = 0; i < transport->npeers && (posted == ncclSuccess || posted == ncclInProgress); i++) {
        slc_nccl_peer *peer = &transport->peer[i];
        void *at = (void *)(uintptr_t)peer->wire.buffer[0];
        if (peer->by_wire)
            posted = transport->worker ? wire->nccl.Recv(at, TRIAL, ncclUint8, peer->wire.member, wire->comm.handle, wire->moving)
                                       : wire->nccl.Send(at, TRIAL, ncclUint8, peer->wire.member, wire->comm.handle, wire->moving);
    }
    result = wire->nccl.GroupEnd();
    return slc_comm_settle(&wire->comm, posted == ncclSuccess || posted == ncclInProgress ? result : posted, "ncclSend or ncclRecv",
                           wait, error);
}

/* A few bytes from every trainer to every worker: what NCCL connects at first use is connected now. */
static sluice_status try_peers(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    const slc_cuda *cuda = &transport->cuda;
    slc_wire *wire = &transport->wire;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < transport->npeers && result == CUDA_SUCCESS && !transport->worker; i++)
        if (transport->peer[i].by_wire)
            result = cuda->StreamWriteValue64(wire->moving, transport->peer[i].wire.buffer[0], trial_of(transport, &transport->peer[i]),
                                              CU_STREAM_WRITE_VALUE_DEFAULT);
    sluice_status status = slc_nccl_check(transport, result, SLC_RUNTIME, "writing what is sent first", error);
    if (status == SLUICE_OK)
        status = post_trials(transport, wait, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, cuda->EventRecord(wire->moved[0], wire->moving), SLC_RUNTIME, "recording an event", error);
    if (status == SLUICE_OK)
        status = slc_wire_await(transport, wire->moved[0], wait, error);
    for (size_t i = 0; i < transport->npeers && status == SLUICE_OK && transport->worker; i++) {
        const slc_nccl_peer *peer = &transport->peer[i];
        uint64_t came = 0;
        if (!peer->by_wire)
            continue;
        result = cuda->MemcpyAsync((CUdeviceptr)(uintptr_t)&came, peer->wire.buffer[0], sizeof came, wire->copying);
        if (result == CUDA_SUCCESS)
            result = cuda->StreamSynchronize(wire->copying);
        status = slc_nccl_check(transport, result, SLC_RUNTIME, "reading what was received first", error);
        if (status == SLUICE_OK && came != trial_of(transport, peer))
            status = slc_fail(error, SLUICE_PEER, SLC_RUNTIME, "rank %" PRId32 " did not send what it must by NCCL", peer->rank);
    }
    return status;
}

sluice_status slc_wire_join(slc_transport *transport, const unsigned char *id, const int32_t *rank, size_t count, slc_wait *wait,
                            sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    int32_t own;
    double began = slc_now_s();
    sluice_status status = find_members(transport, rank, count, &own, error);
    if (status == SLUICE_OK && wire->comm.handle == NULL) {
        wire->comm = (slc_comm){ .nccl = &wire->nccl, .current = slc_device_current(&transport->device), .rank = transport->config.rank };
        status = slc_comm_join(&wire->comm, id, own, (int32_t)count, transport->config.max_cta, wait, error);
    }
    if (status == SLUICE_OK && wire->open)
        status = try_peers(transport, wait, error);
    if (status == SLUICE_OK)
        slc_say(&transport->config.log, SLUICE_LOG_INFO, "nccl: a communicator of %zu ranks, this one is its %" PRId32 ", %.3f s", count,
                own, slc_now_s() - began);
    return status;
}

/* ---- the end ---- */

void slc_wire_abort(slc_transport *transport)
{
    slc_comm_abort(&transport->wire.comm, &transport->config.log);
}

void slc_wire_close(slc_transport *transport)
{
    const slc_cuda *cuda = &transport->cuda;
    slc_wire *wire = &transport->wire;
    for (int b = 0; b < SLC_WIRE_BUFFERS; b++) {
        if (wire->moved[b] != NULL)
            (void)cuda->EventDestroy(wire->moved[b]);
        if (wire->copied[b] != NULL)
            (void)cuda->EventDestroy(wire->copied[b]);
    }
    if (wire->moving != NULL)
        (void)cuda->StreamDestroy(wire->moving);
    if (wire->copying != NULL)
        (void)cuda->StreamDestroy(wire->copying);
    slc_device_release(&transport->device, wire->memory);
    slc_copies_clear(&wire->copies);
    for (int b = 0; b < SLC_WIRE_BUFFERS; b++)
        slc_moves_clear(&wire->moves[b], &transport->kernels);
    slc_release(wire->known);
    for (size_t i = 0; i < transport->npeers; i++)
        slc_release(transport->peer[i].wire.part);
}
