/* worker.c: a worker's live memory and its loader, as a serving host has them. Owns the block of live tensors. */
#include "cli/rank.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "cli/blocks.h"
#include "cli/walk.h"

enum { GUARD = 256 };

/* One place where a parameter is used: a content of a live tensor, or its padding, where there may be no content at all. */
struct slc_use {
    uint32_t served;
    const slc_content *content;
    const slc_zero *zero;
};

static size_t room(const slc_served *served)
{
    return ((size_t)served->bytes + GUARD - 1) / GUARD * GUARD + GUARD;
}

static sluice_status index_uses(slc_serving *serving, sluice_error *error)
{
    const slc_job *job = serving->job;
    size_t total = 0;
    for (size_t s = 0; s < job->nserved; s++)
        total += job->served[s].ncontents + job->served[s].nzeros;
    serving->first = slc_arena_take(&serving->arena, job->nparams + 1, sizeof *serving->first);
    serving->use = slc_arena_take(&serving->arena, total + 1, sizeof *serving->use);
    size_t *next = slc_arena_take(&serving->arena, job->nparams + 1, sizeof *next);
    if (serving->first == NULL || serving->use == NULL || next == NULL)
        return slc_fail_memory(error, "worker", "the loader's index", total * sizeof *serving->use);
    for (size_t s = 0; s < job->nserved; s++) {
        const slc_served *served = &job->served[s];
        for (size_t c = 0; c < served->ncontents; c++)
            serving->first[served->content[c].param + 1]++;
        for (size_t z = 0; z < served->nzeros; z++)
            serving->first[served->zero[z].param + 1]++;
    }
    for (size_t p = 0; p < job->nparams; p++)
        next[p + 1] = serving->first[p + 1] += serving->first[p];
    for (uint32_t s = 0; s < job->nserved; s++) {
        const slc_served *served = &job->served[s];
        for (size_t c = 0; c < served->ncontents; c++)
            serving->use[next[served->content[c].param]++] = (struct slc_use){ .served = s, .content = &served->content[c] };
        for (size_t z = 0; z < served->nzeros; z++)
            serving->use[next[served->zero[z].param]++] = (struct slc_use){ .served = s, .zero = &served->zero[z] };
    }
    return SLUICE_OK;
}

static sluice_status register_all(slc_serving *serving, sluice_engine *engine, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    unsigned char *at = serving->block;
    for (size_t i = 0; i < serving->job->nserved && status == SLUICE_OK; i++) {
        slc_served *served = &serving->job->served[i];
        served->data = at;
        at += room(served);
        sluice_live live = { .size = sizeof live,
                             .name = served->name,
                             .dtype = served->dtype->name,
                             .ndim = (uint32_t)served->ndim,
                             .shape = served->shape,
                             .data = slc_mirror_there(&serving->mirror, served->data),
                             .attributes = served->attributes };
        status = sluice_register_live(engine, &live, error);
    }
    if (status == SLUICE_OK && serving->job->host != NULL)
        status = sluice_describe_host(engine, serving->job->host, strlen(serving->job->host), error);
    return status;
}

sluice_status slc_serving_make(slc_serving *serving, slc_job *job, sluice_engine *engine, sluice_error *error)
{
    serving->job = job;
    sluice_status status = index_uses(serving, error);
    if (status != SLUICE_OK)
        return status;
    size_t bytes = GUARD;
    for (size_t i = 0; i < job->nserved; i++)
        bytes += room(&job->served[i]);
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return slc_fail_errno(error, errno, "worker", "no memory for %zu bytes of live tensors", bytes);
    serving->block = block;
    serving->bytes = bytes;
    memset(block, SLC_POISON, bytes);
    status = slc_mirror_make(&serving->mirror, job, serving->block, bytes, error);
    if (status == SLUICE_OK)
        status = slc_mirror_send(&serving->mirror, serving->block, bytes, error);
    return status == SLUICE_OK ? register_all(serving, engine, error) : status;
}

sluice_status slc_serving_fetch(slc_serving *serving, sluice_error *error)
{
    return slc_mirror_fetch(&serving->mirror, serving->block, serving->bytes, error);
}

sluice_status slc_serving_check_guards(const slc_serving *serving, sluice_error *error)
{
    for (size_t i = 0; i < serving->job->nserved; i++) {
        const slc_served *served = &serving->job->served[i];
        const unsigned char *end = served->data + room(served);
        for (const unsigned char *at = served->data + served->bytes; at < end; at++)
            if (*at != SLC_POISON)
                return slc_fail(error, SLUICE_INTERNAL, "verify", "something wrote %td bytes past the end of live \"%s\"",
                                at - (served->data + served->bytes), served->name);
    }
    return SLUICE_OK;
}

void slc_serving_clear(slc_serving *serving)
{
    slc_mirror_clear(&serving->mirror);
    if (serving->block != NULL)
        munmap(serving->block, serving->bytes);
    slc_arena_clear(&serving->arena);
    *serving = (slc_serving){ 0 };
}

/* ---- the loader ---- */

/* In blocks. */
typedef struct blocks_load {
    const unsigned char *data;
    slc_served *served;
} blocks_load;

