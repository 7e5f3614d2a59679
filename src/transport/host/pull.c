/* pull.c: see pull.h. Holds the queues; knows nothing of regions and rings. */
#include "transport/host/pull.h"

#include "transport/host/internal.h"
#include "transport/host/strided.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    CALL_BYTES = 8 << 20, /* of one call, so that waits are watched */

    /*
     * A vector costs about as long as reading VECTOR_COST bytes. Rows shorter than SHORT_RUN are read together with what
     * lies between them where that is less, counting the second copy, out of the bounce buffer, as half a row.
     */
    VECTOR_COST = 2400,
    SHORT_RUN = 2048,

    BLOCK_BYTES = 64 << 10, /* of one covering read */
    CROSSED_BLOCK = 4 << 10, /* of a source row, where rows become columns: many rows fit the bounce buffer */
};

sluice_status slc_pull_open(slc_pull_queue *queue, sluice_error *error)
{
    *queue = (slc_pull_queue){ 0 };
    const size_t bytes = SLC_PULL_VECTORS * sizeof(struct iovec);
    queue->local = slc_allocate(2 * bytes);
    if (queue->local == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the vectors of a peer", 2 * bytes);
    queue->remote = queue->local + SLC_PULL_VECTORS;
    return SLUICE_OK;
}

void slc_pull_close(slc_pull_queue *queue)
{
    slc_release(queue->local);
    *queue = (slc_pull_queue){ 0 };
}

sluice_status slc_pull_bounce_open(slc_pull_bounce *bounce, sluice_error *error)
{
    *bounce = (slc_pull_bounce){ .data = slc_allocate(SLC_BOUNCE_BYTES) };
    bounce->spread = bounce->data == NULL ? NULL : slc_allocate(SLC_PULL_SPREADS * sizeof *bounce->spread);
    if (bounce->spread == NULL) {
        slc_pull_bounce_close(bounce);
        return slc_fail_memory(error, SLC_RUNTIME, "the buffer for short rows", SLC_BOUNCE_BYTES + SLC_PULL_SPREADS * sizeof *bounce->spread);
    }
    return SLUICE_OK;
}

void slc_pull_bounce_close(slc_pull_bounce *bounce)
{
    slc_release(bounce->data);
    slc_release(bounce->spread);
    *bounce = (slc_pull_bounce){ 0 };
}

/* ---- errors ---- */

static void *remote_pointer(uint64_t address)
{
    return (void *)(uintptr_t)address; /* of the peer: never followed here */
}

/* The parameter that a byte of the peer belongs to, found by looking through the program: only for messages. */
static const char *param_at(slc_transport *transport, const slc_host_peer *peer, uint64_t address)
{
    const slc_program *program = transport->config.program;
    for (size_t i = 0; i < program->count; i++)
        for (uint32_t j = 0; j < program->segment[i].ncopies; j++) {
            const slc_copy *copy = &program->segment[i].copy[j];
            uint64_t first = peer->table.address[program->segment[i].param] + (uint64_t)copy->source;
            if (copy->peer == peer->rank && address >= first && address - first < (uint64_t)slc_copy_span(copy))
                return slc_host_param(transport, program->segment[i].param);
        }
    return "?";
}

/* Marks an error as the peer's. */
static sluice_status of_peer(const slc_host_peer *peer, sluice_error *error)
{
    if (error != NULL) {
        error->status = SLUICE_PEER;
        error->rank = peer->rank;
    }
    return SLUICE_PEER;
}

/* A peer that has ended may have done so for another rank's sake: whether that is what the watch says, in *error. */
static bool ended_for_another(const slc_host_peer *peer, slc_wait *wait, sluice_status *status, sluice_error *error)
{
    sluice_error why = SLUICE_ERROR_INIT;
    *status = slc_wait_reason(wait, &why);
    if (*status == SLUICE_OK || why.rank == peer->rank)
        return false;
    (void)slc_error_copy(error, &why);
    return true;
}

static sluice_status read_failed(slc_transport *transport, const slc_host_peer *peer, int cause, slc_wait *wait,
                                 sluice_error *error)
{
    sluice_status status;
    if (cause == ESRCH && ended_for_another(peer, wait, &status, error))
        return status;
    uint64_t address = (uint64_t)(uintptr_t)peer->queue.remote[0].iov_base;
    slc_fail_errno(error, cause, SLC_UPDATE,
                   "parameter %s: reading from rank %" PRId32 " (pid %" PRId32 ", address 0x%" PRIx64 ")%s",
                   param_at(transport, peer, address), peer->rank, peer->card.pid, address,
                   cause == ESRCH    ? ": that process has ended"
                   : cause == EFAULT ? ": that memory is not mapped there, or not here"
                                     : "");
    return of_peer(peer, error);
}

void slc_pull_hint(char *text, size_t size)
{
    char scope[8] = "";
    int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, scope, sizeof scope - 1);
        scope[got > 0 ? got : 0] = '\0';
        scope[strcspn(scope, "\n")] = '\0';
        close(fd);
    }
    text[0] = '\0';
    if (scope[0] != '\0' && scope[0] != '0')
        snprintf(text, size, "; kernel.yama.ptrace_scope is %s", scope);
}

