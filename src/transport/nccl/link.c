/*
 * link.c: a batch over the link. A trainer gathers the copies of each worker and launches them some at a time, so that the
 * GPU moves the first while the host issues the next, behind the word that says that the worker's tensors may be written,
 * and in front of the word that says they are. Full parameters are launched one by one: a worker tells by its mailbox which
 * staging slot is free. Owns nothing.
 */
#include "transport/nccl/internal.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <time.h>

enum { WORD = sizeof(uint64_t) };
/* Copies in the first launch to a worker, and how many times as many in the next: the GPU gets to work early, and few launches
   cost the host little. What the kernel carries costs the host next to nothing each, and the GPU something for each launch. */
enum { FIRST = 32, GROWTH = 4, MOST = FIRST * GROWTH * GROWTH, MOVES_FOR_A_COPY = 8 };

/* Until all that was put on a stream is done. */
static sluice_status await_stream(slc_transport *transport, CUstream stream, const char *what, int32_t rank, slc_wait *wait,
                                  sluice_error *error)
{
    const struct timespec pause = { .tv_nsec = 20000 };
    enum { EAGER = 2000 }; /* queries in a row before the thread begins to sleep in between */
    for (int tries = 0;; tries++) {
        CUresult result = transport->cuda.StreamQuery(stream);
        if (result != CUDA_ERROR_NOT_READY)
            return slc_nccl_check(transport, result, SLC_UPDATE, "moving parameters on the GPU", error);
        sluice_status status = slc_wait_tick(wait, what, rank, error);
        if (status != SLUICE_OK)
            return status;
        if (tries >= EAGER)
            (void)nanosleep(&pause, NULL);
    }
}

/* ---- the trainer: launching ---- */

sluice_status slc_link_prepare(slc_nccl_peer *peer, size_t nparams, sluice_error *error)
{
    size_t largest = 0;
    for (size_t i = 0; i < nparams; i++)
        if (peer->first[i + 1].landing - peer->first[i].landing > largest)
            largest = peer->first[i + 1].landing - peer->first[i].landing;
    size_t most = MOST + largest; /* before a launch there may be one fewer than MOST, and the parameter that goes beyond */
    return slc_copies_make(&peer->copies, most, error);
}

