/*
 * turns.c: what the wire has gathered, turn by turn: packed, sent or received, unpacked. No wait of the host is for a peer but
 * in slc_wire_await and slc_comm_settle, which watch. Owns nothing.
 */
#include "transport/nccl/internal.h"

#include <inttypes.h>

/* ---- waiting ---- */

/* Until the GPU has come to an event, or NCCL has met an error. */
sluice_status slc_wire_await(slc_transport *transport, CUevent event, slc_wait *wait, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    int tries = 0;
    for (;;) {
        CUresult result = transport->cuda.EventQuery(event);
        if (result != CUDA_ERROR_NOT_READY)
            return slc_nccl_check(transport, result, wait->stage, "moving parameters on the GPU", error);
        sluice_status status = slc_comm_check(&wire->comm, wait, error);
        if (status == SLUICE_OK)
            status = slc_comm_tick(wait, transport->worker ? "receiving by NCCL" : "sending by NCCL", &tries, error);
        if (status != SLUICE_OK) {
            wire->comm.broken = true;
            return status;
        }
    }
}

/* ---- packing and unpacking ---- */

struct packing { /* of one turn */
    slc_transport *transport;
    int b;
    slc_wait *wait;
    CUdeviceptr to, from; /* of the box that is being cut */
    slc_cast cast;        /* of its copy; what comes has been converted */
    slc_grid grid;        /* of a conversion in blocks, at the box' first number */
};

static sluice_status launch_copies(struct packing *packing, sluice_error *error)
{
    slc_transport *transport = packing->transport;
    slc_wire *wire = &transport->wire;
    slc_moves *moves = &wire->moves[packing->b];
    const char *what = transport->worker ? "unpacking what was received" : "packing what is sent";
    sluice_status status = SLUICE_OK;
    if (moves->count > 0) /* nothing but local work can hold that up: the table goes by a stream that follows nobody */
        status = slc_moves_place(moves, &transport->kernels, transport->rescue, error);
    if (status != SLUICE_OK)
        return status;
    CUresult result = moves->count > 0 ? slc_moves_launch(moves, &transport->kernels, 0, moves->count, 0, wire->copying)
                                       : slc_copies_launch(&transport->cuda, &wire->copies, wire->copying);
    if (result == CUDA_SUCCESS)
        result = transport->cuda.EventRecord(wire->copied[packing->b], wire->copying);
    moves->count = 0;
    return slc_nccl_check(transport, result, SLC_UPDATE, what, error);
}

/* A table is filled again only when its launch is over. */
static sluice_status add_move(struct packing *packing, int64_t run, uint32_t ndim, const slc_stride *dim, sluice_error *error)
{
    slc_wire *wire = &packing->transport->wire;
    slc_moves *moves = &wire->moves[packing->b];
    const slc_copy copy = { .run = run, .cast = packing->cast, .ndim = ndim, .dim = dim,
                            .grid = slc_cast_in_blocks(packing->cast) ? &packing->grid : NULL };
    sluice_status status = SLUICE_OK;
    if (moves->count == wire->most_moves) {
        status = launch_copies(packing, error);
        if (status == SLUICE_OK)
            status = slc_wire_await(packing->transport, wire->copied[packing->b], packing->wait, error);
    }
    return status == SLUICE_OK ? slc_moves_add(moves, packing->from, packing->to, &copy, error) : status;
}

static sluice_status take_landing(void *context, const slc_landing *landing, sluice_error *error)
{
    struct packing *packing = context;
    slc_copies *copies = &packing->transport->wire.copies;
    slc_copies_add(copies, landing, packing->to + landing->to, packing->from + (CUdeviceptr)landing->from);
    return slc_copies_count(copies) < copies->capacity ? SLUICE_OK : launch_copies(packing, error);
}

