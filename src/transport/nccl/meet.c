/*
 * meet.c: how a worker and the trainers of its machine meet, once, in connect. The trainer asks, the worker answers:
 *
 *     HELLO token, rank, where its words lie  ->  sizes, where the worker's words lie; the mailboxes' descriptor
 *     PIECES from the i-th                    ->  up to 32 pieces of the worker's memory, with descriptors where they have them
 *     LANDINGS from byte i                    ->  where copies from this trainer land
 *     BYE, or WIRE                            ->  nothing; both close
 *
 * Either may find that the link cannot be made: the worker answers HELLO so, the trainer says WIRE in the place of BYE.
 */
#include "transport/host/map.h"
#include "transport/nccl/internal.h"
#include "transport/peers.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEET_VERSION = 3, CHUNK = 32 << 10 };
enum { ASK_HELLO = 1, ASK_PIECES = 2, ASK_LANDINGS = 3, ASK_BYE = 4, ASK_WIRE = 5 };

typedef struct ask {
    uint32_t version, what;
    int32_t rank;
    uint32_t reserved;
    uint64_t from;
    unsigned char token[SLC_TOKEN_BYTES];
    slc_piece words; /* HELLO */
    uint64_t word;
} ask;

typedef struct answer {
    uint32_t version, what;
    uint64_t pieces, landings; /* how many; bytes */
    uint64_t word; /* of this trainer: done, and staged behind it */
    uint64_t staging, slots, slot_bytes;
    uint64_t mailboxes, mailbox; /* of all; this trainer's */
    uint64_t count; /* of what follows: pieces, or bytes */
    uint64_t by_wire; /* HELLO: the link cannot be made; the rest is 0 */
    union {
        slc_piece piece[SLC_LOCAL_FDS];
        unsigned char bytes[CHUNK];
    } body;
} answer;

_Static_assert(sizeof(ask) <= SLC_LOCAL_ASK, "an ask fits what the side that listens takes");

static slc_local_peer met(const slc_nccl_peer *peer)
{
    return (slc_local_peer){ .rank = peer->rank, .pid = peer->card.pid, .socket = peer->card.socket };
}

static sluice_status lost(const slc_nccl_peer *peer, const char *how, sluice_error *error)
{
    slc_local_peer who = met(peer);
    return slc_local_lost(&who, SLC_RUNTIME, how, error);
}

/* The piece in which this rank's own words lie. */
static sluice_status words_piece(const slc_transport *transport, slc_piece *piece, sluice_error *error)
{
    slc_pieces pieces = { 0 };
    sluice_status status =
        slc_pieces_add(&transport->device, &pieces, (const void *)(uintptr_t)transport->words, 1, "a rank's words", error);
    if (status == SLUICE_OK) {
        slc_pieces_settle(&pieces);
        *piece = pieces.item[0];
        if (piece->kind != SLC_PIECE_IPC)
            status = slc_fail(error, SLUICE_UNSUPPORTED, SLC_RUNTIME, "memory of cuMemAlloc has no IPC handle here");
    }
    slc_pieces_clear(&pieces);
    return status;
}

/* ---- the worker ---- */

static size_t known_peer(const slc_transport *transport, const ask *a)
{
    unsigned char differs = 0;
    for (size_t i = 0; i < SLC_TOKEN_BYTES; i++)
        differs = (unsigned char)(differs | (a->token[i] ^ transport->card.token[i]));
    if (differs != 0 || a->rank < 0 || a->rank >= transport->config.trainers || transport->slot[a->rank] == SLC_NO_PEER ||
        transport->peer[transport->slot[a->rank]].met || transport->peer[transport->slot[a->rank]].by_wire)
        return SIZE_MAX;
    return transport->slot[a->rank];
}

