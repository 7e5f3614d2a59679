/*
 * land.c: where each copy lands. Only a worker knows the addresses and strides of its live tensors, so it tells each trainer
 * the copies that come from it; the trainer trusts none of it: what it reads must lie in its shard, what it writes in memory
 * that the worker shared, and the bytes of each parameter must be those of its own program.
 *
 *     for each parameter with copies from that trainer, in plan order:  u32 parameter, u32 copies, then for each
 *     u8 staged, u8 conversion, u64 address (or offset in a staging slot), u64 source, u64 run, u8 dims, and for each dim
 *     u64 count, u64 source stride, u64 address stride; then, of a conversion in blocks, u64 rows, u64 columns of its grid
 */
#include "transport/nccl/internal.h"

#include <inttypes.h>

/* ---- the worker ---- */

static void write_copy(slc_buffer *buffer, const slc_transport *transport, const slc_copy *copy)
{
    bool staged = copy->buffer == SLC_STAGING;
    uint64_t base = staged ? 0 : (uint64_t)(uintptr_t)transport->config.live->item[copy->buffer].data;
    slc_buffer_u8(buffer, staged);
    slc_buffer_u8(buffer, (uint8_t)copy->cast);
    slc_buffer_u64(buffer, base + (uint64_t)copy->destination);
    slc_buffer_u64(buffer, (uint64_t)copy->source);
    slc_buffer_u64(buffer, (uint64_t)copy->run);
    slc_buffer_u8(buffer, (uint8_t)copy->ndim);
    for (uint32_t d = 0; d < copy->ndim; d++) {
        slc_buffer_u64(buffer, (uint64_t)copy->dim[d].count);
        slc_buffer_u64(buffer, (uint64_t)copy->dim[d].source);
        slc_buffer_u64(buffer, (uint64_t)copy->dim[d].destination);
    }
    for (int i = 0; i < 2 && copy->grid != NULL; i++)
        slc_buffer_u64(buffer, (uint64_t)copy->grid->extent[i]);
}

sluice_status slc_landings_write(slc_transport *transport, sluice_error *error)
{
    const slc_program *program = transport->config.program;
    for (size_t i = 0; i < program->count; i++) {
        const slc_segment *segment = &program->segment[i];
        for (uint32_t c = 0; c < segment->ncopies;) { /* those of one trainer need not stand together: targets come first */
            slc_nccl_peer *peer = slc_nccl_peer_of(transport, segment->copy[c].peer);
            uint32_t count = 1;
            while (c + count < segment->ncopies && segment->copy[c + count].peer == segment->copy[c].peer)
                count++;
            if (!peer->by_wire) {
                slc_buffer_u32(&peer->landings, segment->param);
                slc_buffer_u32(&peer->landings, count);
                for (uint32_t k = 0; k < count; k++)
                    write_copy(&peer->landings, transport, &segment->copy[c + k]);
            }
            c += count;
        }
    }
    for (size_t i = 0; i < transport->npeers; i++)
        if (transport->peer[i].landings.failed)
            return slc_fail_memory(error, SLC_RUNTIME, "where copies land", transport->peer[i].landings.length);
    return SLUICE_OK;
}

/* ---- the trainer ---- */

struct told { /* one copy of a worker, as it said it */
    bool staged;
    slc_cast cast;
    uint64_t address;
    int64_t source, run;
    uint32_t ndim;
    slc_stride dim[SLC_MAX_DIMS];
    slc_grid grid; /* in blocks */
};

static bool read_size(slc_reader *reader, int64_t *value)
{
    uint64_t raw = slc_read_u64(reader);
    *value = (int64_t)raw;
    return raw <= INT64_MAX;
}

/* Adds what is read beyond the first elements of the last blocks. */
static bool read_grid(slc_reader *reader, struct told *told, int64_t *source_span)
{
    const int64_t unit = slc_grid_unit(told->cast);
    bool good = told->ndim >= 2;
    for (int i = 0; i < 2 && good; i++) {
        const slc_stride *dim = &told->dim[told->ndim - 2 + (uint32_t)i];
        int64_t *extent = &told->grid.extent[i], more;
        good = read_size(reader, extent) && *extent > 0 && dim->count == (*extent - 1) / unit + 1 && dim->source % unit == 0 &&
               slc_multiply((*extent - 1) % unit, dim->source / unit, &more) && slc_add(*source_span, more, source_span);
        told->grid.step[i] = good ? dim->source / unit : 0;
    }
    return good;
}

