/* rest.c: see rest.h. */
#include "transport/m2n/rest.h"

#include "base/error.h"
#include "base/memory.h"

static size_t peer_of(const slc_program *program, int32_t rank)
{
    size_t low = 0, high = program->npeers; /* ascending */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (program->peer[middle] <= rank)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void sort_peers(const slc_program *whole, const slc_m2n_calls *calls, slc_m2n_rest *rest)
{
    for (size_t i = 0; i < whole->npeers; i++)
        rest->inner[i] = SIZE_MAX;
    for (size_t i = 0; i < whole->count; i++)
        for (uint32_t c = 0; c < whole->segment[i].ncopies; c++) {
            size_t peer = peer_of(whole, whole->segment[i].copy[c].peer);
            if (slc_m2n_carries(calls, i))
                rest->reshards[peer] = true;
            else
                rest->inner[peer] = 0;
        }
    for (size_t i = 0; i < whole->npeers; i++)
        if (rest->inner[i] != SIZE_MAX) {
            rest->inner[i] = rest->program.npeers;
            rest->program.peer[rest->program.npeers++] = whole->peer[i];
        }
}

sluice_status slc_m2n_rest_make(const slc_program *whole, const slc_m2n_calls *calls, slc_m2n_rest *rest, sluice_error *error)
{
    slc_program *program = &rest->program;
    *rest = (slc_m2n_rest){ .program = { .rank = whole->rank, .count = whole->count } };
    program->segment = slc_allocate_zeroed(whole->count + 1, sizeof *program->segment);
    program->peer = slc_allocate_zeroed(whole->npeers + 1, sizeof *program->peer);
    rest->inner = slc_allocate_zeroed(whole->npeers + 1, sizeof *rest->inner);
    rest->reshards = slc_allocate_zeroed(whole->npeers + 1, sizeof *rest->reshards);
    if (program->segment == NULL || program->peer == NULL || rest->inner == NULL || rest->reshards == NULL) {
        slc_m2n_rest_clear(rest);
        return slc_fail_memory(error, "runtime", "what is left to transport nccl", whole->count * sizeof *program->segment);
    }
    for (size_t i = 0; i < whole->count; i++) {
        slc_segment *segment = &program->segment[i];
        *segment = whole->segment[i];
        if (slc_m2n_carries(calls, i)) {
            segment->ncopies = 0;
            segment->bytes = 0;
        }
        program->bytes += segment->bytes;
        program->copies += segment->ncopies;
    }
    sort_peers(whole, calls, rest);
    return SLUICE_OK;
}

void slc_m2n_rest_clear(slc_m2n_rest *rest)
{
    slc_release(rest->program.segment);
    slc_release(rest->program.peer);
    slc_release(rest->inner);
    slc_release(rest->reshards);
    *rest = (slc_m2n_rest){ .inner = NULL };
}
