/* kernels_on_cpu.h: the plugin's kernels for cuda_on_cpu.c: by name, strict about what they would touch, done thread by thread. */
#ifndef SPEC_SUPPORT_CUDA_KERNELS_ON_CPU_H
#define SPEC_SUPPORT_CUDA_KERNELS_ON_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KERNEL_PARAMETERS = 64 };

typedef struct kernel {
    const char *name;
    size_t parameters; /* bytes, at most KERNEL_PARAMETERS */
    uint32_t threads;  /* a block has, at most */
    /* Whether all that a launch would read and write lies where `holds` says that there is memory. */
    bool (*is_sound)(const void *parameters, bool (*holds)(uint64_t address, size_t bytes));
    void (*run)(const void *parameters, uint32_t blocks, uint32_t threads);
} kernel;

const kernel *kernel_find(const char *name); /* NULL where there is none */

#endif
