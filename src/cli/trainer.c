/* trainer.c: a trainer's shards: which box of each parameter it holds, its memory, its values. Owns the block they lie in. */
#include "cli/rank.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/flag.h"
#include "cli/walk.h"
#include "script/init_info.h"

enum { ALIGNMENT = 64 };

static void shard_of(const slc_param *param, uint32_t index, const slc_box *box, slc_shard *shard)
{
    *shard = (slc_shard){ .param = index, .bytes = param->dtype->bytes };
    for (int i = 0; i < box->ndim; i++) {
        shard->box.dim[i] = (int8_t)i;
        shard->box.from[i] = box->low[i];
        shard->box.extent[i] = shard->shape[i] = box->high[i] - box->low[i];
        shard->bytes *= shard->shape[i];
    }
}

static sluice_status list_shards(slc_shards *shards, const slc_job *job, const slc_plan *plan, sluice_error *error)
{
    if (slc_plan_count(plan) != job->nparams)
        return slc_fail(error, SLUICE_INVALID, "trainer", "init info has %zu parameters, the description %zu",
                        slc_plan_count(plan), job->nparams);
    shards->item = slc_allocate_zeroed(job->nparams, sizeof *shards->item);
    if (shards->item == NULL)
        return slc_fail_memory(error, "trainer", "shards", job->nparams * sizeof *shards->item);
    for (size_t i = 0; i < job->nparams; i++) {
        const slc_param *param = slc_plan_at(plan, i);
        slc_box box;
        if (slc_layout_box(param->source, param->ndim, param->shape, job->rank, &box) && !slc_box_empty(&box)) {
            slc_shard *shard = &shards->item[shards->count++];
            shard_of(param, (uint32_t)i, &box, shard);
            shards->bytes += ((size_t)shard->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
    }
    return SLUICE_OK;
}

static sluice_status allocate(slc_shards *shards, const slc_job *job, sluice_engine *engine, sluice_error *error)
{
    if (shards->bytes == 0)
        return SLUICE_OK;
    if (!job->ordinary && (job->transport == NULL || strcmp(job->transport, "host") == 0)) {
        void *data = NULL;
        sluice_status status = sluice_memory_alloc(engine, shards->bytes, &data, error);
        shards->block = data;
        return status;
    }
    void *data = mmap(NULL, shards->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return slc_fail_errno(error, errno, "trainer", "no memory for %zu bytes of shards", shards->bytes);
    shards->block = data;
    shards->mapped = true;
    return SLUICE_OK;
}

static sluice_status register_all(slc_shards *shards, const slc_job *job, sluice_engine *engine, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    unsigned char *at = shards->block;
    for (size_t i = 0; i < shards->count && status == SLUICE_OK; i++) {
        slc_shard *shard = &shards->item[i];
        const slc_job_param *param = &job->param[shard->param];
        shard->data = at;
        at += ((size_t)shard->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        status = sluice_register_source(engine, param->name, param->dtype->name, slc_mirror_there(&shards->mirror, shard->data),
                                        (size_t)shard->bytes, error);
    }
    return status;
}

sluice_status slc_shards_make(slc_shards *shards, const slc_job *job, sluice_engine *engine, sluice_error *error)
{
    slc_script *script = NULL;
    slc_plan *plan = NULL;
    slc_init_info info;
    bool met;
    sluice_status status = slc_script_create(NULL, &script, error);
    if (status != SLUICE_OK)
        return status;
    if (slc_init_info_read(script, job->init_info, job->init_info_length, &info, &met, &plan, NULL) != SLUICE_OK)
        goto out;
    status = list_shards(shards, job, plan, error);
    if (status == SLUICE_OK)
        status = allocate(shards, job, engine, error);
    if (status == SLUICE_OK)
        status = slc_mirror_make(&shards->mirror, job, shards->block, shards->bytes, error);
    if (status == SLUICE_OK)
        status = register_all(shards, job, engine, error);
out:
    slc_plan_destroy(plan);
    slc_script_destroy(script);
    return status;
}

sluice_status slc_shards_fill(slc_shards *shards, const slc_job *job, uint64_t update, const volatile bool *cancelled,
                              sluice_error *error)
{
    for (size_t i = 0; i < shards->count; i++) {
        const slc_shard *shard = &shards->item[i];
        const slc_job_param *param = &job->param[shard->param];
        slc_walk walk;
        slc_stretch stretch;
        slc_walk_begin(&walk, &shard->box, param->ndim, param->shape, param->ndim, shard->shape, param->dtype->bytes);
        while (slc_walk_next(&walk, &stretch))
            slc_values_write(&param->values, update, (uint64_t)stretch.source, shard->data + stretch.live, (size_t)stretch.unit);
        if (slc_flag_raised(cancelled))
            return slc_fail(error, SLUICE_CANCELLED, "trainer", "cancelled while it wrote update %llu",
                            (unsigned long long)update);
    }
    return slc_mirror_send(&shards->mirror, shards->block, shards->bytes, error);
}

void slc_shards_clear(slc_shards *shards, sluice_engine *engine)
{
    slc_mirror_clear(&shards->mirror);
    if (shards->mapped)
        munmap(shards->block, shards->bytes);
    else if (shards->block != NULL)
        sluice_memory_free(engine, shards->block);
    slc_release(shards->item);
    *shards = (slc_shards){ 0 };
}
