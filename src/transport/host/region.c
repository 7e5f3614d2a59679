/* region.c: the memory behind sluice_memory_alloc. See host.h. */
#include "transport/host/host.h"

#include "base/error.h"
#include "transport/host/map.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

sluice_status slc_region_create(size_t bytes, slc_region *region, sluice_error *error)
{
    *region = (slc_region){ .fd = -1 };
    size_t pages = slc_host_pages(bytes);
    if (pages == 0)
        return slc_fail(error, SLUICE_INVALID, "memory", "shared region (%zu bytes) must fit half the address space", bytes);
    int fd;
    sluice_status status = slc_host_memfd("sluice-region", pages, &fd, error);
    if (status != SLUICE_OK)
        return status;
    void *data = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        status = slc_fail_errno(error, errno, "memory", "mapping a shared region (%zu bytes)", pages);
        close(fd);
        return status;
    }
    (void)madvise(data, pages, MADV_HUGEPAGE); /* a wish: fewer faults and TLB misses where the kernel allows it */
    *region = (slc_region){ .data = data, .bytes = pages, .fd = fd };
    return SLUICE_OK;
}

void slc_region_destroy(slc_region *region)
{
    if (region == NULL || region->data == NULL)
        return;
    munmap(region->data, region->bytes);
    close(region->fd);
    *region = (slc_region){ .fd = -1 };
}
