/*
 * memory_on_cpu.c: of the driver on processors, memory: allocations of each device, what an address is, and handles by which another
 * process maps an allocation.
 */
#include "cuda_on_cpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t MEMORY = (size_t)8 << 30; /* of each device, as it says */

struct cpu_memory cpu_memory = { .mutex = PTHREAD_MUTEX_INITIALIZER };

struct block *cpu_find(CUdeviceptr address, size_t bytes)
{
    for (struct block *block = cpu_memory.first; block != NULL; block = block->next) {
        uintptr_t base = (uintptr_t)block->base;
        if (address >= base && address - base < block->size && bytes <= block->size - (address - base))
            return block;
    }
    return NULL;
}

void cpu_add(struct block *block)
{
    pthread_mutex_lock(&cpu_memory.mutex);
    block->id = ++cpu_memory.ids;
    block->next = cpu_memory.first;
    cpu_memory.first = block;
    pthread_mutex_unlock(&cpu_memory.mutex);
}

struct block *cpu_take(CUdeviceptr base, bool mapped, bool of_piece)
{
    pthread_mutex_lock(&cpu_memory.mutex);
    struct block **at = &cpu_memory.first, *taken;
    while (*at != NULL && ((CUdeviceptr)(uintptr_t)(*at)->base != base || (*at)->mapped != mapped || ((*at)->piece != NULL) != of_piece))
        at = &(*at)->next;
    taken = *at;
    if (taken != NULL)
        *at = taken->next;
    if (taken != NULL && !mapped && !of_piece)
        cpu_memory.taken[taken->ordinal] -= taken->size;
    pthread_mutex_unlock(&cpu_memory.mutex);
    return taken;
}

bool cpu_is_device(CUdeviceptr address, size_t bytes)
{
    CUdeviceptr end = address + bytes;
    pthread_mutex_lock(&cpu_memory.mutex);
    struct block *block = cpu_find(address, 1);
    while (block != NULL && end > (CUdeviceptr)(uintptr_t)(block->base + block->size))
        block = block->piece == NULL ? NULL : cpu_find((CUdeviceptr)(uintptr_t)(block->base + block->size), 1);
    pthread_mutex_unlock(&cpu_memory.mutex);
    return block != NULL;
}

static CUresult memory_allocate(CUdeviceptr *address, size_t bytes)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&cpu_memory.mutex);
    size_t *taken = &cpu_memory.taken[cpu_here()->ordinal];
    bool fits = bytes <= MEMORY - *taken;
    if (fits)
        *taken += bytes;
    pthread_mutex_unlock(&cpu_memory.mutex);
    struct block *block = fits ? calloc(1, sizeof *block) : NULL;
    int fd = block == NULL ? -1 : memfd_create("gpu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *block = (struct block){ .base = data, .size = bytes, .fd = fd, .ordinal = cpu_here()->ordinal };
    cpu_add(block);
    *address = (CUdeviceptr)(uintptr_t)data;
    return CUDA_SUCCESS;
}

static CUresult drop(CUdeviceptr address, bool mapped)
{
    struct block *block = cpu_take(address, mapped, false);
    if (block == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    munmap(block->base, block->size);
    if (block->fd >= 0)
        close(block->fd);
    free(block);
    return CUDA_SUCCESS;
}

static CUresult memory_free(CUdeviceptr address)
{
    return cpu_here() == NULL ? CUDA_ERROR_INVALID_CONTEXT : drop(address, false);
}

static CUresult memory_info(size_t *left, size_t *all)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *all = MEMORY;
    *left = MEMORY - cpu_memory.taken[cpu_here()->ordinal];
    return CUDA_SUCCESS;
}

static CUresult memory_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&cpu_memory.mutex);
    struct block *block = cpu_find(address, 1);
    if (block != NULL) {
        *base = (CUdeviceptr)(uintptr_t)block->base;
        *size = block->size;
    }
    pthread_mutex_unlock(&cpu_memory.mutex);
    return block == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

