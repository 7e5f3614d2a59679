/*
 * road.c: which peer is reached how. Each pair is classed from the two cards alone, the same at both ends: ranks of one
 * machine that can meet are linked, unless the wire was asked for; all others, and those whose link cannot be made when it is
 * tried, go by wire. What of that needs a communicator is told the engine here. Owns nothing.
 */
#include "transport/nccl/internal.h"

#include <inttypes.h>
#include <string.h>

enum { CARD_VERSION = 3, MEMBER_VERSION = 1 };
enum { SHARED_GPU_FROM = 23000 }; /* NCCL's version that knows several ranks on one GPU */

static const char *const road_names[] = { [SLC_ROAD_ANY] = "any", [SLC_ROAD_LINK] = "link", [SLC_ROAD_WIRE] = "wire" };

/* ---- open, and what all ranks have in common ---- */

sluice_status slc_road_open(slc_transport *transport, sluice_error *error)
{
    const char *road = transport->config.road;
    transport->config.road = NULL; /* the caller's text need not live on */
    if (road == NULL)
        transport->road = transport->config.no_sm ? SLC_ROAD_LINK : SLC_ROAD_ANY;
    else if (strcmp(road, "link") == 0)
        transport->road = SLC_ROAD_LINK;
    else if (strcmp(road, "wire") == 0)
        transport->road = SLC_ROAD_WIRE;
    else
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "road (\"%s\") must be \"link\" or \"wire\" for transport nccl", road);
    if (transport->road == SLC_ROAD_WIRE && transport->config.no_sm)
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "no_sm (true) and road (\"wire\") do not go together: NCCL's kernels take SMs");
    sluice_status status = slc_wire_bytes(&transport->wire.bytes, error);
    return status == SLUICE_OK && transport->road == SLC_ROAD_WIRE && transport->npeers > 0
               ? slc_nccl_load(&transport->wire.nccl, &transport->config.log, error)
               : status;
}

sluice_status slc_road_must_match(slc_transport *transport, slc_buffer *lines, sluice_error *error)
{
    slc_buffer_text(lines, "nccl_transport=%d\nroad=%s\n", CARD_VERSION, road_names[transport->road]);
    if (transport->road != SLC_ROAD_LINK) {
        slc_buffer_text(lines, "SLUICE_WIRE_BYTES=%" PRIu64 "\n", transport->wire.bytes);
        slc_nccl_environment(lines);
    }
    return lines->failed ? slc_fail_memory(error, SLC_RUNTIME, "what must match", lines->length) : SLUICE_OK;
}

/* ---- cards and classing ---- */

/* u32 version, u64 bytes of a turn for each peer, u8 whether all copies are in one piece here, then the card of a process. */
sluice_status slc_road_card(slc_transport *transport, slc_buffer *card, sluice_error *error)
{
    slc_buffer_u32(card, CARD_VERSION);
    slc_buffer_u64(card, transport->wire.bytes / (transport->npeers > 0 ? transport->npeers : 1));
    slc_buffer_u8(card, slc_wire_is_whole(transport));
    return slc_host_card_write(&transport->card, card, error);
}

sluice_status slc_road_choose(slc_transport *transport, slc_nccl_peer *peer, const unsigned char *card, size_t length,
                              sluice_error *error)
{
    slc_reader reader = { .data = card, .length = length };
    sluice_error apart = SLUICE_ERROR_INIT;
    uint32_t version = slc_read_u32(&reader);
    peer->wire.share = slc_read_u64(&reader);
    peer->wire.whole = slc_read_u8(&reader) != 0;
    if (reader.failed || version != CARD_VERSION)
        return slc_fail(error, SLUICE_DISAGREE, SLC_RUNTIME, "card of rank %" PRId32 ": version (%" PRIu32 ") must be %d", peer->rank,
                        version, CARD_VERSION);
    sluice_status status = slc_host_card_read(card + reader.offset, slc_reader_left(&reader), peer->rank, &peer->card, error);
    peer->by_wire = transport->road == SLC_ROAD_WIRE;
    if (status != SLUICE_OK || peer->by_wire)
        return status;
    status = slc_host_card_check(&transport->card, &peer->card, peer->rank, &apart);
    if (status == SLUICE_UNSUPPORTED && slc_road_falls_back(transport, peer, &apart))
        return SLUICE_OK;
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &apart);
}

bool slc_road_falls_back(slc_transport *transport, slc_nccl_peer *peer, const sluice_error *why)
{
    if (transport->road == SLC_ROAD_LINK || (why->status != SLUICE_UNSUPPORTED && why->status != SLUICE_SYSTEM))
        return false;
    peer->by_wire = true;
    slc_say(&transport->config.log, SLUICE_LOG_INFO, "nccl: rank %" PRId32 " goes by wire: %s", peer->rank, why->text);
    return true;
}

const char *slc_road_name(const slc_transport *transport, size_t peer)
{
    return road_names[transport->peer[peer].by_wire ? SLC_ROAD_WIRE : SLC_ROAD_LINK];
}

