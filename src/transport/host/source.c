/* source.c: a trainer's table of source addresses, and whether that memory can be read. */
#include "transport/host/internal.h"
#include "transport/host/probe.h"

#include <inttypes.h>

/* [*low, *high): the bytes of the shard at `source` that the segment reads. */
static void segment_span(const slc_segment *segment, const void *source, uint64_t *low, uint64_t *high)
{
    *low = UINT64_MAX;
    *high = 0;
    for (uint32_t i = 0; i < segment->ncopies; i++) {
        uint64_t first = (uint64_t)(uintptr_t)source + (uint64_t)segment->copy[i].source;
        uint64_t last = first + (uint64_t)slc_copy_span(&segment->copy[i]);
        *low = first < *low ? first : *low;
        *high = last > *high ? last : *high;
    }
    if (*high == 0)
        *low = 0;
}

sluice_status slc_host_publish(slc_transport *transport, const char *stage, sluice_error *error)
{
    const slc_transport_config *config = &transport->config;
    slc_host_mappings readable = { 0 };
    bool listed = false;
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; status == SLUICE_OK && config->source != NULL && i < slc_host_params(transport); i++) {
        const void *source = config->source[i];
        const slc_segment *segment = &config->program->segment[i];
        if ((uint64_t)(uintptr_t)source == transport->table.address[i])
            continue;
        if (!listed) {
            status = slc_host_mappings_read(false, &readable, error);
            listed = status == SLUICE_OK;
        }
        uint64_t low, high;
        segment_span(segment, source, &low, &high);
        if (listed && source != NULL && !slc_host_mapped(&readable, low, high))
            status =
                slc_fail(error, SLUICE_INVALID, stage,
                         "source of parameter %s (0x%" PRIx64 " to 0x%" PRIx64 ") must lie in memory that this process can read",
                         slc_host_param(transport, (uint32_t)i), low, high);
        if (status == SLUICE_OK)
            transport->table.address[i] = (uint64_t)(uintptr_t)source;
    }
    slc_host_mappings_clear(&readable);
    return status;
}