/* A box between the tensor at `there` and the packed bytes at `packed`. */
static sluice_status add_box(struct packing *packing, CUdeviceptr there, CUdeviceptr packed, int64_t run, uint32_t ndim,
                             const slc_stride *dim, sluice_error *error)
{
    bool worker = packing->transport->worker;
    const slc_landing first = { .width = run, .height = 1, .depth = 1 };
    packing->to = worker ? there : packed;
    packing->from = worker ? packed : there;
    return packing->transport->kernels.device != NULL ? add_move(packing, run, ndim, dim, error)
                                                      : slc_landing_cut(dim, ndim, &first, take_landing, packing, error);
}

/* Where in its grid a box begins: at `index` of dim d, and at the first of those inside of it. */
static void place_in_grid(struct packing *packing, const slc_copy *copy, uint32_t d, int64_t index)
{
    for (uint32_t k = d; k < copy->ndim && copy->grid != NULL; k++)
        if (k + 2 >= copy->ndim)
            packing->grid.at[k + 2 - copy->ndim] = k == d ? index * slc_grid_unit(copy->cast) : 0;
}

/* `count` steps of dim d with all that lies inside of it. Of a conversion in blocks both dims of the grid are there. */
static sluice_status copy_box(struct packing *packing, const slc_copy *copy, uint32_t d, int64_t count, CUdeviceptr there,
                              CUdeviceptr packed, sluice_error *error)
{
    slc_stride dim[SLC_MAX_DIMS];
    uint32_t ndim = copy->ndim - d;
    int64_t inner = copy->run;
    if (slc_cast_in_blocks(packing->cast) && ndim == 1) {
        const slc_stride *row = &copy->dim[d];
        dim[0] = (slc_stride){ .count = 1, .source = copy->dim[d - 1].source, .destination = count * inner };
        dim[1] = (slc_stride){ .count = count, .source = row->source, .destination = inner };
        return add_box(packing, there, packed, copy->run, 2, dim, error);
    }
    for (uint32_t k = ndim; k > 0; k--) {
        const slc_stride *step = &copy->dim[d + k - 1];
        int64_t stride = slc_wire_stride(packing->transport->worker, step);
        dim[k - 1] = (slc_stride){ .count = k == 1 ? count : step->count,
                                   .source = packing->transport->worker ? inner : stride,
                                   .destination = packing->transport->worker ? stride : inner };
        inner *= dim[k - 1].count;
    }
    return add_box(packing, there, packed, copy->run, ndim, dim, error);
}

/* Bytes [low, high) of what lies from dim d inward: a step that is begun, whole steps, a step that is not ended. */
static sluice_status copy_range(struct packing *packing, const slc_copy *copy, uint32_t d, CUdeviceptr there, int64_t low,
                                int64_t high, CUdeviceptr packed, sluice_error *error)
{
    if (d == copy->ndim)
        return add_box(packing, there + (CUdeviceptr)low, packed, high - low, 0, NULL, error);
    int64_t step = copy->run, stride = slc_wire_stride(packing->transport->worker, &copy->dim[d]);
    for (uint32_t k = d + 1; k < copy->ndim; k++)
        step *= copy->dim[k].count;
    sluice_status status = SLUICE_OK;
    while (low < high && status == SLUICE_OK) {
        int64_t index = low / step, inside = low % step, bytes;
        CUdeviceptr at = there + (CUdeviceptr)(index * stride);
        place_in_grid(packing, copy, d, index);
        if (inside != 0 || high - low < step) {
            bytes = high - low < step - inside ? high - low : step - inside;
            status = copy_range(packing, copy, d + 1, at, inside, inside + bytes, packed, error);
        } else {
            bytes = (high - low) / step * step;
            status = copy_box(packing, copy, d, bytes / step, at, packed, error);
        }
        low += bytes;
        packed += (CUdeviceptr)bytes;
    }
    return status;
}

/* ---- messages ---- */

/* Where a message of the parts [first, end) begins: in the tensor itself where it can, else in the buffer. */
static CUdeviceptr message_of(const slc_wire_peer *peer, size_t first, size_t end, int b, uint64_t *bytes)
{
    const slc_wire_part *part = &peer->part[first], *last = &peer->part[end - 1];
    bool direct = end == first + 1 && part->whole;
    *bytes = direct ? (uint64_t)part->bytes : last->at + (uint64_t)last->bytes - part->at;
    return direct ? part->base + (CUdeviceptr)part->first : peer->buffer[b] + part->at;
}

