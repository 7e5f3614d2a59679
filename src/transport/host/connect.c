/* connect.c: which road each peer gets, by trying, and how it is named for the plan. The meeting itself is meet.c. */
#include "transport/host/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

const char *slc_host_road_name(slc_host_road road)
{
    switch (road) {
    case SLC_ROAD_BEST: return "any";
    case SLC_ROAD_NONE: return "none";
    case SLC_ROAD_MAP: return "map";
    case SLC_ROAD_PULL: return "pull";
    case SLC_ROAD_RING: return "ring";
    }
    return "";
}

/* Chooses the base road to a trainer by trying. */
static sluice_status choose(slc_transport *transport, slc_host_peer *peer, slc_wait *wait, sluice_error *error)
{
    peer->maps = transport->asked == SLC_ROAD_BEST || transport->asked == SLC_ROAD_MAP;
    peer->base = transport->asked == SLC_ROAD_RING ? SLC_ROAD_RING : SLC_ROAD_NONE;
    if (transport->asked == SLC_ROAD_RING || transport->asked == SLC_ROAD_MAP)
        return SLUICE_OK;
    int cause;
    peer->base = SLC_ROAD_PULL;
    if (slc_pull_try(peer, &cause))
        return SLUICE_OK;
    if (cause == ESRCH)
        return slc_pull_check(peer, wait, error);
    char hint[64];
    slc_pull_hint(hint, sizeof hint);
    const char *reason = cause < 0 ? "other bytes are where its mark should be" : strerrordesc_np(cause);
    if (transport->asked == SLC_ROAD_PULL)
        return slc_fail(error, SLUICE_UNSUPPORTED, SLC_RUNTIME,
                        "road \"pull\" to rank %" PRId32 " (pid %" PRId32
                        ") does not work (process_vm_readv: %s%s): leave the road open, "
                        "or let this process read that one",
                        peer->rank, peer->card.pid, reason, hint);
    slc_say(&transport->config.log, SLUICE_LOG_INFO, "host: rank %" PRId32 " is reached by a ring (process_vm_readv: %s%s)",
            peer->rank, reason, hint);
    peer->base = SLC_ROAD_RING;
    return SLUICE_OK;
}

const slc_host_region *slc_host_region_for(const slc_transport *transport, const slc_host_peer *peer, uint32_t param,
                                           const slc_copy *copy)
{
    const slc_host_regions *regions = transport->worker ? &peer->region : &transport->region;
    const slc_host_table *table = transport->worker ? &peer->table : &transport->table;
    if (!peer->maps || regions->count == 0 || table->address[param] == 0)
        return NULL;
    return slc_host_region_of(regions, table->address[param] + (uint64_t)copy->source, (uint64_t)slc_copy_span(copy));
}

sluice_status slc_host_outside(const slc_transport *transport, const slc_host_peer *peer, uint32_t param, const char *stage,
                               sluice_error *error)
{
    bool missing = peer->table.address[param] == 0;
    slc_fail(error, missing ? SLUICE_PEER : SLUICE_UNSUPPORTED, stage, "parameter %s: rank %" PRId32 " %s",
             slc_host_param(transport, param), peer->rank,
             missing ? "has registered no memory for it"
                     : "holds it outside of shared regions (road \"map\" reaches only those)");
    if (error != NULL)
        error->rank = peer->rank;
    return missing ? SLUICE_PEER : SLUICE_UNSUPPORTED;
}

/* Names each peer's road by where its shards lie now; under a forced map, all must lie in regions. */
static sluice_status name_roads(slc_transport *transport, sluice_error *error)
{
    enum { IN = 1, OUT = 2 };
    unsigned char *seen = slc_allocate_zeroed(transport->npeers, 1);
    if (seen == NULL)
        return slc_fail_memory(error, SLC_RUNTIME, "the roads of this rank", transport->npeers);
    sluice_status status = SLUICE_OK;
    const slc_program *program = transport->config.program;
    for (size_t i = 0; status == SLUICE_OK && i < program->count; i++)
        for (uint32_t j = 0; status == SLUICE_OK && j < program->segment[i].ncopies; j++) {
            const slc_copy *copy = &program->segment[i].copy[j];
            slc_host_peer *peer = slc_host_peer_of(transport, copy->peer);
            uint32_t param = program->segment[i].param;
            bool in = slc_host_region_for(transport, peer, param, copy) != NULL;
            seen[peer - transport->peer] |= in ? IN : OUT;
            if (!in && peer->base == SLC_ROAD_NONE && transport->worker)
                status = slc_host_outside(transport, peer, param, SLC_RUNTIME, error);
        }
    for (size_t i = 0; i < transport->npeers; i++) {
        bool ring = transport->peer[i].base == SLC_ROAD_RING;
        transport->peer[i].road = seen[i] == IN           ? "map"
                                  : seen[i] == (IN | OUT) ? (ring ? "map+ring" : "map+pull")
                                                          : slc_host_road_name(transport->peer[i].base);
    }
    slc_release(seen);
    return status;
}

sluice_status slc_host_connect_worker(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; status == SLUICE_OK && i < transport->npeers; i++) {
        slc_host_peer *peer = &transport->peer[i];
        status = choose(transport, peer, wait, error);
        if (status == SLUICE_OK && peer->base == SLC_ROAD_PULL)
            status = slc_pull_open(&peer->queue, error);
        if (status == SLUICE_OK)
            status = slc_host_greet(transport, peer, wait, error);
    }
    return status == SLUICE_OK ? name_roads(transport, error) : status;
}

sluice_status slc_host_connect_trainer(slc_transport *transport, slc_wait *wait, sluice_error *error)
{
    sluice_status status = slc_host_publish(transport, SLC_RUNTIME, error);
    if (status == SLUICE_OK && transport->npeers > 0)
        status = slc_host_serve(transport, wait, error);
    if (transport->listener >= 0)
        close(transport->listener);
    transport->listener = -1;
    close(transport->table.fd);
    transport->table.fd = -1;
    return status == SLUICE_OK ? name_roads(transport, error) : status;
}