bool slc_pull_try(const slc_host_peer *peer, int *cause)
{
    unsigned char mark[SLC_MARK_BYTES];
    struct iovec local = { .iov_base = mark, .iov_len = sizeof mark };
    struct iovec remote = { .iov_base = remote_pointer(peer->card.mark_address), .iov_len = sizeof mark };
    ssize_t got = process_vm_readv(peer->card.pid, &local, 1, &remote, 1, 0);
    *cause = got < 0 ? errno : got != sizeof mark || memcmp(mark, peer->card.mark, sizeof mark) != 0 ? -1 : 0;
    return *cause == 0;
}

sluice_status slc_pull_check(const slc_host_peer *peer, slc_wait *wait, sluice_error *error)
{
    int cause;
    sluice_status status;
    if (slc_pull_try(peer, &cause))
        return SLUICE_OK;
    bool gone = cause < 0 || cause == ESRCH || cause == EFAULT;
    if (gone && ended_for_another(peer, wait, &status, error))
        return status;
    if (gone)
        slc_fail(error, SLUICE_PEER, wait->stage, "rank %" PRId32 " is gone (pid %" PRId32 " %s)", peer->rank, peer->card.pid,
                 cause == ESRCH ? "has ended" : "is another process now");
    else
        slc_fail_errno(error, cause, wait->stage, "reading from rank %" PRId32 " (pid %" PRId32 ") is no longer allowed",
                       peer->rank, peer->card.pid);
    return of_peer(peer, error);
}

/* ---- the queue of a peer ---- */

/* Drops `bytes` from the front of a list. */
static void consume(struct iovec **list, uint32_t *count, size_t bytes)
{
    while (*count > 0 && bytes >= (*list)->iov_len) {
        bytes -= (*list)->iov_len;
        (*list)++;
        (*count)--;
    }
    if (bytes > 0) {
        (*list)->iov_base = (unsigned char *)(*list)->iov_base + bytes;
        (*list)->iov_len -= bytes;
    }
}

static sluice_status flush(slc_transport *transport, slc_host_peer *peer, slc_wait *wait, sluice_error *error)
{
    slc_pull_queue *queue = &peer->queue;
    struct iovec *local = queue->local, *remote = queue->remote;
    while (queue->bytes > 0) {
        ssize_t got = process_vm_readv(peer->card.pid, local, queue->nlocal, remote, queue->nremote, 0);
        if (got <= 0) {
            int cause = got < 0 ? errno : EFAULT;
            queue->remote[0] = remote[0];
            return read_failed(transport, peer, cause, wait, error);
        }
        queue->bytes -= (size_t)got;
        consume(&local, &queue->nlocal, (size_t)got);
        consume(&remote, &queue->nremote, (size_t)got);
    }
    queue->nlocal = queue->nremote = 0;
    return slc_wait_tick(wait, "reading from", peer->rank, error);
}

/* Makes the last vector longer where `base` follows it, else appends one; false when the list is full. */
static bool append(struct iovec *list, uint32_t *count, void *base, size_t bytes)
{
    if (*count > 0) {
        struct iovec *last = &list[*count - 1];
        if ((unsigned char *)last->iov_base + last->iov_len == base) {
            last->iov_len += bytes;
            return true;
        }
        if (*count == SLC_PULL_VECTORS)
            return false;
    }
    list[(*count)++] = (struct iovec){ .iov_base = base, .iov_len = bytes };
    return true;
}

sluice_status slc_pull_push(slc_transport *transport, slc_host_peer *peer, unsigned char *destination, uint64_t source,
                          size_t bytes, slc_wait *wait, sluice_error *error)
{
    slc_pull_queue *queue = &peer->queue;
    while (bytes > 0) {
        if (queue->bytes >= CALL_BYTES || queue->nlocal == SLC_PULL_VECTORS || queue->nremote == SLC_PULL_VECTORS) {
            sluice_status status = flush(transport, peer, wait, error);
            if (status != SLUICE_OK)
                return status;
        }
        size_t part = CALL_BYTES - queue->bytes < bytes ? CALL_BYTES - queue->bytes : bytes;
        append(queue->local, &queue->nlocal, destination, part);
        append(queue->remote, &queue->nremote, remote_pointer(source), part);
        queue->bytes += part;
        destination += part;
        source += part;
        bytes -= part;
    }
    return SLUICE_OK;
}