/* The parts from `first` on that make up one message. */
static size_t message_end(const slc_wire_peer *peer, size_t first)
{
    size_t end = first + 1;
    while (!peer->part[first].large && end < peer->nparts && !peer->part[end].large && peer->part[end].turn == peer->part[first].turn)
        end++;
    return end;
}

static sluice_status copy_message(slc_transport *transport, slc_wire_peer *peer, size_t first, size_t end, int b, slc_wait *wait,
                                  sluice_error *error)
{
    struct packing packing = { .transport = transport, .b = b, .wait = wait };
    sluice_status status = SLUICE_OK;
    for (size_t p = first; p < end && status == SLUICE_OK; p++) {
        const slc_wire_part *part = &peer->part[p];
        packing.cast = transport->worker ? SLC_CAST_NONE : part->copy->cast;
        if (slc_cast_in_blocks(packing.cast))
            packing.grid = *part->copy->grid;
        if (end > first + 1 || !part->whole)
            status = copy_range(&packing, part->copy, part->whole ? part->copy->ndim : 0, part->base, part->first, part->first + part->bytes,
                                peer->buffer[b] + part->at, error);
    }
    return status;
}

static sluice_status post_message(slc_transport *transport, slc_wire_peer *peer, size_t first, size_t end, int b, slc_wait *wait,
                                  sluice_error *error)
{
    (void)wait;
    slc_wire *wire = &transport->wire;
    uint64_t bytes;
    void *at = (void *)(uintptr_t)message_of(peer, first, end, b, &bytes);
    ncclResult_t result =
        transport->worker ? wire->nccl.Recv(at, (size_t)bytes, ncclUint8, peer->member, wire->comm.handle, wire->moving)
                          : wire->nccl.Send(at, (size_t)bytes, ncclUint8, peer->member, wire->comm.handle, wire->moving);
    if (result == ncclSuccess || result == ncclInProgress)
        return SLUICE_OK;
    return slc_fail(error, SLUICE_SYSTEM, SLC_UPDATE, "%s on rank %" PRId32 ": %s (%s)", transport->worker ? "ncclRecv" : "ncclSend",
                    transport->config.rank, wire->nccl.GetErrorString(result), wire->nccl.GetLastError(wire->comm.handle));
}

/* Visits the messages of one turn; of what is gathered, those of earlier ones were visited before. */
typedef sluice_status (*message_visit)(slc_transport *transport, slc_wire_peer *peer, size_t first, size_t end, int b,
                                       slc_wait *wait, sluice_error *error);

static sluice_status each_message(slc_transport *transport, uint32_t turn, int b, bool posting, slc_wait *wait, sluice_error *error)
{
    message_visit visit = posting ? post_message : copy_message;
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_wire_peer *peer = &transport->peer[i].wire;
        size_t *first = posting ? &peer->posted : &peer->copied;
        while (status == SLUICE_OK && *first < peer->nparts && peer->part[*first].turn == turn) {
            size_t end = message_end(peer, *first);
            status = visit(transport, peer, *first, end, b, wait, error);
            *first = end;
        }
    }
    return status;
}

/* Packs or unpacks what one turn has in buffer b. */
static sluice_status copy_turn(slc_transport *transport, uint32_t turn, int b, slc_wait *wait, sluice_error *error)
{
    struct packing packing = { .transport = transport, .b = b, .wait = wait };
    sluice_status status = each_message(transport, turn, b, false, wait, error);
    return status == SLUICE_OK ? launch_copies(&packing, error) : status;
}