/* What the numbers say, and the bytes from the first to behind the last on either side; false when they cannot be. */
static bool read_copy(slc_reader *reader, struct told *told, int64_t *bytes, int64_t *source_span, int64_t *span)
{
    int64_t address;
    *told = (struct told){ .staged = slc_read_u8(reader) != 0 };
    told->cast = (slc_cast)slc_read_u8(reader);
    bool good = read_size(reader, &address) && read_size(reader, &told->source) && read_size(reader, &told->run) && told->run > 0;
    told->address = (uint64_t)address;
    told->ndim = slc_read_u8(reader);
    bool casts = told->cast != SLC_CAST_NONE;
    if (!good || told->ndim > SLC_MAX_DIMS ||
        (casts && (told->cast >= SLC_CASTS || told->staged || told->run != slc_cast_to(told->cast))))
        return false;
    *bytes = *span = told->run;
    *source_span = casts ? slc_cast_from(told->cast) : told->run;
    for (uint32_t d = 0; d < told->ndim; d++) {
        slc_stride *dim = &told->dim[d];
        int64_t far;
        good = good && read_size(reader, &dim->count) && read_size(reader, &dim->source) &&
               read_size(reader, &dim->destination) && dim->count > 0 && slc_multiply(*bytes, dim->count, bytes) &&
               slc_multiply(dim->count - 1, dim->source, &far) && slc_add(*source_span, far, source_span) &&
               slc_multiply(dim->count - 1, dim->destination, &far) && slc_add(*span, far, span);
    }
    return good && (!slc_cast_in_blocks(told->cast) || read_grid(reader, told, source_span)) && !reader->failed;
}

static sluice_status add_landing(void *context, const slc_landing *landing, sluice_error *error)
{
    slc_nccl_peer *peer = context;
    if (!SLC_ROOM(peer->landing, peer->landing_capacity, peer->nlandings, 256)) /* grows with what came, not with what was promised */
        return slc_fail_memory(error, SLC_RUNTIME, "where copies land", (peer->nlandings + 1) * sizeof *peer->landing);
    peer->landing[peer->nlandings++] = *landing;
    return SLUICE_OK;
}

static bool has_cast(const slc_param *param, slc_cast cast)
{
    for (size_t i = 0; i < param->ntargets; i++)
        if (slc_target_cast(param, &param->target[i]) == cast)
            return true;
    return false;
}

static sluice_status take_copy(const slc_transport *transport, slc_nccl_peer *peer, uint32_t number, slc_reader *reader,
                               int64_t *moved, sluice_error *error)
{
    const slc_param *param = slc_plan_at(transport->config.plan, number);
    struct told told;
    int64_t bytes, source_span, span, end;
    if (!read_copy(reader, &told, &bytes, &source_span, &span))
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "parameter %s: rank %" PRId32 " sent a copy that cannot be",
                        param->name, peer->rank);
    if (told.cast != SLC_CAST_NONE && !has_cast(param, told.cast))
        return slc_fail(error, SLUICE_DISAGREE, SLC_RUNTIME, "parameter %s: rank %" PRId32 " wants a conversion that the plan does not have",
                        param->name, peer->rank);
    if (!slc_add(told.source, source_span, &end) || end > slc_source_bytes(param, transport->config.rank))
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME,
                        "parameter %s: rank %" PRId32 " asks for bytes behind the end of this rank's shard", param->name,
                        peer->rank);
    CUdeviceptr to = told.staged ? told.address : slc_peer_memory_find(&peer->memory, told.address, (uint64_t)span);
    bool inside = told.staged ? told.address <= peer->slot_bytes && (uint64_t)span <= peer->slot_bytes - told.address : to != 0;
    if (!inside)
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME,
                        "parameter %s: rank %" PRId32 " wants %" PRId64 " bytes at 0x%" PRIx64
                        ", outside of the memory that it shares",
                        param->name, peer->rank, span, told.address);
    *moved += bytes;
    const slc_landing landing = {
        .staged = told.staged, .to = to, .from = told.source, .width = told.run, .height = 1, .depth = 1
    };
    size_t first = peer->nlandings;
    const slc_copy copy = {
        .source = told.source, .run = told.run, .bytes = bytes, .cast = told.cast, .ndim = told.ndim, .dim = told.dim,
        .grid = slc_cast_in_blocks(told.cast) ? &told.grid : NULL
    };
    if (copy.cast != SLC_CAST_NONE)
        return slc_way_convert(transport, peer, number, &copy, to, error);
    sluice_status status = slc_landing_cut(told.dim, told.ndim, &landing, add_landing, peer, error);
    return status == SLUICE_OK ? slc_way_offer(transport, peer, number, &copy, to, first, error) : status;
}

