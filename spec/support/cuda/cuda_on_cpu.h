/* cuda_on_cpu.h: what the files of the driver on processors share: contexts, and the memory that they know. */
#ifndef SPEC_SUPPORT_CUDA_ON_CPU_H
#define SPEC_SUPPORT_CUDA_ON_CPU_H

#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICES = 2 };

struct CUctx_st {
    int ordinal;
};

/* The context that is current for this thread, or NULL. */
CUcontext cpu_here(void);
/* That of a device. */
CUcontext cpu_context(int ordinal);

/* An allocation of this process, or one that it mapped. */
struct block {
    struct block *next;
    unsigned char *base;
    size_t size;
    int fd, ordinal;
    uint32_t id; /* no two have the same */
    CUipcMemHandle handle; /* of one that was mapped */
    bool mapped;
    struct piece *piece; /* of VMM: what is mapped there */
};

struct cpu_memory {
    pthread_mutex_t mutex;
    struct block *first;
    size_t taken[DEVICES];
    uint32_t ids;
};

extern struct cpu_memory cpu_memory;

/* Under the mutex: the block in which all these bytes lie. */
struct block *cpu_find(CUdeviceptr address, size_t bytes);
/* Lists a block, with an id of its own; takes one that begins there and is of that kind off the list, NULL where there is none. */
void cpu_add(struct block *block);
struct block *cpu_take(CUdeviceptr base, bool mapped, bool of_piece);
/* Whether all of it is memory: of one allocation, or of pieces that are mapped side by side. */
bool cpu_is_device(CUdeviceptr address, size_t bytes);

typedef void (*cpu_function)(void);
struct cpu_named {
    const char *name;
    cpu_function function;
};

/* What each file has of the driver, by the names of its functions; their number in `count`. */
const struct cpu_named *cpu_memory_functions(size_t *count);
const struct cpu_named *cpu_piece_functions(size_t *count);
const struct cpu_named *cpu_stream_functions(size_t *count);
const struct cpu_named *cpu_copy_functions(size_t *count);

#endif