static sluice_status post_turn(slc_transport *transport, uint32_t turn, int b, slc_wait *wait, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    ncclResult_t result = wire->nccl.GroupStart();
    if (result != ncclSuccess)
        return slc_comm_settle(&wire->comm, result, "ncclGroupStart", wait, error);
    sluice_status status = each_message(transport, turn, b, true, wait, error);
    result = wire->nccl.GroupEnd();
    if (status != SLUICE_OK) {
        wire->comm.broken = true;
        return status;
    }
    status = slc_comm_settle(&wire->comm, result, "ncclGroupEnd", wait, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, transport->cuda.EventRecord(wire->moved[b], wire->moving), SLC_UPDATE, "recording an event", error);
    return status;
}

static sluice_status send_turn(slc_transport *transport, uint32_t turn, slc_wait *wait, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    int b = (int)(wire->turns++ % SLC_WIRE_BUFFERS);
    sluice_status status = slc_wire_await(transport, wire->moved[b], wait, error);
    if (status == SLUICE_OK)
        status = copy_turn(transport, turn, b, wait, error);
    if (status == SLUICE_OK)
        status = slc_nccl_check(transport, transport->cuda.StreamWaitEvent(wire->moving, wire->copied[b], 0), SLC_UPDATE,
                                "waiting for packed parts on the GPU", error);
    if (status == SLUICE_OK)
        status = post_turn(transport, turn, b, wait, error);
    return status;
}

/* What a turn brought is unpacked once it is there: the host never stands in the driver behind a peer that may be gone. */
static sluice_status take_turn(slc_transport *transport, uint32_t turn, int b, slc_wait *wait, sluice_error *error)
{
    sluice_status status = slc_wire_await(transport, transport->wire.moved[b], wait, error);
    if (status == SLUICE_OK)
        status = copy_turn(transport, turn, b, wait, error);
    return status;
}

static sluice_status receive_turns(slc_transport *transport, uint32_t turns, slc_wait *wait, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    sluice_status status = SLUICE_OK;
    int b = 0, before = 0;
    for (uint32_t turn = 0; turn < turns && status == SLUICE_OK; turn++, before = b) {
        b = (int)(wire->turns++ % SLC_WIRE_BUFFERS);
        status = slc_wire_await(transport, wire->copied[b], wait, error);
        if (status == SLUICE_OK)
            status = post_turn(transport, turn, b, wait, error);
        if (status == SLUICE_OK && turn > 0)
            status = take_turn(transport, turn - 1, before, wait, error);
    }
    if (status == SLUICE_OK)
        status = take_turn(transport, turns - 1, before, wait, error);
    for (int i = 0; i < SLC_WIRE_BUFFERS && status == SLUICE_OK; i++)
        status = slc_wire_await(transport, wire->copied[i], wait, error);
    return status;
}

/* The first turns of a batch come behind what the host has queued on its own stream. */
static sluice_status enter_batch(slc_transport *transport, sluice_error *error)
{
    slc_wire *wire = &transport->wire;
    if (wire->active)
        return SLUICE_OK;
    wire->active = true;
    CUresult result = slc_caller_follow(&transport->caller, wire->moving);
    if (result == CUDA_SUCCESS)
        result = slc_caller_follow(&transport->caller, wire->copying);
    return slc_nccl_check(transport, result, SLC_UPDATE, "waiting for options.stream on the GPU", error);
}

sluice_status slc_wire_flush(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    uint32_t turns = 0;
    for (size_t i = 0; i < transport->npeers; i++) {
        const slc_wire_peer *peer = &transport->peer[i].wire;
        if (peer->nparts > 0 && peer->turn + 1 > turns)
            turns = peer->turn + 1;
    }
    sluice_status status = turns > 0 ? enter_batch(transport, error) : SLUICE_OK;
    if (status == SLUICE_OK && transport->worker && turns > 0)
        status = receive_turns(transport, turns, wait, error);
    for (uint32_t turn = 0; turn < turns && status == SLUICE_OK && !transport->worker; turn++)
        status = send_turn(transport, turn, wait, error);
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_wire_peer *peer = &transport->peer[i].wire;
        peer->nparts = peer->posted = peer->copied = 0;
        peer->turn = 0;
        peer->filled = peer->used = 0;
    }
    return status;
}
