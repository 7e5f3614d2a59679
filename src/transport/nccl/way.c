/*
 * way.c: which of the copies to a worker a trainer leaves to copy engines and which to the kernel. Copy engines hold no SM,
 * and so have everything unless the kernel shortens the worker's whole update by a part worth having; then it gets the
 * copies that they are slow at: short rows, and many small pieces. Owns the table of the kernel's copies, in the peer.
 */
#include "transport/nccl/internal.h"

/*
 * Measured on two H200, see scripts/bench-gpu: nanoseconds for a copy engine to begin a span and a box, for a row however
 * short, for a byte; for a byte of the kernel.
 */
static const double SPAN_NS = 600, BOX_NS = 2700, ROW_NS = 0.34, BYTE_NS = 1 / 395.0, KERNEL_BYTE_NS = 1 / 366.0;
static const double WORTH_OF_COPY = 0.95, WORTH_OF_UPDATE = 0.98; /* at most this part of the copy engines' time */

static double engine_ns(const slc_landing *landing)
{
    double rows = (double)landing->height * (double)landing->depth, row = (double)landing->width * BYTE_NS;
    return rows > 1 ? BOX_NS + rows * (row > ROW_NS ? row : ROW_NS) : SPAN_NS + row;
}

static sluice_status take(slc_nccl_peer *peer, const slc_copy *copy, uint64_t to, uint64_t source, sluice_error *error)
{
    if (!SLC_ROOM(peer->offset, peer->offset_capacity, peer->moves.count, 64))
        return slc_fail_memory(error, SLC_RUNTIME, "where copies land", (peer->moves.count + 1) * sizeof *peer->offset);
    peer->offset[peer->moves.count] = (uint64_t)copy->source;
    return slc_moves_add(&peer->moves, source + (uint64_t)copy->source, to, copy, error);
}

sluice_status slc_way_converts(const slc_transport *transport, uint32_t param, slc_cast cast, sluice_error *error)
{
    if (cast == SLC_CAST_NONE)
        return SLUICE_OK;
    const char *name = slc_plan_at(transport->config.plan, param)->name;
    if (transport->config.no_sm)
        return slc_fail(error, SLUICE_UNSUPPORTED, SLC_RUNTIME, "parameter %s: is converted on the way, by a kernel, which no_sm forbids",
                        name);
    if (transport->kernels.device == NULL)
        return slc_fail(error, SLUICE_UNSUPPORTED, SLC_RUNTIME,
                        "parameter %s: is converted on the way, by a kernel, which GPU %d is too old for", name,
                        transport->device.ordinal);
    return SLUICE_OK;
}

sluice_status slc_way_convert(const slc_transport *transport, slc_nccl_peer *peer, uint32_t param, const slc_copy *copy,
                              uint64_t to, sluice_error *error)
{
    sluice_status status = slc_way_converts(transport, param, copy->cast, error);
    if (status != SLUICE_OK)
        return status;
    peer->kernel_bytes += (uint64_t)copy->bytes;
    return take(peer, copy, to, (uint64_t)(uintptr_t)transport->config.source[param], error);
}

sluice_status slc_way_offer(const slc_transport *transport, slc_nccl_peer *peer, uint32_t param, const slc_copy *copy, uint64_t to,
                            size_t first, sluice_error *error)
{
    double engines = 0, kernel = (double)copy->bytes * KERNEL_BYTE_NS;
    for (size_t i = first; i < peer->nlandings; i++)
        engines += engine_ns(&peer->landing[i]);
    peer->engine_ns += engines;
    peer->engine_bytes += (uint64_t)copy->bytes;
    if (transport->kernels.device == NULL || transport->config.no_sm || peer->landing[first].staged ||
        kernel > engines * WORTH_OF_COPY)
        return SLUICE_OK;
    for (size_t i = first; i < peer->nlandings; i++)
        peer->landing[i].by_kernel = true;
    peer->saved_ns += engines - kernel;
    peer->offered_bytes += (uint64_t)copy->bytes;
    return take(peer, copy, to, (uint64_t)(uintptr_t)transport->config.source[param], error);
}

/* Leaves out of the landings what the kernel carries. */
static void drop_carried(slc_nccl_peer *peer, size_t nparams)
{
    size_t kept = 0, next = 0;
    for (size_t i = 0; i < nparams; i++) {
        size_t end = peer->first[i + 1].landing;
        peer->first[i].landing = (uint32_t)kept;
        for (; next < end; next++)
            if (!peer->landing[next].by_kernel)
                peer->landing[kept++] = peer->landing[next];
    }
    peer->first[nparams].landing = (uint32_t)kept;
    peer->nlandings = kept;
}

/* Keeps of the kernel's copies only those that convert. */
static void drop_offered(slc_nccl_peer *peer, size_t nparams)
{
    size_t kept = 0, next = 0;
    for (size_t i = 0; i < nparams; i++) {
        size_t end = peer->first[i + 1].move;
        peer->first[i].move = (uint32_t)kept;
        for (; next < end; next++)
            if (peer->moves.move[next].cast != SLC_CAST_NONE) {
                peer->moves.move[kept] = peer->moves.move[next];
                peer->offset[kept++] = peer->offset[next];
            }
    }
    peer->first[nparams].move = (uint32_t)kept;
    peer->moves.count = kept;
}

sluice_status slc_way_settle(slc_transport *transport, slc_nccl_peer *peer, sluice_error *error)
{
    size_t nparams = transport->config.program->count;
    if (peer->engine_ns - peer->saved_ns > peer->engine_ns * WORTH_OF_UPDATE) {
        drop_offered(peer, nparams);
    } else {
        drop_carried(peer, nparams);
        peer->engine_bytes -= peer->offered_bytes;
        peer->kernel_bytes += peer->offered_bytes;
    }
    if (peer->moves.count == 0)
        return SLUICE_OK;
    return slc_moves_place(&peer->moves, &transport->kernels, transport->rescue, error);
}

bool slc_way_aimed(const slc_nccl_peer *peer, uint32_t param, CUdeviceptr source)
{
    uint32_t move = peer->first[param].move;
    return move == peer->first[param + 1].move || peer->moves.move[move].from == source + peer->offset[move];
}

sluice_status slc_way_aim(slc_transport *transport, slc_nccl_peer *peer, sluice_error *error)
{
    for (size_t i = 0; i < transport->config.program->count; i++) {
        uint64_t source = (uint64_t)(uintptr_t)transport->config.source[i];
        for (uint32_t m = peer->first[i].move; m < peer->first[i + 1].move && source != 0; m++)
            slc_moves_aim(&peer->moves, m, source + peer->offset[m], peer->moves.move[m].to);
    }
    return slc_moves_place(&peer->moves, &transport->kernels, transport->rescue, error);
}