static sluice_status answer_hello(slc_transport *transport, const slc_local_guest *guest, const ask *a, sluice_error *error)
{
    slc_nccl_peer *peer = &transport->peer[guest->peer];
    sluice_error why = SLUICE_ERROR_INIT;
    peer->met = true;
    sluice_status status = transport->unshared.status;
    if (status != SLUICE_OK)
        slc_error_copy(&why, &transport->unshared);
    else
        status = slc_peer_memory_map(&peer->memory, &a->words, -1, peer->card.pid == transport->card.pid, peer->rank, &why);
    if (status != SLUICE_OK && slc_road_falls_back(transport, peer, &why)) {
        const answer apart = { .version = MEET_VERSION, .what = ASK_HELLO, .by_wire = 1 };
        return slc_local_send(guest->fd, &apart, offsetof(answer, body), NULL, 0)
                   ? SLUICE_OK
                   : lost(peer, "left while it was being answered", error);
    }
    if (status != SLUICE_OK)
        return slc_error_copy(error, &why);
    peer->word = slc_peer_memory_find(&peer->memory, a->word, sizeof(uint64_t));
    if (peer->word == 0)
        return lost(peer, "has its words outside of what it shares", error);
    answer reply = { .version = MEET_VERSION,
                     .what = ASK_HELLO,
                     .pieces = transport->pieces.count,
                     .landings = peer->landings.length,
                     .word = transport->words + guest->peer * 2 * sizeof(uint64_t),
                     .staging = transport->staging,
                     .slots = transport->slots,
                     .slot_bytes = transport->slot_bytes,
                     .mailboxes = transport->mailbox_bytes,
                     .mailbox = guest->peer };
    return slc_local_send(guest->fd, &reply, offsetof(answer, body), &transport->mailbox_fd, 1)
               ? SLUICE_OK
               : lost(peer, "left while it was being answered", error);
}

static sluice_status answer_pieces(slc_transport *transport, const slc_local_guest *guest, const ask *a, sluice_error *error)
{
    answer reply = { .version = MEET_VERSION, .what = ASK_PIECES };
    int fds[SLC_LOCAL_FDS];
    size_t nfds = 0;
    sluice_status status = SLUICE_OK;
    for (uint64_t i = a->from; i < transport->pieces.count && reply.count < SLC_LOCAL_FDS && status == SLUICE_OK; i++) {
        const slc_piece *piece = &transport->pieces.item[i];
        reply.body.piece[reply.count++] = *piece;
        if (piece->kind == SLC_PIECE_DESCRIPTOR) {
            status = slc_piece_export(&transport->device, piece, &fds[nfds], error);
            nfds += status == SLUICE_OK;
        }
    }
    if (status == SLUICE_OK && !slc_local_send(guest->fd, &reply, offsetof(answer, body) + sizeof reply.body.piece, fds, nfds))
        status = lost(&transport->peer[guest->peer], "left while it was being answered", error);
    slc_local_close(fds, nfds);
    return status;
}

static sluice_status answer_landings(slc_transport *transport, const slc_local_guest *guest, const ask *a, sluice_error *error)
{
    slc_nccl_peer *peer = &transport->peer[guest->peer];
    answer reply = { .version = MEET_VERSION, .what = ASK_LANDINGS };
    uint64_t left = a->from < peer->landings.length ? peer->landings.length - a->from : 0;
    reply.count = left < CHUNK ? left : CHUNK;
    if (reply.count > 0)
        memcpy(reply.body.bytes, peer->landings.data + a->from, (size_t)reply.count);
    return slc_local_send(guest->fd, &reply, sizeof reply, NULL, 0) ? SLUICE_OK
                                                                    : lost(peer, "left while it was being answered", error);
}

static sluice_status answer_guest(void *context, slc_local_guest *guest, const void *message, size_t length, bool *over,
                                  sluice_error *error)
{
    slc_transport *transport = context;
    const ask *a = message;
    bool good = length == sizeof *a && a->version == MEET_VERSION;
    if (guest->peer == SIZE_MAX) {
        guest->peer = good && a->what == ASK_HELLO ? known_peer(transport, a) : SIZE_MAX;
        *over = guest->peer == SIZE_MAX;
        return *over ? SLUICE_OK : answer_hello(transport, guest, a, error);
    }
    if (good && a->what == ASK_PIECES)
        return answer_pieces(transport, guest, a, error);
    if (good && a->what == ASK_LANDINGS)
        return answer_landings(transport, guest, a, error);
    *over = true;
    const sluice_error refused = { .size = sizeof refused, .status = SLUICE_SYSTEM, .text = "it cannot map this rank's memory" };
    if (good && a->what == ASK_WIRE && slc_road_falls_back(transport, &transport->peer[guest->peer], &refused))
        return SLUICE_OK;
    return length == 0 || (good && a->what == ASK_BYE)
               ? SLUICE_OK
               : lost(&transport->peer[guest->peer], "broke the rules of the meeting", error);
}

static int32_t missing(void *context)
{
    const slc_transport *transport = context;
    for (size_t i = 0; i < transport->npeers; i++)
        if (!transport->peer[i].met && !transport->peer[i].by_wire)
            return transport->peer[i].rank;
    return -1;
}

