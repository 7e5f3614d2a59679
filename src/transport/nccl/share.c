/*
 * share.c: see share.h. CUDA opens an IPC handle once a process and not a second time, so that handles in use are kept in a
 * list of the whole process: two engines may map one allocation of a peer.
 */
#include "transport/nccl/share.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char STAGE[] = "runtime";

/* ---- the owner ---- */

static bool known(const slc_pieces *pieces, uint64_t base)
{
    return pieces->count > 0 && pieces->item[pieces->count - 1].base == base;
}

static sluice_status add(slc_pieces *pieces, const slc_piece *piece, sluice_error *error)
{
    if (!SLC_ROOM(pieces->item, pieces->capacity, pieces->count, 64))
        return slc_fail_memory(error, STAGE, "the list of shared memory", (pieces->count + 1) * sizeof *pieces->item);
    pieces->item[pieces->count++] = *piece;
    return SLUICE_OK;
}

sluice_status slc_pieces_add(const slc_device *device, slc_pieces *pieces, const void *data, size_t bytes, const char *what,
                             sluice_error *error)
{
    const slc_cuda *cuda = device->cuda;
    uint64_t at = (uint64_t)(uintptr_t)data, end = at + bytes;
    while (at < end) {
        slc_place place;
        sluice_status status = slc_place_of(cuda, (const void *)(uintptr_t)at, STAGE, &place, error);
        if (status != SLUICE_OK)
            return status;
        if (!place.on_device || place.ordinal != device->ordinal)
            return slc_fail(error, SLUICE_INVALID, STAGE,
                            "%s (0x%" PRIx64 ", %zu bytes) must lie in memory of GPU %d, as this rank's others do", what, at,
                            bytes, device->ordinal);
        if (!place.ipc && !place.exportable)
            return slc_fail(
                error, SLUICE_UNSUPPORTED, STAGE,
                "%s lies in memory that no other process can map: it must come from cudaMalloc, or be exportable as a descriptor",
                what);
        if (place.ipc)
            status = slc_cuda_check(cuda, cuda->MemGetAddressRange(&place.base, &place.size, at), STAGE,
                                    "asking where an allocation begins", error);
        if (status != SLUICE_OK)
            return status;
        if (place.size == 0 || place.base > at || at - place.base >= place.size)
            return slc_fail(error, SLUICE_SYSTEM, STAGE, "%s: the driver does not know where the memory at 0x%" PRIx64 " begins",
                            what, at);
        slc_piece piece = { .base = place.base,
                            .size = place.size,
                            .kind = place.ipc ? SLC_PIECE_IPC : SLC_PIECE_DESCRIPTOR,
                            .ordinal = place.ordinal };
        at = place.base + place.size;
        if (known(pieces, piece.base))
            continue;
        if (place.ipc)
            status = slc_cuda_check(cuda, cuda->IpcGetMemHandle(&piece.handle, place.base), STAGE, "sharing GPU memory", error);
        if (status == SLUICE_OK)
            status = add(pieces, &piece, error);
        if (status != SLUICE_OK)
            return status;
    }
    return SLUICE_OK;
}

static int by_base(const void *a, const void *b)
{
    uint64_t x = ((const slc_piece *)a)->base, y = ((const slc_piece *)b)->base;
    return (x > y) - (x < y);
}

void slc_pieces_settle(slc_pieces *pieces)
{
    size_t kept = 0;
    if (pieces->count > 1)
        qsort(pieces->item, pieces->count, sizeof *pieces->item, by_base);
    for (size_t i = 0; i < pieces->count; i++)
        if (kept == 0 || pieces->item[kept - 1].base != pieces->item[i].base)
            pieces->item[kept++] = pieces->item[i];
    pieces->count = kept;
    for (size_t i = kept; i > 0; i--) {
        slc_piece *piece = &pieces->item[i - 1], *next = i < kept ? &pieces->item[i] : NULL;
        bool touches = next != NULL && piece->kind == SLC_PIECE_DESCRIPTOR && next->kind == SLC_PIECE_DESCRIPTOR &&
                       piece->base + piece->size == next->base;
        piece->run = piece->size + (touches ? next->run : 0);
    }
}

void slc_pieces_clear(slc_pieces *pieces)
{
    slc_release(pieces->item);
    *pieces = (slc_pieces){ 0 };
}

