/*
 * memory.c: memory of this process that peers on the same machine can map. Blocks share slabs, so that a host may ask once
 * for each of a hundred thousand tensors: descriptors and mappings, here and on every peer, grow with the slabs only.
 * The engine owns the slabs until their last block is freed.
 */
#include "engine/engine.h"

#include <string.h>
#include <unistd.h>

static const char STAGE[] = "memory";

static bool round_to_pages(size_t bytes, size_t *rounded)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - page)
        return false;
    *rounded = (bytes + page - 1) / page * page;
    return true;
}

/* Room for one more slab, in both lists. */
static sluice_status make_room(sluice_engine *engine, sluice_error *error)
{
    if (engine->nregions < engine->region_capacity)
        return SLUICE_OK;
    size_t capacity = engine->region_capacity == 0 ? 8 : engine->region_capacity * 2;
    slc_region *region = slc_reallocate(engine->region, capacity * sizeof *region);
    if (region == NULL)
        return slc_fail_memory(error, STAGE, "the list of regions", capacity * sizeof *region);
    engine->region = region;
    slc_slab *slab = slc_reallocate(engine->slab, capacity * sizeof *slab);
    if (slab == NULL)
        return slc_fail_memory(error, STAGE, "the list of slabs", capacity * sizeof *slab);
    engine->slab = slab;
    engine->region_capacity = capacity;
    return SLUICE_OK;
}

/* The slab made last, when it still takes `bytes`; else a new one. Earlier ones are full or nearly so. */
static sluice_status find_slab(sluice_engine *engine, size_t bytes, size_t *found, sluice_error *error)
{
    size_t last = engine->nregions - 1;
    *found = last;
    if (engine->nregions > 0 && engine->region[last].bytes - engine->slab[last].used >= bytes)
        return SLUICE_OK;
    sluice_status status = make_room(engine, error);
    if (status == SLUICE_OK)
        status = slc_region_create(bytes > SLC_SLAB_BYTES ? bytes : SLC_SLAB_BYTES, &engine->region[engine->nregions], error);
    if (status != SLUICE_OK)
        return status;
    *found = engine->nregions++;
    engine->slab[*found] = (slc_slab){ 0 };
    return SLUICE_OK;
}

static void flip(slc_slab *slab, size_t offset)
{
    size_t grain = offset / SLC_SLAB_GRAIN;
    slab->begins[grain / 64] ^= (uint64_t)1 << grain % 64;
}

static bool begins(const slc_slab *slab, size_t offset)
{
    size_t grain = offset / SLC_SLAB_GRAIN;
    return offset % SLC_SLAB_GRAIN == 0 && offset < SLC_SLAB_BYTES && (slab->begins[grain / 64] >> grain % 64 & 1) != 0;
}

static sluice_status take(sluice_engine *engine, size_t bytes, void **data, sluice_error *error)
{
    if (engine->state != SLUICE_STATE_NEW)
        return slc_fail(error, SLUICE_STATE, STAGE, "memory_alloc is allowed before init and after shutdown; the engine is %s",
                        sluice_state_text(engine->state));
    size_t rounded, slab;
    if (bytes == 0 || !round_to_pages(bytes, &rounded))
        return slc_fail(error, SLUICE_INVALID, STAGE, "bytes (%zu) must be at least 1 and fit memory", bytes);
    sluice_status status = find_slab(engine, rounded, &slab, error);
    if (status != SLUICE_OK)
        return status;
    *data = (unsigned char *)engine->region[slab].data + engine->slab[slab].used;
    flip(&engine->slab[slab], engine->slab[slab].used);
    engine->slab[slab].used += rounded;
    engine->slab[slab].blocks++;
    return SLUICE_OK;
}

sluice_status sluice_memory_alloc(sluice_engine *engine, size_t bytes, void **data, sluice_error *error)
{
    *data = NULL;
    sluice_status status = slc_engine_claim(engine, STAGE, "memory_alloc", error);
    if (status != SLUICE_OK)
        return status;
    status = take(engine, bytes, data, error);
    slc_engine_leave(engine);
    return status;
}

static void give_back(sluice_engine *engine, const void *data)
{
    if (engine->session != NULL) {
        slc_say(&engine->log, SLUICE_LOG_WARN, "memory: memory_free before shutdown is ignored; peers may still read the block");
        return;
    }
    for (size_t i = 0; i < engine->nregions; i++) {
        size_t offset = (uintptr_t)data - (uintptr_t)engine->region[i].data;
        if (offset >= engine->region[i].bytes || !begins(&engine->slab[i], offset))
            continue;
        flip(&engine->slab[i], offset);
        if (--engine->slab[i].blocks > 0)
            return;
        slc_region_destroy(&engine->region[i]);
        engine->nregions--;
        engine->region[i] = engine->region[engine->nregions];
        engine->slab[i] = engine->slab[engine->nregions];
        return;
    }
    slc_say(&engine->log, SLUICE_LOG_WARN, "memory: memory_free of what is no block of this engine, or no longer, is ignored");
}

void sluice_memory_free(sluice_engine *engine, void *data)
{
    sluice_error error = SLUICE_ERROR_INIT;
    if (data == NULL)
        return;
    if (slc_engine_claim(engine, STAGE, "memory_free", &error) != SLUICE_OK) {
        slc_say(&engine->log, SLUICE_LOG_WARN, "%s; nothing is freed", error.text);
        return;
    }
    give_back(engine, data);
    slc_engine_leave(engine);
}