/* Bytes that this rank's own program sends a peer of one parameter. */
static int64_t promised(const slc_transport *transport, uint32_t param, int32_t rank)
{
    const slc_segment *segment = &transport->config.program->segment[param];
    int64_t bytes = 0;
    for (uint32_t c = 0; c < segment->ncopies; c++)
        if (segment->copy[c].peer == rank)
            bytes += segment->copy[c].bytes;
    return bytes;
}

/* Takes the groups of one parameter, which may be several. */
static sluice_status take_param(const slc_transport *transport, slc_nccl_peer *peer, uint32_t number, slc_reader *reader,
                                sluice_error *error)
{
    const slc_param *param = slc_plan_at(transport->config.plan, number);
    int64_t moved = 0, mine = promised(transport, number, peer->rank);
    for (;;) {
        uint32_t count = slc_read_u32(reader);
        for (uint32_t i = 0; i < count; i++) {
            sluice_status status = take_copy(transport, peer, number, reader, &moved, error);
            if (status != SLUICE_OK)
                return status;
        }
        slc_reader ahead = *reader;
        if (slc_reader_left(reader) == 0 || slc_read_u32(&ahead) != number || ahead.failed)
            break;
        *reader = ahead;
    }
    return moved == mine ? SLUICE_OK
                         : slc_fail(error, SLUICE_DISAGREE, SLC_RUNTIME,
                                    "parameter %s: rank %" PRId32 " takes %" PRId64
                                    " bytes from this rank, whose program sends it %" PRId64,
                                    param->name, peer->rank, moved, mine);
}

static slc_begin begin_here(const slc_nccl_peer *peer)
{
    return (slc_begin){ .landing = (uint32_t)peer->nlandings, .move = (uint32_t)peer->moves.count };
}

/* Parameters up to `until` have no landings there, and must have none by this rank's own program. */
static sluice_status pass(const slc_transport *transport, slc_nccl_peer *peer, size_t *next, size_t until, sluice_error *error)
{
    for (; *next < until; ++*next) {
        peer->first[*next] = begin_here(peer);
        if (promised(transport, (uint32_t)*next, peer->rank) != 0)
            return slc_fail(error, SLUICE_DISAGREE, SLC_RUNTIME, "parameter %s: rank %" PRId32 " does not say where it lands",
                            slc_plan_at(transport->config.plan, *next)->name, peer->rank);
    }
    return SLUICE_OK;
}

sluice_status slc_landings_read(const slc_transport *transport, slc_nccl_peer *peer, const void *bytes, size_t length,
                                sluice_error *error)
{
    slc_reader reader = { .data = bytes, .length = length };
    size_t next = 0, count = transport->config.program->count;
    peer->first = slc_allocate((count + 1) * sizeof *peer->first);
    if (peer->first == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "where copies land", (count + 1) * sizeof *peer->first);
    sluice_status status = SLUICE_OK;
    while (status == SLUICE_OK && slc_reader_left(&reader) > 0) {
        uint32_t number = slc_read_u32(&reader);
        if (reader.failed || number < next || number >= count)
            return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "rank %" PRId32 " sent where copies land out of order",
                            peer->rank);
        status = pass(transport, peer, &next, number, error);
        if (status == SLUICE_OK) {
            peer->first[next++] = begin_here(peer);
            status = take_param(transport, peer, number, &reader, error);
        }
    }
    if (status == SLUICE_OK)
        status = pass(transport, peer, &next, count, error);
    if (status == SLUICE_OK && (peer->nlandings > UINT32_MAX || peer->moves.count > UINT32_MAX))
        status = slc_fail(error, SLUICE_UNSUPPORTED, SLC_RUNTIME, "rank %" PRId32 " takes %zu pieces from this rank", peer->rank,
                          peer->nlandings);
    peer->first[count] = begin_here(peer);
    return status;
}