sluice_status slc_piece_export(const slc_device *device, const slc_piece *piece, int *fd, sluice_error *error)
{
    const slc_cuda *cuda = device->cuda;
    CUmemGenericAllocationHandle handle;
    *fd = -1;
    sluice_status status = slc_cuda_check(cuda, cuda->MemRetainAllocationHandle(&handle, (void *)(uintptr_t)piece->base), STAGE,
                                          "holding GPU memory to be shared", error);
    if (status != SLUICE_OK)
        return status;
    status = slc_cuda_check(cuda, cuda->MemExportToShareableHandle(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                            STAGE, "sharing GPU memory as a descriptor", error);
    (void)cuda->MemRelease(handle);
    return status;
}

/* ---- handles in use, of the whole process ---- */

typedef struct opened {
    struct opened *next;
    CUipcMemHandle handle;
    int ordinal; /* of the GPU that reaches it */
    CUdeviceptr here;
    size_t users;
} opened;

static struct {
    pthread_mutex_t mutex;
    opened *first;
} handles = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static sluice_status open_handle(const slc_device *device, const CUipcMemHandle *handle, CUdeviceptr *here, sluice_error *error)
{
    const slc_cuda *cuda = device->cuda;
    sluice_status status = SLUICE_OK;
    pthread_mutex_lock(&handles.mutex);
    opened *found = handles.first;
    while (found != NULL && (found->ordinal != device->ordinal || memcmp(&found->handle, handle, sizeof *handle) != 0))
        found = found->next;
    if (found == NULL) {
        found = slc_allocate_zeroed(1, sizeof *found);
        status = found == NULL
                     ? slc_fail_memory(error, STAGE, "a handle", sizeof *found)
                     : slc_cuda_check(cuda, cuda->IpcOpenMemHandle(&found->here, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                                      STAGE, "mapping a peer's GPU memory", error);
        if (status == SLUICE_OK) {
            found->handle = *handle;
            found->ordinal = device->ordinal;
            found->next = handles.first;
            handles.first = found;
        } else {
            slc_release(found);
            found = NULL;
        }
    }
    if (found != NULL) {
        found->users++;
        *here = found->here;
    }
    pthread_mutex_unlock(&handles.mutex);
    return status;
}

static void close_handle(const slc_device *device, CUdeviceptr here)
{
    pthread_mutex_lock(&handles.mutex);
    for (opened **at = &handles.first; *at != NULL; at = &(*at)->next) {
        opened *found = *at;
        if (found->ordinal != device->ordinal || found->here != here)
            continue;
        if (--found->users == 0) {
            (void)device->cuda->IpcCloseMemHandle(here);
            *at = found->next;
            slc_release(found);
        }
        break;
    }
    pthread_mutex_unlock(&handles.mutex);
}

/* ---- the peer ---- */

/* Memory of another GPU of this process: its address is good here once its context may be reached from this one. */
static sluice_status reach(const slc_device *device, int32_t ordinal, sluice_error *error)
{
    slc_device other;
    if (ordinal == device->ordinal)
        return SLUICE_OK;
    sluice_status status = slc_device_open(device->cuda, ordinal, &other, error);
    if (status != SLUICE_OK)
        return status;
    CUresult result = device->cuda->CtxEnablePeerAccess(other.context, 0);
    slc_device_close(&other); /* the owner holds it */
    return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? SLUICE_OK
               : slc_cuda_check(device->cuda, result, STAGE, "reaching another GPU's memory", error);
}

static sluice_status map_descriptor(slc_peer_memory *memory, const slc_piece *piece, int fd, slc_mapped *mapped,
                                    sluice_error *error)
{
    const slc_cuda *cuda = memory->device->cuda;
    const slc_mapped *last = memory->count > 0 ? &memory->item[memory->count - 1] : NULL;
    CUmemGenericAllocationHandle handle;
    if (last != NULL && last->kind == SLC_PIECE_DESCRIPTOR && last->base + last->size == piece->base) {
        mapped->here = last->here + last->size; /* inside the range that the first piece of the run reserved */
    } else {
        sluice_status status = slc_cuda_check(cuda, cuda->MemAddressReserve(&mapped->reserved, piece->run, 0, 0, 0), STAGE,
                                              "addresses for a peer's GPU memory", error);
        if (status != SLUICE_OK)
            return status;
        mapped->reserved_bytes = piece->run;
        mapped->here = mapped->reserved;
    }
    CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = memory->device->ordinal },
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    sluice_status status = slc_cuda_check(
        cuda, cuda->MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), STAGE,
        "taking a peer's GPU memory", error);
    bool mapped_it = false;
    if (status == SLUICE_OK) {
        status = slc_cuda_check(cuda, cuda->MemMap(mapped->here, piece->size, 0, handle, 0), STAGE, "mapping a peer's GPU memory",
                                error);
        mapped_it = status == SLUICE_OK;
        (void)cuda->MemRelease(handle); /* the mapping holds it */
    }
    if (status == SLUICE_OK)
        status = slc_cuda_check(cuda, cuda->MemSetAccess(mapped->here, piece->size, &access, 1), STAGE,
                                "reaching a peer's GPU memory", error);
    if (status != SLUICE_OK && mapped_it)
        (void)cuda->MemUnmap(mapped->here, piece->size);
    if (status != SLUICE_OK && mapped->reserved != 0)
        (void)cuda->MemAddressFree(mapped->reserved, mapped->reserved_bytes);
    return status;
}

