/* map.c: see map.h. */
#include "transport/host/map.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define STAGE "runtime"

static int by_address(const void *a, const void *b)
{
    const slc_host_region *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

sluice_status slc_host_regions_sort(slc_host_regions *regions, int32_t rank, sluice_error *error)
{
    if (regions->count > 1)
        qsort(regions->item, regions->count, sizeof *regions->item, by_address);
    uint64_t end = 0;
    for (size_t i = 0; i < regions->count; i++) {
        const slc_host_region *region = &regions->item[i];
        uint64_t next;
        if (region->address < end || __builtin_add_overflow(region->address, region->bytes, &next))
            return slc_fail(error, SLUICE_INVALID, STAGE,
                            "shared region of rank %" PRId32 " at 0x%" PRIx64 " (%" PRIu64 " bytes) must not overlap another",
                            rank, region->address, region->bytes);
        end = next;
    }
    return SLUICE_OK;
}

void slc_host_regions_clear(slc_host_regions *regions)
{
    for (size_t i = 0; i < regions->count; i++)
        if (regions->item[i].data != NULL)
            munmap(regions->item[i].data, (size_t)regions->item[i].bytes);
    slc_release(regions->item);
    *regions = (slc_host_regions){ 0 };
}

const slc_host_region *slc_host_region_of(const slc_host_regions *regions, uint64_t address, uint64_t bytes)
{
    size_t low = 0, high = regions->count; /* the last region that starts at or below address is low - 1 */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (regions->item[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    const slc_host_region *region = &regions->item[low - 1];
    uint64_t offset = address - region->address;
    return offset <= region->bytes && bytes <= region->bytes - offset ? region : NULL;
}

size_t slc_host_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX / 2)
        return 0;
    return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

sluice_status slc_host_memfd(const char *name, size_t bytes, int *fd, sluice_error *error)
{
    const unsigned int no_exec = 0x8U; /* MFD_NOEXEC_SEAL, Linux 6.3 */
    *fd = -1;
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | no_exec);
    if (made < 0 && errno == EINVAL)
        made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0)
        return slc_fail_errno(error, errno, STAGE, "memfd_create for %s", name);
    struct rlimit longest; /* beyond it the kernel would end the process by a signal */
    if (getrlimit(RLIMIT_FSIZE, &longest) == 0 && bytes > longest.rlim_cur) {
        close(made);
        return slc_fail(error, SLUICE_NO_MEMORY, STAGE, "memfd for %s (%zu bytes) must be within the file size limit of this process (%llu bytes)",
                        name, bytes, (unsigned long long)longest.rlim_cur);
    }
    if (ftruncate(made, (off_t)bytes) != 0 || fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        sluice_status status = slc_fail_errno(error, errno, STAGE, "memfd for %s (%zu bytes)", name, bytes);
        close(made);
        return status;
    }
    *fd = made;
    return SLUICE_OK;
}

sluice_status slc_host_map(int fd, size_t bytes, bool writable, int32_t rank, const char *what, void **data, sluice_error *error)
{
    *data = NULL;
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || status.st_size < 0 ||
        (uint64_t)status.st_size < bytes)
        return slc_fail(error, SLUICE_INVALID, STAGE,
                        "%s of rank %" PRId32 " (%zu bytes) must be a memfd of at least that size, sealed against shrinking",
                        what, rank, bytes);
    void *mapped = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return slc_fail_errno(error, errno, STAGE, "mapping the %s of rank %" PRId32 " (%zu bytes)", what, rank, bytes);
    *data = mapped;
    return SLUICE_OK;
}

sluice_status slc_host_table_create(size_t count, slc_host_table *table, sluice_error *error)
{
    *table = (slc_host_table){ .fd = -1 };
    size_t bytes, pages;
    if (!slc_multiply_size(count, sizeof(uint64_t), &bytes) || (pages = slc_host_pages(bytes)) == 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "source table (%zu parameters) does not fit the address space", count);
    int fd;
    sluice_status status = slc_host_memfd("sluice-sources", pages, &fd, error);
    if (status != SLUICE_OK)
        return status;
    void *mapped = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) {
        status = slc_fail_errno(error, errno, STAGE, "mapping the source table (%zu bytes)", pages);
        close(fd);
        return status;
    }
    *table = (slc_host_table){ .address = mapped, .count = count, .mapped = pages, .fd = fd };
    return SLUICE_OK;
}

void slc_host_table_clear(slc_host_table *table)
{
    if (table->address != NULL) {
        munmap(table->address, table->mapped);
        if (table->fd >= 0)
            close(table->fd);
    }
    *table = (slc_host_table){ .fd = -1 };
}