static void read_data(void *context, uint64_t offset, unsigned char *out, size_t count)
{
    const blocks_load *load = context;
    memcpy(out, load->data + offset, count);
}

static void write_landed(void *context, uint64_t source, int64_t live, const unsigned char *bytes, size_t count)
{
    (void)source;
    const blocks_load *load = context;
    memcpy(load->served->data + live, bytes, count);
}

static void copy_content(slc_served *served, const slc_content *content, const slc_job_param *param, const unsigned char *data)
{
    slc_walk walk;
    slc_stretch stretch;
    slc_cast cast = slc_content_cast(param, served, content);
    if (slc_cast_in_blocks(cast)) {
        blocks_load load = { .data = data, .served = served };
        slc_blocks_go(param, served, content, cast, read_data, write_landed, &load);
        return;
    }
    slc_walk_begin(&walk, content, param->ndim, param->shape, served->ndim, served->shape, param->dtype->bytes);
    const int64_t size = slc_cast_from(cast), landed = slc_cast_to(cast);
    while (slc_walk_next(&walk, &stretch))
        for (int64_t i = 0; i < stretch.units; i++) {
            const unsigned char *from = data + stretch.source + i * stretch.unit;
            int64_t at = stretch.live + i * stretch.step;
            if (cast == SLC_CAST_NONE)
                memcpy(served->data + at, from, (size_t)stretch.unit);
            else /* the walk counts the parameter's bytes on both sides */
                slc_cast_row(cast, served->data + at / size * landed, landed, from, size, stretch.unit / size);
        }
}

static void clear_padding(slc_served *served, const slc_zero *zero)
{
    slc_content box = { 0 };
    memcpy(box.at, zero->at, sizeof box.at);
    memcpy(box.extent, zero->extent, sizeof box.extent);
    for (int d = 0; d < served->ndim; d++)
        box.dim[d] = (int8_t)d;
    slc_walk walk;
    slc_stretch stretch;
    slc_walk_begin(&walk, &box, served->ndim, served->shape, served->ndim, served->shape, served->dtype->bytes);
    while (slc_walk_next(&walk, &stretch))
        memset(served->data + stretch.live, 0, (size_t)stretch.unit);
}

/* On a GPU the tensor is changed here: it may hold parts that came in place. */
static sluice_status load_use(slc_serving *serving, const struct slc_use *use, const slc_job_param *param, const unsigned char *data,
                              sluice_error *error)
{
    slc_served *served = &serving->job->served[use->served];
    sluice_status status = slc_mirror_fetch(&serving->mirror, served->data, (size_t)served->bytes, error);
    if (status != SLUICE_OK)
        return status;
    if (use->content != NULL)
        copy_content(served, use->content, param, data);
    else
        clear_padding(served, use->zero);
    return slc_mirror_send(&serving->mirror, served->data, (size_t)served->bytes, error);
}

static sluice_status load_one(slc_serving *serving, const sluice_tensor *tensor, sluice_error *error)
{
    slc_job *job = serving->job;
    size_t index = slc_job_find(job, tensor->name);
    const slc_job_param *param = index == SIZE_MAX ? NULL : &job->param[index];
    if (param == NULL || tensor->bytes != (size_t)param->bytes || tensor->ndim != (uint32_t)param->ndim ||
        strcmp(tensor->dtype, param->dtype->name) != 0)
        return slc_fail(error, SLUICE_CALLBACK, "load_weights", "\"%s\" (%zu bytes) is not the tensor that was announced",
                        tensor->name, tensor->bytes);
    const unsigned char *data = tensor->data;
    sluice_status status = slc_mirror_borrow(&serving->mirror, tensor->data, tensor->bytes, &data, error);
    for (size_t u = serving->first[index]; u < serving->first[index + 1] && status == SLUICE_OK; u++)
        status = load_use(serving, &serving->use[u], param, data, error);
    serving->loaded++;
    return status;
}

sluice_status slc_serving_reload_begin(slc_serving *serving, sluice_error *error)
{
    if (serving->reloading)
        return slc_fail(error, SLUICE_CALLBACK, "reload_begin", "it was called twice in one update");
    serving->reloading = true;
    serving->loaded = 0;
    return SLUICE_OK;
}

sluice_status slc_serving_load(slc_serving *serving, sluice_weights *weights, sluice_error *error)
{
    if (!serving->reloading)
        return slc_fail(error, SLUICE_CALLBACK, "load_weights", "it was called without reload_begin");
    for (;;) {
        const sluice_tensor *tensor;
        sluice_status status = sluice_weights_next(weights, &tensor, error);
        if (status != SLUICE_OK || tensor == NULL)
            return status;
        status = load_one(serving, tensor, error);
        if (status != SLUICE_OK)
            return status;
    }
}

sluice_status slc_serving_reload_end(slc_serving *serving, sluice_error *error)
{
    if (!serving->reloading)
        return slc_fail(error, SLUICE_CALLBACK, "reload_end", "it was called without reload_begin");
    serving->reloading = false;
    return SLUICE_OK;
}
