/*
 * plugin.h: what libsluice_cuda gives. The core opens it by name when a transport asks for GPUs, and reads the versions
 * before it believes anything else of it: plugin and core share structures, and must be of one version.
 */
#ifndef SLC_TRANSPORT_NCCL_PLUGIN_H
#define SLC_TRANSPORT_NCCL_PLUGIN_H

#include "transport/transport.h"

/* Numbers as the makers write them: cuda is CUDA_VERSION (13000 for 13.0), nccl is NCCL_VERSION_CODE (22703 for 2.27.3). */
typedef struct sluice_cuda_versions {
    uint32_t size; /* of this struct, as the plugin knows it */
    uint32_t sluice_major, sluice_minor, sluice_patch;
    uint32_t cuda;
    uint32_t nccl;
} sluice_cuda_versions;

/* A GPU for programs that keep tensors there themselves: `sluice run`, benchmarks, specs. */
typedef struct slc_gpu slc_gpu;

typedef struct slc_gpu_ops {
    sluice_status (*count)(int *count, sluice_error *error); /* of GPUs that this process sees */
    sluice_status (*open)(int ordinal, slc_gpu **gpu, sluice_error *error);
    void (*close)(slc_gpu *gpu); /* NULL is allowed; what was allocated must be released before */
    sluice_status (*allocate)(slc_gpu *gpu, size_t bytes, void **memory, sluice_error *error);
    void (*release)(slc_gpu *gpu, void *memory);
    /* Each returns when all bytes are there. */
    sluice_status (*write)(slc_gpu *gpu, void *to, const void *from, size_t bytes, sluice_error *error); /* from here */
    sluice_status (*read)(slc_gpu *gpu, void *to, const void *from, size_t bytes, sluice_error *error);  /* to here */
} slc_gpu_ops;

typedef struct sluice_cuda_plugin {
    sluice_cuda_versions versions; /* what this plugin was compiled against; says nothing of what the process will find */
    const slc_transport_ops *nccl, *m2n;
    const slc_gpu_ops *gpu;
} sluice_cuda_plugin;

/* Static storage. The one symbol that the plugin exports. */
__attribute__((visibility("default"))) const sluice_cuda_plugin *sluice_cuda_plugin_open(void);

/*
 * In the core (plugin_find.c): the plugin, out of the file that SLUICE_CUDA_PLUGIN names, or beside this library or
 * program, or where the system looks. UNSUPPORTED says where it was looked for, or which versions do not go together.
 */
sluice_status slc_cuda_plugin_find(const sluice_cuda_plugin **plugin, sluice_error *error);

#endif