static sluice_status check_order(const slc_peer_memory *memory, const slc_piece *piece, int32_t rank, sluice_error *error)
{
    const slc_mapped *last = memory->count > 0 ? &memory->item[memory->count - 1] : NULL;
    const uint64_t most = (uint64_t)1 << 47; /* what addresses can hold */
    bool good = piece->size > 0 && piece->base < most && piece->size < most && piece->run >= piece->size && piece->run < most &&
                (last == NULL || last->base + last->size <= piece->base);
    return good ? SLUICE_OK
                : slc_fail(error, SLUICE_INVALID, STAGE,
                           "rank %" PRId32 " shares memory that cannot be (0x%" PRIx64 ", %" PRIu64 " bytes)", rank, piece->base,
                           piece->size);
}

sluice_status slc_peer_memory_map(slc_peer_memory *memory, const slc_piece *piece, int fd, bool same_process, int32_t rank,
                                  sluice_error *error)
{
    sluice_status status = check_order(memory, piece, rank, error);
    if (status != SLUICE_OK)
        return status;
    if (!SLC_ROOM(memory->item, memory->capacity, memory->count, 32)) /* grows with what came, not with what was promised */
        return slc_fail_memory(error, STAGE, "the list of a peer's memory", (memory->count + 1) * sizeof *memory->item);
    slc_mapped mapped = { .base = piece->base, .size = piece->size, .kind = same_process ? 0 : piece->kind };
    if (same_process) {
        mapped.here = piece->base;
        status = reach(memory->device, piece->ordinal, error);
    } else if (piece->kind == SLC_PIECE_IPC) {
        status = open_handle(memory->device, &piece->handle, &mapped.here, error);
    } else if (piece->kind == SLC_PIECE_DESCRIPTOR && fd >= 0) {
        status = map_descriptor(memory, piece, fd, &mapped, error);
    } else {
        status = slc_fail(error, SLUICE_INVALID, STAGE,
                          "rank %" PRId32 " shares memory of a kind (%" PRIu32 ") that there is not", rank, piece->kind);
    }
    if (status == SLUICE_OK)
        memory->item[memory->count++] = mapped;
    return status;
}

CUdeviceptr slc_peer_memory_find(const slc_peer_memory *memory, uint64_t address, uint64_t bytes)
{
    size_t low = 0, high = memory->count;
    while (low < high) { /* the last piece that begins at or below the address */
        size_t middle = low + (high - low) / 2;
        if (memory->item[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return 0;
    const slc_mapped *first = &memory->item[low - 1];
    uint64_t offset = address - first->base, reach = first->size;
    for (size_t i = low; i < memory->count && offset < first->size && reach - offset < bytes; i++) {
        const slc_mapped *next = &memory->item[i];
        if (next->base != first->base + reach || next->here != first->here + reach)
            break;
        reach += next->size;
    }
    return offset < first->size && bytes <= reach - offset ? first->here + offset : 0;
}

void slc_peer_memory_clear(slc_peer_memory *memory)
{
    const slc_cuda *cuda = memory->count > 0 ? memory->device->cuda : NULL;
    for (size_t i = memory->count; i > 0; i--) { /* the piece that reserved a run goes last */
        slc_mapped *mapped = &memory->item[i - 1];
        if (mapped->kind == SLC_PIECE_IPC)
            close_handle(memory->device, mapped->here);
        if (mapped->kind == SLC_PIECE_DESCRIPTOR)
            (void)cuda->MemUnmap(mapped->here, mapped->size);
        if (mapped->reserved != 0)
            (void)cuda->MemAddressFree(mapped->reserved, mapped->reserved_bytes);
    }
    slc_release(memory->item);
    memory->item = NULL;
    memory->count = memory->capacity = 0;
}
