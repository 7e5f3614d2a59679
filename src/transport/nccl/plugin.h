/*
 * plugin.h: what libsluice_cuda exports. The core opens it by name when a transport asks for GPUs, and reads from here
 * what it was built against before it believes anything else of it.
 */
#ifndef SLC_TRANSPORT_NCCL_PLUGIN_H
#define SLC_TRANSPORT_NCCL_PLUGIN_H

#include <stdint.h>

/* Numbers as the makers write them: cuda is CUDART_VERSION (13000 for 13.0), nccl is NCCL_VERSION_CODE (22703 for 2.27.3). */
typedef struct sluice_cuda_versions {
    uint32_t size; /* of this struct, as the plugin knows it */
    uint32_t sluice_major, sluice_minor, sluice_patch;
    uint32_t cuda;
    uint32_t nccl;
} sluice_cuda_versions;

/* What this plugin was compiled against; static storage. Says nothing of the libraries that the process will find. */
__attribute__((visibility("default"))) const sluice_cuda_versions *sluice_cuda_plugin_versions(void);

#endif
