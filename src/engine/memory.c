/* memory.c: memory of this process that peers on the same machine can map. The engine owns the regions until they are freed. */
#include "engine/engine.h"

#include <string.h>

static const char STAGE[] = "memory";

sluice_status sluice_memory_alloc(sluice_engine *engine, size_t bytes, void **data, sluice_error *error)
{
    *data = NULL;
    if (engine->state != SLUICE_STATE_NEW)
        return slc_fail(error, SLUICE_STATE, STAGE, "memory_alloc is allowed before init and after shutdown; the engine is %s",
                        sluice_state_text(engine->state));
    if (bytes == 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "bytes (0) must be at least 1");
    if (engine->nregions == engine->region_capacity) {
        size_t capacity = engine->region_capacity == 0 ? 8 : engine->region_capacity * 2;
        slc_region *grown = slc_reallocate(engine->region, capacity * sizeof *grown);
        if (grown == NULL)
            return slc_fail_memory(error, STAGE, "the list of regions", capacity * sizeof *grown);
        engine->region = grown;
        engine->region_capacity = capacity;
    }
    slc_region *region = &engine->region[engine->nregions];
    sluice_status status = slc_region_create(bytes, region, error);
    if (status != SLUICE_OK)
        return status;
    engine->nregions++;
    *data = region->data;
    return SLUICE_OK;
}

void sluice_memory_free(sluice_engine *engine, void *data)
{
    for (size_t i = 0; data != NULL && i < engine->nregions; i++) {
        if (engine->region[i].data != data)
            continue;
        if (engine->session != NULL) {
            slc_say(&engine->log, SLUICE_LOG_WARN, "memory: memory_free before shutdown is ignored; peers may still read the region");
            return;
        }
        slc_region_destroy(&engine->region[i]);
        engine->region[i] = engine->region[--engine->nregions];
        return;
    }
}