/* The first copies to a worker in a batch wait until this rank's sources are final and it has opened its tensors. */
static sluice_status enter_batch(slc_transport *transport, slc_nccl_peer *peer, sluice_error *error)
{
    if (peer->active)
        return SLUICE_OK;
    peer->active = true;
    peer->enough = FIRST;
    if (transport->recording != NULL)
        return SLUICE_OK;
    sluice_status status = slc_nccl_enter(transport, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    peer->batches++;
    CUdeviceptr opened = transport->words + (CUdeviceptr)(peer - transport->peer) * WORD;
    CUresult result = slc_caller_follow(&transport->caller, peer->stream);
    if (result == CUDA_SUCCESS)
        result = transport->cuda.StreamWaitValue64(peer->stream, opened, peer->batches, CU_STREAM_WAIT_VALUE_GEQ);
    return slc_nccl_check(transport, result, SLC_UPDATE, "waiting for a worker on the GPU", error);
}

static void queue(slc_nccl_peer *peer, const slc_landing *landing, CUdeviceptr source)
{
    slc_copies_add(&peer->copies, landing, landing->to, source + (CUdeviceptr)landing->from);
}

/* Launches what is queued for a worker and, unless `word` is 0, raises that word of it behind all that was launched before. */
static sluice_status launch(slc_transport *transport, slc_nccl_peer *peer, CUdeviceptr word, uint64_t value, sluice_error *error)
{
    if (transport->recording != NULL)
        return slc_record_take(transport->recording, peer, error);
    sluice_status status = slc_nccl_enter(transport, SLC_UPDATE, error);
    if (status != SLUICE_OK)
        return status;
    CUresult result = slc_copies_launch(&transport->cuda, &peer->copies, peer->stream);
    if (result == CUDA_SUCCESS)
        result = slc_moves_launch(&peer->moves, &transport->kernels, peer->first_move, peer->end_move - peer->first_move, 0,
                                  peer->stream);
    peer->first_move = peer->end_move;
    if (result == CUDA_SUCCESS && word != 0)
        result = transport->cuda.StreamWriteValue64(peer->stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return slc_nccl_check(transport, result, SLC_UPDATE, "launching copies to a worker", error);
}

/* ---- the trainer: a segment ---- */

/* Where the next full parameter goes, as soon as the worker has a free slot for it. */
static sluice_status await_slot(slc_nccl_peer *peer, slc_wait *wait, uint64_t *slot, sluice_error *error)
{
    const struct timespec pause = { .tv_nsec = 20000 };
    uint64_t number = ++peer->staged;
    *slot = 0;
    while (atomic_load_explicit(&peer->mailbox->number, memory_order_acquire) < number) {
        sluice_status status = slc_wait_tick(wait, "waiting for a staging slot of", peer->rank, error);
        if (status != SLUICE_OK)
            return status;
        (void)nanosleep(&pause, NULL);
    }
    *slot = peer->mailbox->slot;
    return *slot < peer->slots
               ? SLUICE_OK
               : slc_fail(error, SLUICE_PEER, SLC_UPDATE, "rank %" PRId32 " names staging slot %" PRIu64 " of %" PRIu64,
                          peer->rank, *slot, peer->slots);
}

/*
 * What the kernel carries of a parameter, in a launch with what stands beside it in the table. Sources that are no longer
 * where the table says are looked up anew, all at once, after what is under way.
 */
static sluice_status gather_moves(slc_transport *transport, slc_nccl_peer *peer, uint32_t param, CUdeviceptr source, slc_wait *wait,
                                  sluice_error *error)
{
    size_t first = peer->first[param].move, end = peer->first[param + 1].move;
    if (first == end)
        return SLUICE_OK;
    sluice_status status = SLUICE_OK;
    bool aimed = slc_way_aimed(peer, param, source);
    bool goes_on = peer->first_move == peer->end_move || first == peer->end_move || end == peer->first_move;
    if (!aimed || !goes_on)
        status = launch(transport, peer, 0, 0, error);
    if (status == SLUICE_OK && !aimed)
        status = slc_nccl_enter(transport, SLC_UPDATE, error);
    if (status == SLUICE_OK && !aimed)
        status = await_stream(transport, peer->stream, "sending to", peer->rank, wait, error);
    if (status == SLUICE_OK && !aimed)
        status = slc_way_aim(transport, peer, error);
    bool none = peer->first_move == peer->end_move;
    if (none || end == peer->first_move)
        peer->first_move = first;
    if (none || first == peer->end_move)
        peer->end_move = end;
    return status;
}

static sluice_status send_to(slc_transport *transport, slc_nccl_peer *peer, uint32_t param, CUdeviceptr source, slc_wait *wait,
                             sluice_error *error)
{
    uint32_t begin = peer->first[param].landing, end = peer->first[param + 1].landing;
    if (begin == end && peer->first[param].move == peer->first[param + 1].move)
        return SLUICE_OK;
    sluice_status status = enter_batch(transport, peer, error);
    if (status == SLUICE_OK)
        status = gather_moves(transport, peer, param, source, wait, error);
    if (status != SLUICE_OK)
        return status;
    if (begin == end || !peer->landing[begin].staged) {
        for (uint32_t i = begin; i < end; i++)
            queue(peer, &peer->landing[i], source);
        if (slc_copies_count(&peer->copies) + (peer->end_move - peer->first_move) / MOVES_FOR_A_COPY < peer->enough)
            return SLUICE_OK;
        peer->enough = peer->enough < MOST ? peer->enough * GROWTH : MOST;
        return launch(transport, peer, 0, 0, error);
    }
    uint64_t slot;
    status = await_slot(peer, wait, &slot, error);
    for (uint32_t i = begin; i < end && status == SLUICE_OK; i++) {
        slc_landing landing = peer->landing[i];
        landing.to += peer->staging + slot * peer->slot_bytes;
        queue(peer, &landing, source);
    }
    return status == SLUICE_OK ? launch(transport, peer, peer->word + WORD, peer->staged, error) : status;
}

sluice_status slc_link_send(slc_transport *transport, const slc_segment *segment, slc_wait *wait, sluice_error *error)
{
    const void *source = transport->config.source[segment->param];
    if (transport->launching_ns == 0 && transport->recording == NULL)
        transport->launching_ns = slc_now_ns();
    if (segment->ncopies > 0 && source == NULL)
        return slc_fail(error, SLUICE_INVALID, SLC_UPDATE, "parameter %s has no source memory on this rank",
                        slc_plan_at(transport->config.plan, segment->param)->name);
    sluice_status status = SLUICE_OK;
    slc_wait own = slc_wait_sooner(wait);
    int32_t last = -1;
    for (uint32_t i = 0; i < segment->ncopies && status == SLUICE_OK; i++) {
        if (segment->copy[i].peer == last)
            continue;
        last = segment->copy[i].peer;
        slc_nccl_peer *peer = slc_nccl_peer_of(transport, last);
        if (!peer->by_wire)
            status = send_to(transport, peer, segment->param, (CUdeviceptr)(uintptr_t)source, &own, error);
    }
    return status;
}

/* ---- the trainer: a record ---- */

sluice_status slc_link_record_end(slc_transport *transport, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_nccl_peer *peer = &transport->peer[i];
        if (peer->active && status == SLUICE_OK)
            status = launch(transport, peer, 0, 0, error);
        peer->active = false;
    }
    return status;
}

/* Where the kernel reads: another batch may have looked sources up that are not those of the record. */
static sluice_status aim_again(slc_transport *transport, const slc_record *record, slc_nccl_peer *peer, sluice_error *error)
{
    bool aimed = true;
    for (size_t i = 0; i < record->count && aimed && peer->moves.count > 0; i++)
        aimed = slc_way_aimed(peer, record->param[i], (CUdeviceptr)(uintptr_t)transport->config.source[record->param[i]]);
    return aimed ? SLUICE_OK : slc_way_aim(transport, peer, error);
}

static CUresult launch_again(const slc_transport *transport, const slc_sending *to, size_t turn)
{
    slc_launch *launch = &to->launch[turn];
    CUresult result = CUDA_SUCCESS;
    if (to->graph == NULL)
        result = slc_copies_issue(&transport->cuda, &launch->copies, to->peer->stream);
    else if (turn == 0)
        result = transport->cuda.GraphLaunch(to->graph, to->peer->stream);
    return result == CUDA_SUCCESS ? slc_moves_launch(&to->peer->moves, &transport->kernels, launch->first_move,
                                                     launch->end_move - launch->first_move, 0, to->peer->stream)
                                  : result;
}

/* The first launches of all workers come first, so that none waits for another one's. */
sluice_status slc_link_replay(slc_transport *transport, slc_record *record, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    transport->launching_ns = slc_now_ns();
    for (size_t i = 0; i < record->nto && status == SLUICE_OK; i++)
        status = aim_again(transport, record, record->to[i].peer, error);
    for (size_t i = 0; i < record->nto && status == SLUICE_OK; i++)
        status = enter_batch(transport, record->to[i].peer, error);
    bool more = status == SLUICE_OK;
    CUresult result = CUDA_SUCCESS;
    for (size_t turn = 0; more && result == CUDA_SUCCESS; turn++) {
        more = false;
        for (size_t i = 0; i < record->nto && result == CUDA_SUCCESS; i++) {
            const slc_sending *to = &record->to[i];
            if (turn < to->count)
                result = launch_again(transport, to, turn);
            more = more || turn + 1 < to->count;
        }
    }
    return status == SLUICE_OK ? slc_nccl_check(transport, result, SLC_UPDATE, "launching copies to a worker", error) : status;
}

/* ---- the worker: a segment ---- */

/* This rank's words for a trainer: done, and staged behind it. */
static CUdeviceptr words_for(const slc_transport *transport, const slc_nccl_peer *peer)
{
    return transport->words + (CUdeviceptr)(peer - transport->peer) * 2 * WORD;
}

static sluice_status open_to(slc_transport *transport, slc_nccl_peer *peer, sluice_error *error)
{
    if (peer->active || peer->by_wire)
        return SLUICE_OK;
    peer->active = true;
    peer->batches++;
    return slc_nccl_check(
        transport,
        transport->cuda.StreamWriteValue64(transport->stream, peer->word, peer->batches, CU_STREAM_WRITE_VALUE_DEFAULT),
        SLC_UPDATE, "opening live tensors to a trainer", error);
}

static sluice_status clear(slc_transport *transport, const slc_fill *fill, sluice_error *error)
{
    const slc_cuda *cuda = &transport->cuda;
    CUdeviceptr base = (CUdeviceptr)(uintptr_t)transport->config.live->item[fill->buffer].data + (CUdeviceptr)fill->destination;
    int64_t index[SLC_MAX_DIMS] = { 0 };
    uint32_t outer = fill->ndim > 0 ? fill->ndim - 1 : 0;
    for (;;) {
        CUdeviceptr at = base;
        for (uint32_t d = 0; d < outer; d++)
            at += (CUdeviceptr)(index[d] * fill->dim[d].destination);
        CUresult result = fill->ndim == 0 ? cuda->MemsetD8Async(at, 0, (size_t)fill->run, transport->stream)
                                          : cuda->MemsetD2D8Async(at, (size_t)fill->dim[outer].destination, 0, (size_t)fill->run,
                                                                  (size_t)fill->dim[outer].count, transport->stream);
        if (result != CUDA_SUCCESS)
            return slc_nccl_check(transport, result, SLC_UPDATE, "clearing padding", error);
        uint32_t d = outer;
        while (d > 0 && ++index[d - 1] == fill->dim[d - 1].count)
            index[--d] = 0;
        if (d == 0)
            return SLUICE_OK;
    }
}

/*
 * The first trainer whose full parameter is not there yet: who keeps the stream waiting. A look at the words themselves;
 * where that fails, the first that takes part.
 */
static int32_t latest(slc_transport *transport)
{
    uint64_t *words = transport->seen;
    CUdeviceptr there = transport->words, here = (CUdeviceptr)(uintptr_t)words;
    bool looked = transport->cuda.MemcpyAsync(here, there, transport->npeers * 2 * WORD, transport->rescue) == CUDA_SUCCESS &&
                  transport->cuda.StreamSynchronize(transport->rescue) == CUDA_SUCCESS;
    int32_t rank = -1;
    for (size_t i = 0; i < transport->npeers; i++) {
        const slc_nccl_peer *peer = &transport->peer[i];
        if (!peer->active)
            continue;
        if (looked && words[2 * i + 1] < peer->staged)
            return peer->rank;
        if (rank < 0)
            rank = peer->rank;
    }
    return rank;
}

/* Until this worker's stream has come to its end. A deadline that passes names who is late, not who was asked last. */
static sluice_status await_staged(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = await_stream(transport, transport->stream, "receiving from", -1, wait, error);
    if (status != SLUICE_TIMEOUT)
        return status;
    int32_t rank = latest(transport);
    slc_fail(error, SLUICE_TIMEOUT, wait->stage, "receiving from rank %" PRId32 " took longer than %g s", rank,
             wait->deadline.seconds);
    if (error != NULL)
        error->rank = rank;
    return SLUICE_TIMEOUT;
}

/* A full parameter: each trainer that holds a part is told the slot, and the call returns when all parts are there. */
static sluice_status receive_staged(slc_transport *transport, const slc_segment *segment, uint64_t slot, slc_wait *wait,
                                    sluice_error *error)
{
    sluice_status status = slc_caller_await(&transport->caller, slot, transport->config.rank, wait, error);
    int32_t last = -1;
    for (uint32_t i = 0; i < segment->ncopies && status == SLUICE_OK; i++) {
        slc_nccl_peer *peer = slc_nccl_peer_of(transport, segment->copy[i].peer);
        if (peer->rank == last || peer->by_wire)
            continue;
        last = peer->rank;
        slc_mailbox *mailbox = &transport->mailbox[peer - transport->peer];
        mailbox->slot = slot;
        atomic_store_explicit(&mailbox->number, ++peer->staged, memory_order_release);
        status = slc_nccl_check(transport,
                                transport->cuda.StreamWaitValue64(transport->stream, words_for(transport, peer) + WORD,
                                                                  peer->staged, CU_STREAM_WAIT_VALUE_GEQ),
                                SLC_UPDATE, "waiting for a full parameter on the GPU", error);
    }
    return status == SLUICE_OK && last >= 0 ? await_staged(transport, wait, error) : status;
}

sluice_status slc_link_receive(slc_transport *transport, const slc_segment *segment, void *staging, slc_wait *wait,
                               sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (uint32_t i = 0; i < segment->ncopies && status == SLUICE_OK; i++)
        status = open_to(transport, slc_nccl_peer_of(transport, segment->copy[i].peer), error);
    for (uint32_t i = 0; i < segment->nfills && status == SLUICE_OK; i++)
        status = clear(transport, &segment->fill[i], error);
    if (status != SLUICE_OK || staging == NULL)
        return status;
    uint64_t offset = (uint64_t)(uintptr_t)staging - transport->staging;
    return receive_staged(transport, segment, offset / transport->slot_bytes, wait, error);
}

/* ---- the end of a batch ---- */

static sluice_status end_trainer(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < transport->npeers && status == SLUICE_OK; i++)
        if (transport->peer[i].active)
            status = launch(transport, &transport->peer[i], transport->peer[i].word, transport->peer[i].batches, error);
    if (transport->launching_ns != 0) /* scripts/bench-gpu reads it */
        slc_say(&transport->config.log, SLUICE_LOG_DEBUG, "nccl: launched in %.1f us",
                (double)(slc_now_ns() - transport->launching_ns) * 1e-3);
    transport->launching_ns = 0;
    for (size_t i = 0; i < transport->npeers && status == SLUICE_OK; i++) {
        slc_nccl_peer *peer = &transport->peer[i];
        if (!peer->active)
            continue;
        status = await_stream(transport, peer->stream, "sending to", peer->rank, wait, error);
        if (status == SLUICE_OK)
            atomic_store_explicit(&peer->mailbox->done, peer->batches, memory_order_release);
    }
    return status;
}