sluice_status slc_pull_drain(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    for (size_t i = 0; i < transport->npeers; i++)
        if (transport->peer[i].queue.bytes > 0) {
            sluice_status status = flush(transport, &transport->peer[i], wait, error);
            if (status != SLUICE_OK)
                return status;
        }
    slc_pull_bounce *bounce = &transport->bounce;
    for (uint32_t i = 0; i < bounce->nspreads; i++) {
        const struct slc_pull_spread *spread = &bounce->spread[i];
        slc_strided_move(spread->destination, spread->source, &spread->copy);
    }
    bounce->nspreads = 0;
    bounce->used = 0;
    return SLUICE_OK;
}

struct slc_pull_spread *slc_pull_note(slc_pull_bounce *bounce, const slc_copy *copy, unsigned char *destination)
{
    struct slc_pull_spread *spread = &bounce->spread[bounce->nspreads++];
    *spread = (struct slc_pull_spread){ .destination = destination, .source = bounce->data + bounce->used };
    spread->copy = (slc_copy){ .cast = copy->cast, .run = copy->run, .dim = spread->dim };
    return spread;
}

/* ---- one copy ---- */

bool slc_pull_next(const slc_stride *dim, uint32_t ndim, int64_t *index, int64_t *source, int64_t *destination)
{
    for (uint32_t i = ndim; i > 0; i--) {
        slc_stride d = dim[i - 1];
        *source += d.source;
        *destination += d.destination;
        if (++index[i - 1] < d.count)
            return true;
        *source -= d.count * d.source;
        *destination -= d.count * d.destination;
        index[i - 1] = 0;
    }
    return false;
}

static sluice_status pull_rows(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                               uint64_t source, slc_wait *wait, sluice_error *error)
{
    int64_t index[SLC_MAX_DIMS] = { 0 }, from = 0, to = 0;
    do {
        sluice_status status = slc_pull_push(transport, peer, destination + to, source + (uint64_t)from, (size_t)copy->run, wait, error);
        if (status != SLUICE_OK)
            return status;
    } while (slc_pull_next(copy->dim, copy->ndim, index, &from, &to));
    return SLUICE_OK;
}

/*
 * How a copy of short rows is read. Dims [first, ndim) make one block: `span` source bytes in one vector, gaps included.
 * Of the dim before them (the line), `steps` blocks with their gaps make one vector where that is more than one.
 */
typedef struct shape {
    uint32_t first;
    int64_t span, steps;
} shape;

static shape shape_of(const slc_copy *copy)
{
    const int64_t run = slc_copy_source_run(copy);
    shape s = { .first = copy->ndim, .span = run, .steps = 1 };
    while (s.first > 0) {
        slc_stride d = copy->dim[s.first - 1];
        if (d.source - s.span > VECTOR_COST - run / 2)
            break;
        int64_t most = (BLOCK_BYTES - s.span) / (d.source > 0 ? d.source : 1) + 1;
        if (most < d.count) {
            s.steps = most;
            break;
        }
        s.span += (d.count - 1) * d.source;
        s.first--;
    }
    return s;
}

/* `count` blocks of the line from `source` on: read into the bounce buffer, noted for spreading. */
static sluice_status pull_blocks(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, shape s, int64_t count,
                                 unsigned char *destination, uint64_t source, slc_wait *wait, sluice_error *error)
{
    slc_pull_bounce *bounce = &transport->bounce;
    unsigned char *at = bounce->data + bounce->used;
    struct slc_pull_spread *spread = slc_pull_note(bounce, copy, destination);
    slc_stride line = { .count = 1 };
    if (s.first > 0) {
        line = copy->dim[s.first - 1];
        spread->dim[spread->copy.ndim++] =
            (slc_stride){ .count = count, .source = s.steps > 1 ? line.source : s.span, .destination = line.destination };
    }
    for (uint32_t i = s.first; i < copy->ndim; i++)
        spread->dim[spread->copy.ndim++] = copy->dim[i];
    size_t bytes = (size_t)(s.steps > 1 ? (count - 1) * line.source + s.span : count * s.span);
    bounce->used += bytes;
    if (s.steps > 1)
        return slc_pull_push(transport, peer, at, source, bytes, wait, error);
    sluice_status status = SLUICE_OK;
    for (int64_t i = 0; i < count && status == SLUICE_OK; i++)
        status = slc_pull_push(transport, peer, at + i * s.span, source + (uint64_t)(i * line.source), (size_t)s.span, wait, error);
    return status;
}

