/* peers.c: see peers.h. */
#include "transport/peers.h"

#include "base/error.h"
#include "base/memory.h"

#include <inttypes.h>

sluice_status slc_peers_index(const slc_transport_config *config, uint32_t **index, sluice_error *error)
{
    bool worker = config->rank >= config->trainers;
    int32_t first = worker ? 0 : config->trainers, others = worker ? config->trainers : config->workers;
    const slc_program *program = config->program;
    *index = NULL;
    uint32_t *made = slc_allocate((size_t)others * sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, "runtime", "the peers of this rank", (size_t)others * sizeof *made);
    for (int32_t i = 0; i < others; i++)
        made[i] = SLC_NO_PEER;
    for (size_t i = 0; i < program->npeers; i++) {
        int32_t number = program->peer[i] - first;
        if (number < 0 || number >= others) {
            slc_release(made);
            return slc_fail(error, SLUICE_INTERNAL, "runtime", "program: peer (%" PRId32 ") is not on the other side", program->peer[i]);
        }
        made[number] = (uint32_t)i;
    }
    *index = made;
    return SLUICE_OK;
}