/* A stream that waits on the GPU takes from what computes beside it: until the trainer says that all has moved none does. */
static sluice_status await_done(slc_transport *transport, const slc_nccl_peer *peer, slc_wait *wait, sluice_error *error)
{
    const struct timespec pause = { .tv_nsec = 20000 };
    enum { EAGER = 20000 }; /* looks in a row before the thread begins to sleep in between */
    const slc_mailbox *mailbox = &transport->mailbox[peer - transport->peer];
    for (int tries = 0; atomic_load_explicit(&mailbox->done, memory_order_acquire) < peer->batches; tries++) {
        sluice_status status = slc_wait_tick(wait, "receiving from", peer->rank, error);
        if (status != SLUICE_OK)
            return status;
        if (tries >= EAGER)
            (void)nanosleep(&pause, NULL);
    }
    return SLUICE_OK;
}

static sluice_status end_worker(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    for (size_t i = 0; i < transport->npeers; i++) {
        slc_nccl_peer *peer = &transport->peer[i];
        if (!peer->active)
            continue;
        sluice_status status = await_done(transport, peer, wait, error);
        if (status != SLUICE_OK)
            return status;
        CUresult result = transport->cuda.StreamWaitValue64(transport->stream, words_for(transport, peer), peer->batches,
                                                            CU_STREAM_WAIT_VALUE_GEQ);
        if (result != CUDA_SUCCESS)
            return slc_nccl_check(transport, result, SLC_UPDATE, "waiting for a trainer on the GPU", error);
    }
    return await_stream(transport, transport->stream, "the GPU of", transport->config.rank, wait, error);
}

sluice_status slc_link_end(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    slc_wait own = slc_wait_sooner(wait);
    sluice_status status = transport->worker ? end_worker(transport, wait, error) : end_trainer(transport, &own, error);
    for (size_t i = 0; i < transport->npeers; i++)
        transport->peer[i].active = false;
    return status;
}

/*
 * A stream that waits for a word that will not come is stuck, and with it whatever the host wants to release. This rank
 * raises its own words for good: copies that waited run into memory that the batch had been agreed for, and is dirty.
 */
void slc_link_abort(slc_transport *transport)
{
    const uint64_t last = INT64_MAX;
    size_t count = transport->npeers * (transport->worker ? 2 : 1);
    for (size_t i = 0; i < count; i++)
        (void)transport->cuda.StreamWriteValue64(transport->rescue, transport->words + i * WORD, last,
                                                 CU_STREAM_WRITE_VALUE_DEFAULT);
}
