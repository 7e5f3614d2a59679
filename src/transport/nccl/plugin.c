/*
 * plugin.c: the door of libsluice_cuda. Includes CUDA's and NCCL's headers and links neither library: they are found when
 * the process runs.
 */
#include "transport/nccl/plugin.h"

#include "transport/m2n/m2n.h"
#include "transport/nccl/gpu.h"
#include "transport/nccl/nccl.h"

#include <cuda.h>
#include <nccl.h>

const sluice_cuda_plugin *sluice_cuda_plugin_open(void)
{
    static const sluice_cuda_plugin plugin = {
        .versions = { .size = sizeof(sluice_cuda_versions),
                      .sluice_major = SLUICE_VERSION_MAJOR,
                      .sluice_minor = SLUICE_VERSION_MINOR,
                      .sluice_patch = SLUICE_VERSION_PATCH,
                      .cuda = CUDA_VERSION,
                      .nccl = NCCL_VERSION_CODE },
        .nccl = &slc_nccl_transport,
        .m2n = &slc_m2n_transport,
        .gpu = &slc_gpu_table,
    };
    return &plugin;
}
