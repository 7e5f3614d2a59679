/* save.c: from a worker's live tensors to a file of the checkpoint's format. Owns the folder's checks and the file's name. */
#include "cli/save.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/write.h"

#define STAGE "save"

sluice_status slc_save_prepare(const slc_job *job, sluice_error *error)
{
    struct stat facts;
    if (job->save == NULL)
        return SLUICE_OK;
    if (mkdir(job->save, 0777) != 0 && errno != EEXIST)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be made", job->save);
    if (stat(job->save, &facts) != 0)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be examined", job->save);
    if (!S_ISDIR(facts.st_mode))
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s must be a folder, not a %s", job->save, slc_file_kind(facts.st_mode));
    if (access(job->save, W_OK | X_OK) != 0)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be written to", job->save);
    return SLUICE_OK;
}

static slc_checkpoint_tensor tensor_of(const slc_served *served)
{
    slc_checkpoint_tensor tensor = {
        .name = served->name, .dtype = served->dtype, .ndim = served->ndim, .data = served->data, .bytes = (size_t)served->bytes
    };
    memcpy(tensor.shape, served->shape, (size_t)served->ndim * sizeof *served->shape);
    return tensor;
}

sluice_status slc_save(const slc_job *job, const volatile bool *cancelled, uint64_t *bytes, sluice_error *error)
{
    slc_buffer path = { 0 };
    *bytes = 0;
    slc_checkpoint_tensor *tensors = slc_allocate_zeroed(job->nserved + 1, sizeof *tensors);
    slc_buffer_text(&path, "%s/worker-%d.safetensors", job->save, (int)(job->rank - job->trainers));
    slc_buffer_u8(&path, 0);
    sluice_status status = SLUICE_OK;
    if (tensors == NULL || path.failed)
        status = slc_fail_memory(error, STAGE, "the list of tensors", job->nserved * sizeof *tensors);
    for (size_t i = 0; status == SLUICE_OK && i < job->nserved; i++)
        tensors[i] = tensor_of(&job->served[i]);
    if (status == SLUICE_OK)
        status = slc_checkpoint_write((const char *)path.data, tensors, job->nserved, cancelled, bytes, error);
    slc_release(tensors);
    slc_buffer_clear(&path);
    return status;
}