/* How many blocks the bounce buffer still takes, up to `wanted`. */
static int64_t room(const slc_pull_bounce *bounce, shape s, int64_t stride, int64_t wanted)
{
    int64_t left = SLC_BOUNCE_BYTES - (int64_t)bounce->used;
    if (bounce->nspreads == SLC_PULL_SPREADS || left < s.span)
        return 0;
    int64_t most = s.steps > 1 ? (left - s.span) / stride + 1 : left / s.span;
    if (s.steps > 1 && most > s.steps)
        most = s.steps;
    return most < wanted ? most : wanted;
}

static sluice_status pull_short_rows(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, shape s,
                                     unsigned char *destination, uint64_t source, slc_wait *wait, sluice_error *error)
{
    uint32_t nouter = s.first > 0 ? s.first - 1 : 0;
    slc_stride line = s.first > 0 ? copy->dim[s.first - 1] : (slc_stride){ .count = 1 };
    int64_t index[SLC_MAX_DIMS] = { 0 }, from = 0, to = 0;
    do {
        for (int64_t i = 0; i < line.count;) {
            int64_t count = room(&transport->bounce, s, line.source, line.count - i);
            sluice_status status = count > 0
                                       ? pull_blocks(transport, peer, copy, s, count, destination + to + i * line.destination,
                                                     source + (uint64_t)(from + i * line.source), wait, error)
                                       : slc_pull_drain(transport, wait, error);
            if (status != SLUICE_OK)
                return status;
            i += count;
        }
    } while (slc_pull_next(copy->dim, nouter, index, &from, &to));
    return SLUICE_OK;
}

/*
 * Where rows become columns, a run at the destination is as long as there are rows in the bounce buffer. So the dim of the
 * rows comes next to the last one, and long rows are taken in pieces.
 */
static sluice_status pull_crossed(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, uint32_t crossed,
                                  unsigned char *destination, uint64_t source, slc_wait *wait, sluice_error *error)
{
    slc_stride dim[SLC_MAX_DIMS];
    uint32_t last = copy->ndim - 1, count = 0;
    for (uint32_t i = 0; i < last; i++)
        if (i != crossed)
            dim[count++] = copy->dim[i];
    dim[count++] = copy->dim[crossed];
    slc_stride row = copy->dim[last];
    slc_copy part = *copy;
    part.dim = dim;
    int64_t piece = CROSSED_BLOCK / row.source;
    for (int64_t i = 0; i < row.count; i += piece) {
        dim[last] = row;
        dim[last].count = row.count - i < piece ? row.count - i : piece;
        sluice_status status = pull_short_rows(transport, peer, &part, shape_of(&part), destination + i * row.destination,
                                               source + (uint64_t)(i * row.source), wait, error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

/* Whether the rows that become columns are long enough to be read one by one, and too long to be read in blocks. */
static bool cross(const slc_copy *copy, uint32_t crossed)
{
    slc_stride row = copy->dim[copy->ndim - 1];
    return crossed < copy->ndim && row.source > 0 && row.source <= CROSSED_BLOCK / 4 &&
           copy->dim[crossed].source > CROSSED_BLOCK && row.count * row.source >= CROSSED_BLOCK / 4;
}

sluice_status slc_pull_copy(slc_transport *transport, slc_host_peer *peer, const slc_copy *copy, unsigned char *destination,
                            uint64_t source, slc_wait *wait, sluice_error *error)
{
    if (copy->bytes == 0)
        return SLUICE_OK;
    if (copy->grid != NULL)
        return slc_pull_grids(transport, peer, copy, destination, source, wait, error);
    if (copy->run < SHORT_RUN && copy->ndim > 0) {
        uint32_t crossed = slc_strided_crossed(copy->run, copy->ndim, copy->dim);
        if (cross(copy, crossed))
            return pull_crossed(transport, peer, copy, crossed, destination, source, wait, error);
        shape s = shape_of(copy);
        if (s.first < copy->ndim || s.steps > 1 || copy->cast != SLC_CAST_NONE)
            return pull_short_rows(transport, peer, copy, s, destination, source, wait, error);
    }
    return pull_rows(transport, peer, copy, destination, source, wait, error);
}