static CUresult pointer_attributes(unsigned int count, CUpointer_attribute *attribute, void **value, CUdeviceptr address)
{
    pthread_mutex_lock(&cpu_memory.mutex);
    struct block *block = cpu_find(address, 1);
    for (unsigned int i = 0; i < count; i++) {
        uint64_t fact = 0;
        size_t size = sizeof(uint32_t);
        if (attribute[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            fact = block != NULL ? CU_MEMORYTYPE_DEVICE : 0;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            fact = block != NULL ? (uint32_t)block->ordinal : (uint32_t)-2;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
            fact = block != NULL && !block->mapped && block->piece == NULL, size = 1;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID)
            fact = block != NULL ? block->id : 0;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
            fact = block != NULL && block->piece != NULL ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
            fact = block != NULL ? (uint64_t)(uintptr_t)block->base : 0, size = sizeof fact;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_MAPPING_SIZE)
            fact = block != NULL ? block->size : 0, size = sizeof fact;
        memcpy(value[i], &fact, size);
    }
    pthread_mutex_unlock(&cpu_memory.mutex);
    return CUDA_SUCCESS;
}

/* ---- handles between processes ---- */

struct ticket {
    int32_t pid, fd, ordinal;
    uint64_t size;
};

static CUresult handle_get(CUipcMemHandle *handle, CUdeviceptr address)
{
    pthread_mutex_lock(&cpu_memory.mutex);
    struct block *block = cpu_find(address, 1);
    bool good = cpu_here() != NULL && block != NULL && !block->mapped && block->piece == NULL && (CUdeviceptr)(uintptr_t)block->base == address;
    if (good) {
        struct ticket ticket = { .pid = (int32_t)getpid(), .fd = block->fd, .ordinal = block->ordinal, .size = block->size };
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &ticket, sizeof ticket);
    }
    pthread_mutex_unlock(&cpu_memory.mutex);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_open(const CUipcMemHandle *handle)
{
    bool found = false;
    pthread_mutex_lock(&cpu_memory.mutex);
    for (struct block *block = cpu_memory.first; block != NULL && !found; block = block->next)
        found = block->mapped && memcmp(&block->handle, handle, sizeof *handle) == 0;
    pthread_mutex_unlock(&cpu_memory.mutex);
    return found;
}

static CUresult handle_open(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    struct ticket ticket;
    char path[64];
    memcpy(&ticket, &handle, sizeof ticket);
    if (cpu_here() == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ticket.pid == (int32_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (is_open(&handle))
        return CUDA_ERROR_ALREADY_MAPPED;
    const char *apart = getenv("SLUICE_CUDA_ON_CPU_APART"); /* from so many bytes on, the GPUs do not reach each other's memory */
    if (apart != NULL && ticket.ordinal != cpu_here()->ordinal && ticket.size >= strtoull(apart, NULL, 10))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.pid, ticket.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct block *block = fd < 0 ? NULL : calloc(1, sizeof *block);
    void *data = block == NULL ? MAP_FAILED : mmap(NULL, ticket.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (data == MAP_FAILED) {
        free(block);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *block = (struct block){
        .base = data, .size = ticket.size, .fd = -1, .ordinal = ticket.ordinal, .handle = handle, .mapped = true
    };
    cpu_add(block);
    *address = (CUdeviceptr)(uintptr_t)data;
    return CUDA_SUCCESS;
}

static CUresult handle_close(CUdeviceptr address)
{
    return drop(address, true);
}

const struct cpu_named *cpu_memory_functions(size_t *count)
{
    static const struct cpu_named known[] = {
        { "cuMemAlloc", (cpu_function)memory_allocate },
        { "cuMemFree", (cpu_function)memory_free },
        { "cuMemGetInfo", (cpu_function)memory_info },
        { "cuMemGetAddressRange", (cpu_function)memory_range },
        { "cuPointerGetAttributes", (cpu_function)pointer_attributes },
        { "cuIpcGetMemHandle", (cpu_function)handle_get },
        { "cuIpcOpenMemHandle", (cpu_function)handle_open },
        { "cuIpcCloseMemHandle", (cpu_function)handle_close },
    };
    *count = sizeof known / sizeof known[0];
    return known;
}
