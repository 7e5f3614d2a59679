/*
 * plugin.c: the door of libsluice_cuda: says what the plugin was built against. Includes CUDA's and NCCL's headers and
 * links neither library: they are found when the process runs.
 */
#include "transport/nccl/plugin.h"

#include "sluice.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

const sluice_cuda_versions *sluice_cuda_plugin_versions(void)
{
    static const sluice_cuda_versions versions = {
        .size = sizeof versions,
        .sluice_major = SLUICE_VERSION_MAJOR,
        .sluice_minor = SLUICE_VERSION_MINOR,
        .sluice_patch = SLUICE_VERSION_PATCH,
        .cuda = CUDART_VERSION,
        .nccl = NCCL_VERSION_CODE,
    };
    return &versions;
}
