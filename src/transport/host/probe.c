/* probe.c: see probe.h. */
#include "transport/host/probe.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STAGE "runtime"

static bool add(slc_host_mappings *mappings, uint64_t low, uint64_t high)
{
    if (mappings->count > 0 && mappings->item[mappings->count - 1].high == low) {
        mappings->item[mappings->count - 1].high = high;
        return true;
    }
    if (!SLC_ROOM(mappings->item, mappings->capacity, mappings->count, 64))
        return false;
    mappings->item[mappings->count++] = (slc_host_mapping){ .low = low, .high = high };
    return true;
}

sluice_status slc_host_mappings_read(bool writable, slc_host_mappings *mappings, sluice_error *error)
{
    *mappings = (slc_host_mappings){ 0 };
    FILE *file = fopen("/proc/self/maps", "re");
    if (file == NULL)
        return slc_fail_errno(error, errno, STAGE, "host transport: /proc/self/maps");
    sluice_status status = SLUICE_OK;
    char line[512];
    bool whole = true; /* the part of a line longer than the buffer is skipped */
    while (status == SLUICE_OK && fgets(line, sizeof line, file) != NULL) {
        uint64_t low, high;
        char read, write;
        if (whole && sscanf(line, "%" SCNx64 "-%" SCNx64 " %c%c", &low, &high, &read, &write) == 4 &&
            (writable ? write == 'w' : read == 'r') && !add(mappings, low, high))
            status = slc_fail_memory(error, STAGE, "the list of mappings", mappings->capacity * 2 * sizeof *mappings->item);
        whole = strchr(line, '\n') != NULL;
    }
    if (status == SLUICE_OK && ferror(file))
        status = slc_fail_errno(error, errno, STAGE, "host transport: reading /proc/self/maps");
    fclose(file);
    if (status != SLUICE_OK)
        slc_host_mappings_clear(mappings);
    return status;
}

void slc_host_mappings_clear(slc_host_mappings *mappings)
{
    slc_release(mappings->item);
    *mappings = (slc_host_mappings){ 0 };
}

bool slc_host_mapped(const slc_host_mappings *mappings, uint64_t low, uint64_t high)
{
    if (low >= high)
        return low == high;
    size_t from = 0, to = mappings->count; /* the last mapping that starts at or below `low` is from - 1 */
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (mappings->item[middle].low <= low)
            from = middle + 1;
        else
            to = middle;
    }
    return from > 0 && high <= mappings->item[from - 1].high;
}
