/* mirror.c: see mirror.h. Owns the block on the GPU, and the GPU while it has one. */
#include "cli/mirror.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* The GPU by the number that a launcher gave this process on its machine, or by the rank's place in the world. */
static int gpu_of(const slc_job *job, int count)
{
    const char *text = getenv("LOCAL_RANK");
    char *end = NULL;
    long number = text == NULL || *text == '\0' ? -1 : strtol(text, &end, 10);
    if (number >= 0 && *end == '\0' && number <= 1 << 20)
        return (int)(number % count);
    int32_t world = job->trainers + job->workers;
    return job->rank / ((world - 1) / count + 1);
}

static sluice_status open_gpu(slc_mirror *mirror, const slc_job *job, sluice_error *error)
{
    const sluice_cuda_plugin *plugin;
    int count;
    sluice_status status = slc_cuda_plugin_find(&plugin, error);
    if (status == SLUICE_OK)
        status = plugin->gpu->count(&count, error);
    if (status == SLUICE_OK && count == 0)
        status = slc_fail(error, SLUICE_UNSUPPORTED, "gpu", "transport nccl wants a GPU, and this process sees none");
    if (status != SLUICE_OK)
        return status;
    mirror->ops = plugin->gpu;
    return mirror->ops->open(gpu_of(job, count), &mirror->gpu, error);
}

sluice_status slc_mirror_make(slc_mirror *mirror, const slc_job *job, unsigned char *here, size_t bytes, sluice_error *error)
{
    *mirror = (slc_mirror){ .here = here, .there = here, .bytes = bytes };
    if (!slc_transport_on_gpus(job->transport) || bytes == 0)
        return SLUICE_OK;
    void *there = NULL;
    sluice_status status = open_gpu(mirror, job, error);
    if (status == SLUICE_OK)
        status = mirror->ops->allocate(mirror->gpu, bytes, &there, error);
    mirror->there = there;
    return status;
}

sluice_status slc_mirror_send(const slc_mirror *mirror, const unsigned char *at, size_t bytes, sluice_error *error)
{
    return mirror->gpu == NULL ? SLUICE_OK : mirror->ops->write(mirror->gpu, slc_mirror_there(mirror, at), at, bytes, error);
}

sluice_status slc_mirror_fetch(const slc_mirror *mirror, unsigned char *at, size_t bytes, sluice_error *error)
{
    return mirror->gpu == NULL ? SLUICE_OK : mirror->ops->read(mirror->gpu, at, slc_mirror_there(mirror, at), bytes, error);
}

sluice_status slc_mirror_borrow(slc_mirror *mirror, const void *tensor, size_t bytes, const unsigned char **data,
                                sluice_error *error)
{
    *data = tensor;
    if (mirror->gpu == NULL)
        return SLUICE_OK;
    if (bytes > mirror->borrowed_bytes) {
        slc_release(mirror->borrowed);
        mirror->borrowed_bytes = bytes;
        mirror->borrowed = slc_allocate(bytes);
        if (mirror->borrowed == NULL)
            return slc_fail_memory(error, "worker", "a full tensor", bytes);
    }
    *data = mirror->borrowed;
    return mirror->ops->read(mirror->gpu, mirror->borrowed, tensor, bytes, error);
}

void slc_mirror_clear(slc_mirror *mirror)
{
    slc_release(mirror->borrowed);
    if (mirror->gpu != NULL) {
        mirror->ops->release(mirror->gpu, mirror->there);
        mirror->ops->close(mirror->gpu);
    }
    *mirror = (slc_mirror){ 0 };
}