sluice_status slc_nccl_serve(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    size_t linked = 0;
    for (size_t i = 0; i < transport->npeers; i++)
        linked += !transport->peer[i].by_wire;
    if (linked == 0)
        return SLUICE_OK;
    const slc_local_party party = { .listener = transport->listener,
                                    .expected = linked,
                                    .log = &transport->config.log,
                                    .context = transport,
                                    .answer = answer_guest,
                                    .missing = missing };
    return slc_local_serve(&party, wait, error);
}

/* ---- the trainer ---- */

struct talk { /* with one worker */
    slc_transport *transport;
    slc_nccl_peer *peer;
    int fd;
    slc_wait *wait;
    answer *reply;
    int fds[SLC_LOCAL_FDS];
    size_t nfds;
};

static sluice_status inquire(struct talk *talk, const ask *question, sluice_error *error)
{
    slc_local_peer who = met(talk->peer);
    talk->nfds = 0;
    if (!slc_local_send(talk->fd, question, sizeof *question, NULL, 0))
        return slc_local_left(&who, talk->wait, "cut this rank off while meeting: do both run as one user?", error);
    sluice_status status = slc_local_await(&who, talk->fd, talk->reply, offsetof(answer, body), sizeof *talk->reply, talk->fds,
                                           &talk->nfds, talk->wait, error);
    if (status != SLUICE_OK || (talk->reply->version == MEET_VERSION && talk->reply->what == question->what))
        return status;
    slc_local_close(talk->fds, talk->nfds);
    return lost(talk->peer, "broke the rules of the meeting", error);
}

static sluice_status take_pieces(struct talk *talk, uint64_t total, sluice_error *error)
{
    slc_nccl_peer *peer = talk->peer;
    sluice_status status = SLUICE_OK;
    while (status == SLUICE_OK && peer->memory.count < total) {
        const ask question = { .version = MEET_VERSION, .what = ASK_PIECES, .from = peer->memory.count };
        status = inquire(talk, &question, error);
        if (status != SLUICE_OK)
            return status;
        if (talk->reply->count == 0 || talk->reply->count > SLC_LOCAL_FDS)
            status = lost(peer, "did not send the memory it shares", error);
        size_t taken = 0;
        for (uint64_t i = 0; i < talk->reply->count && status == SLUICE_OK; i++) {
            const slc_piece *piece = &talk->reply->body.piece[i];
            bool has_fd = piece->kind == SLC_PIECE_DESCRIPTOR;
            int fd = has_fd && taken < talk->nfds ? talk->fds[taken] : -1;
            taken += has_fd;
            status =
                slc_peer_memory_map(&peer->memory, piece, fd, peer->card.pid == talk->transport->card.pid, peer->rank, error);
        }
        slc_local_close(talk->fds, talk->nfds);
    }
    return status;
}

static sluice_status take_landings(struct talk *talk, uint64_t total, sluice_error *error)
{
    slc_buffer bytes = { 0 };
    sluice_status status = SLUICE_OK;
    while (status == SLUICE_OK && bytes.length < total) {
        const ask question = { .version = MEET_VERSION, .what = ASK_LANDINGS, .from = bytes.length };
        status = inquire(talk, &question, error);
        if (status != SLUICE_OK)
            break;
        slc_local_close(talk->fds, talk->nfds);
        if (talk->reply->count == 0 || talk->reply->count > CHUNK || talk->reply->count > total - bytes.length)
            status = lost(talk->peer, "did not send where copies land", error);
        else if (!slc_buffer_append(&bytes, talk->reply->body.bytes, (size_t)talk->reply->count))
            status = slc_fail_memory(error, SLC_RUNTIME, "where copies land", (size_t)total);
    }
    if (status == SLUICE_OK)
        status = slc_landings_read(talk->transport, talk->peer, bytes.data, bytes.length, error);
    slc_buffer_clear(&bytes);
    return status;
}