/* ---- the communicator ---- */

static bool has_wire(const slc_transport *transport)
{
    for (size_t i = 0; i < transport->npeers; i++)
        if (transport->peer[i].by_wire)
            return true;
    return false;
}

/* u32 version, u32 NCCL's version, the GPU. */
static sluice_status member_card(slc_transport *transport, slc_buffer *card, sluice_error *error)
{
    if (!has_wire(transport) && !transport->everyone)
        return SLUICE_OK;
    sluice_status status = slc_nccl_load(&transport->wire.nccl, &transport->config.log, error);
    if (status != SLUICE_OK)
        return status;
    slc_buffer_u32(card, MEMBER_VERSION);
    slc_buffer_u32(card, (uint32_t)transport->wire.nccl.file.version);
    slc_buffer_append(card, &transport->uuid, sizeof transport->uuid);
    return card->failed ? slc_fail_memory(error, SLC_RUNTIME, "the card of a member", card->length) : SLUICE_OK;
}

struct member_facts {
    int version;
    CUuuid uuid;
};

static sluice_status read_member(const slc_member *member, struct member_facts *facts, sluice_error *error)
{
    slc_reader reader = { .data = member->card, .length = member->length };
    uint32_t form = slc_read_u32(&reader);
    facts->version = (int)slc_read_u32(&reader);
    const unsigned char *uuid = slc_read_bytes(&reader, sizeof facts->uuid);
    if (reader.failed || form != MEMBER_VERSION || slc_reader_left(&reader) > 0)
        return slc_fail(error, SLUICE_INVALID, SLC_RUNTIME, "the card of member %" PRId32 " cannot be read", member->rank);
    memcpy(&facts->uuid, uuid, sizeof facts->uuid);
    return SLUICE_OK;
}

static sluice_status check_pair(const slc_member *member, const struct member_facts *facts, size_t a, size_t b, sluice_error *error)
{
    char one[32], other[32];
    slc_nccl_version_text(facts[a].version, one, sizeof one);
    slc_nccl_version_text(facts[b].version, other, sizeof other);
    if (facts[a].version != facts[b].version)
        return slc_fail(error, SLUICE_DISAGREE, SLC_RUNTIME, "NCCL must be the same on every rank: rank %" PRId32 " has %s, rank %" PRId32 " has %s",
                        member[a].rank, one, member[b].rank, other);
    if (facts[a].version < SHARED_GPU_FROM && memcmp(&facts[a].uuid, &facts[b].uuid, sizeof facts[a].uuid) == 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, SLC_RUNTIME,
                        "ranks %" PRId32 " and %" PRId32 " are on one GPU, and NCCL %s wants one for each rank of a communicator: from 2.30 on "
                        "it takes several, with NCCL_MULTI_RANK_GPU_ENABLE=1",
                        member[a].rank, member[b].rank, one);
    return SLUICE_OK;
}

static sluice_status check_members(const slc_member *member, size_t count, sluice_error *error)
{
    struct member_facts *facts = slc_allocate_zeroed(count, sizeof *facts);
    sluice_status status = facts == NULL ? slc_fail_memory(error, SLC_RUNTIME, "the members of a communicator", count * sizeof *facts)
                                         : SLUICE_OK;
    for (size_t i = 0; i < count && status == SLUICE_OK; i++)
        status = read_member(&member[i], &facts[i], error);
    for (size_t i = 1; i < count && status == SLUICE_OK; i++)
        for (size_t k = 0; k < i && status == SLUICE_OK; k++)
            if (k == 0 || memcmp(&facts[k].uuid, &facts[i].uuid, sizeof facts[i].uuid) == 0)
                status = check_pair(member, facts, k, i, error);
    slc_release(facts);
    return status;
}

static sluice_status make_id(slc_transport *transport, unsigned char id[SLC_COMMUNICATOR_ID_BYTES], sluice_error *error)
{
    return slc_nccl_make_id(&transport->wire.nccl, id, error);
}

static sluice_status join(slc_transport *transport, const unsigned char id[SLC_COMMUNICATOR_ID_BYTES], const int32_t *rank, size_t count,
                          slc_deadline deadline, slc_watch watch, sluice_error *error)
{
    slc_wait wait = slc_nccl_wait(transport, deadline, watch, SLC_RUNTIME);
    sluice_status status = slc_device_enter(&transport->device, SLC_RUNTIME, error);
    if (status != SLUICE_OK)
        return status;
    status = slc_wire_join(transport, id, rank, count, &wait, error);
    slc_device_leave(&transport->device);
    return status;
}

static const char *library(const slc_transport *transport)
{
    return transport->wire.comm.nccl != NULL ? transport->wire.nccl.text : NULL;
}

const slc_communicator_ops slc_road_communicator = {
    .card = member_card,
    .check = check_members,
    .make_id = make_id,
    .join = join,
    .library = library,
};
