/*
 * pieces_on_cpu.c: of the driver on processors, memory that is mapped piece by piece (CUDA's VMM), as PyTorch's expandable
 * segments and ncclMemAlloc take it, and that goes to other processes as descriptors.
 */
#include "cuda_on_cpu.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct piece {
    int fd, ordinal, users;
    size_t size;
};

static const size_t GRAIN = 2 << 20;

static CUmemGenericAllocationHandle handle_of(struct piece *piece)
{
    return (CUmemGenericAllocationHandle)(uintptr_t)piece;
}

static struct piece *piece_of(CUmemGenericAllocationHandle handle)
{
    return (struct piece *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr) */
}

static struct piece *make_piece(int fd, size_t size, int ordinal)
{
    struct piece *made = fd < 0 ? NULL : calloc(1, sizeof *made);
    if (made != NULL)
        *made = (struct piece){ .fd = fd, .ordinal = ordinal, .users = 1, .size = size };
    return made;
}

static void use_piece(struct piece *piece, int users)
{
    pthread_mutex_lock(&cpu_memory.mutex);
    bool last = (piece->users += users) == 0;
    pthread_mutex_unlock(&cpu_memory.mutex);
    if (!last)
        return;
    close(piece->fd);
    free(piece);
}

static CUresult piece_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *how, unsigned long long flags)
{
    if (bytes == 0 || bytes % GRAIN != 0 || flags != 0 || how->type != CU_MEM_ALLOCATION_TYPE_PINNED || how->location.id >= DEVICES ||
        how->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = memfd_create("gpu", MFD_CLOEXEC);
    struct piece *made = fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ? NULL : make_piece(fd, bytes, how->location.id);
    *handle = handle_of(made);
    return made == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult piece_release(CUmemGenericAllocationHandle handle)
{
    use_piece(piece_of(handle), -1);
    return CUDA_SUCCESS;
}

static CUresult piece_retain(CUmemGenericAllocationHandle *handle, void *address)
{
    pthread_mutex_lock(&cpu_memory.mutex);
    struct block *block = cpu_find((CUdeviceptr)(uintptr_t)address, 1);
    struct piece *piece = block == NULL ? NULL : block->piece;
    pthread_mutex_unlock(&cpu_memory.mutex);
    if (piece == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    use_piece(piece, 1);
    *handle = handle_of(piece);
    return CUDA_SUCCESS;
}

static CUresult piece_properties(CUmemAllocationProp *how, CUmemGenericAllocationHandle handle)
{
    *how = (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = piece_of(handle)->ordinal } };
    return CUDA_SUCCESS;
}

static CUresult piece_export(void *to, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
    int fd = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0 ? fcntl(piece_of(handle)->fd, F_DUPFD_CLOEXEC, 0) : -1;
    memcpy(to, &fd, sizeof fd);
    return fd < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult piece_import(CUmemGenericAllocationHandle *handle, void *from, CUmemAllocationHandleType type)
{
    struct stat found;
    int fd = (int)(intptr_t)from;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &found) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct piece *made = make_piece(fcntl(fd, F_DUPFD_CLOEXEC, 0), (size_t)found.st_size, cpu_here()->ordinal);
    *handle = handle_of(made);
    return made == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult range_grain(size_t *grain, const CUmemAllocationProp *how, CUmemAllocationGranularity_flags flags)
{
    (void)how;
    (void)flags;
    *grain = GRAIN;
    return CUDA_SUCCESS;
}

static CUresult range_reserve(CUdeviceptr *range, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    (void)wanted;
    void *data = bytes % GRAIN != 0 || alignment > GRAIN || flags != 0
                     ? MAP_FAILED
                     : mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *range = data == MAP_FAILED ? 0 : (CUdeviceptr)(uintptr_t)data;
    return data == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult range_free(CUdeviceptr range, size_t bytes)
{
    return munmap((void *)(uintptr_t)range, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult range_map(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct piece *piece = piece_of(handle);
    struct block *block = offset == 0 && flags == 0 && bytes == piece->size ? calloc(1, sizeof *block) : NULL;
    if (block == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    void *data = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece->fd, 0);
    if (data == MAP_FAILED) {
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    use_piece(piece, 1);
    *block = (struct block){ .base = data, .size = bytes, .fd = -1, .ordinal = piece->ordinal, .piece = piece };
    cpu_add(block);
    return CUDA_SUCCESS;
}

static CUresult range_unmap(CUdeviceptr at, size_t bytes)
{
    struct block *dropped = cpu_take(at, false, true);
    if (dropped == NULL || dropped->size != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    (void)mmap(dropped->base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    use_piece(dropped->piece, -1);
    free(dropped);
    return CUDA_SUCCESS;
}

static CUresult range_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    return count == 1 && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && cpu_is_device(at, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

const struct cpu_named *cpu_piece_functions(size_t *count)
{
    static const struct cpu_named known[] = {
        { "cuMemRetainAllocationHandle", (cpu_function)piece_retain },
        { "cuMemGetAllocationPropertiesFromHandle", (cpu_function)piece_properties },
        { "cuMemExportToShareableHandle", (cpu_function)piece_export },
        { "cuMemImportFromShareableHandle", (cpu_function)piece_import },
        { "cuMemGetAllocationGranularity", (cpu_function)range_grain },
        { "cuMemAddressReserve", (cpu_function)range_reserve },
        { "cuMemAddressFree", (cpu_function)range_free },
        { "cuMemMap", (cpu_function)range_map },
        { "cuMemUnmap", (cpu_function)range_unmap },
        { "cuMemSetAccess", (cpu_function)range_access },
        { "cuMemRelease", (cpu_function)piece_release },
        { "cuMemCreate", (cpu_function)piece_create },
    };
    *count = sizeof known / sizeof known[0];
    return known;
}