static sluice_status take_hello(struct talk *talk, sluice_error *error)
{
    slc_nccl_peer *peer = talk->peer;
    const answer *reply = talk->reply;
    sluice_status status = SLUICE_OK;
    if (talk->nfds != 1 || reply->mailboxes < sizeof(slc_mailbox) || reply->mailbox >= reply->mailboxes / sizeof(slc_mailbox))
        status = lost(peer, "answered without a mailbox", error);
    void *mailboxes = NULL;
    if (status == SLUICE_OK)
        status = slc_host_map(talk->fds[0], (size_t)reply->mailboxes, true, peer->rank, "mailbox", &mailboxes, error);
    slc_local_close(talk->fds, talk->nfds);
    if (status != SLUICE_OK)
        return status;
    peer->mailboxes = mailboxes;
    peer->mailbox_bytes = (size_t)reply->mailboxes;
    peer->mailbox = &peer->mailboxes[reply->mailbox];
    peer->slots = reply->slots;
    peer->slot_bytes = reply->slot_bytes;
    return SLUICE_OK;
}

/* Raises a word to what it is: a road that cannot be written does not open. */
static sluice_status try_link(const slc_transport *transport, const slc_nccl_peer *peer, sluice_error *error)
{
    CUresult result = transport->cuda.StreamWriteValue64(peer->stream, peer->word, 0, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (result == CUDA_SUCCESS)
        result = transport->cuda.StreamSynchronize(peer->stream);
    return slc_nccl_check(transport, result, SLC_RUNTIME, "writing into a worker's memory", error);
}

/* What is said there, in order, up to BYE. */
static sluice_status converse(struct talk *talk, sluice_error *error)
{
    slc_transport *transport = talk->transport;
    slc_nccl_peer *peer = talk->peer;
    ask question = { .version = MEET_VERSION,
                     .what = ASK_HELLO,
                     .rank = transport->config.rank,
                     .word = transport->words + (uint64_t)(peer - transport->peer) * sizeof(uint64_t) };
    memcpy(question.token, peer->card.token, sizeof question.token);
    sluice_status status = words_piece(transport, &question.words, error);
    if (status == SLUICE_OK)
        status = inquire(talk, &question, error);
    if (status == SLUICE_OK && talk->reply->by_wire != 0) {
        slc_local_close(talk->fds, talk->nfds);
        return slc_fail(error, SLUICE_SYSTEM, SLC_RUNTIME, "it cannot be linked from there");
    }
    if (status == SLUICE_OK)
        status = take_hello(talk, error);
    if (status != SLUICE_OK)
        return status;
    uint64_t pieces = talk->reply->pieces, landings = talk->reply->landings, word = talk->reply->word,
             staging = talk->reply->staging;
    status = take_pieces(talk, pieces, error);
    if (status == SLUICE_OK) {
        uint64_t staged;
        bool fits = !__builtin_mul_overflow(peer->slots, peer->slot_bytes, &staged);
        peer->word = slc_peer_memory_find(&peer->memory, word, 2 * sizeof(uint64_t));
        peer->staging = fits && staged > 0 ? slc_peer_memory_find(&peer->memory, staging, staged) : 0;
        if (peer->word == 0 || !fits || (staged > 0 && peer->staging == 0))
            status = lost(peer, "has its words or its staging outside of what it shares", error);
    }
    if (status == SLUICE_OK)
        status = take_landings(talk, landings, error);
    if (status == SLUICE_OK)
        status = slc_way_settle(transport, peer, error);
    if (status == SLUICE_OK)
        status = slc_link_prepare(peer, transport->config.program->count, error);
    return status == SLUICE_OK ? try_link(transport, peer, error) : status;
}

static sluice_status part(struct talk *talk, sluice_error *error)
{
    const ask question = { .version = MEET_VERSION, .what = talk->peer->by_wire ? ASK_WIRE : ASK_BYE };
    return slc_local_send(talk->fd, &question, sizeof question, NULL, 0) ? SLUICE_OK
                                                                         : lost(talk->peer, "left before this rank was connected", error);
}

sluice_status slc_nccl_greet(slc_transport *transport, slc_nccl_peer *peer, slc_wait *wait, sluice_error *error)
{
    struct talk talk = { .transport = transport, .peer = peer, .wait = wait, .reply = slc_allocate(sizeof *talk.reply) };
    if (talk.reply == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "an answer of a peer", sizeof *talk.reply);
    slc_local_peer who = met(peer);
    sluice_status status = slc_local_dial(&who, &talk.fd, wait, error);
    if (status == SLUICE_OK) {
        sluice_error why = SLUICE_ERROR_INIT;
        status = converse(&talk, &why);
        if (status != SLUICE_OK && !slc_road_falls_back(transport, peer, &why))
            slc_error_copy(error, &why);
        else
            status = part(&talk, error);
        close(talk.fd);
    }
    slc_release(talk.reply);
    return status;
}
