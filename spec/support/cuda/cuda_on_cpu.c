/*
 * cuda_on_cpu.c: the part of CUDA's driver that the nccl transport uses, done by processors and ordinary memory, so that the
 * transport runs where there is no GPU: two devices, contexts, streams that really run beside their host (a thread each),
 * words that streams wait for, memory of one process mapped in another. It is strict where the real driver is: calls without
 * a current context fail, a handle opens once a process and never in its own, copies must lie inside allocations.
 *
 * Built as libcuda.so.1 for specs; never installed. Addresses are those of shared memory (memfd), mapped by whoever opens
 * a handle.
 */
#include "cuda_on_cpu.h"
#include "kernels_on_cpu.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DRIVER = 13000, MOST_CONTEXTS = 16 };
static const size_t MEMORY = (size_t)8 << 30; /* of each device, as it says */

/* ---- contexts ---- */

static struct CUctx_st primary[DEVICES] = { { 0 }, { 1 } };
static _Thread_local CUcontext current[MOST_CONTEXTS];
static _Thread_local int entered;

CUcontext cpu_here(void)
{
    return entered > 0 ? current[entered - 1] : NULL;
}

static CUresult init(unsigned int flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult driver_version(int *version)
{
    *version = DRIVER;
    return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult device_count(int *count)
{
    *count = DEVICES;
    return CUDA_SUCCESS;
}

static CUresult device_name(char *name, int length, CUdevice device)
{
    snprintf(name, (size_t)length, "processor as GPU %d", device);
    return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *context, CUdevice device)
{
    *context = &primary[device];
    return CUDA_SUCCESS;
}

static CUresult context_release(CUdevice device)
{
    return device >= 0 && device < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult context_push(CUcontext context)
{
    if (entered == MOST_CONTEXTS)
        return CUDA_ERROR_INVALID_CONTEXT;
    current[entered++] = context;
    return CUDA_SUCCESS;
}

static CUresult context_pop(CUcontext *context)
{
    if (entered == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = current[--entered];
    return CUDA_SUCCESS;
}

static CUresult context_device(CUdevice *device)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = cpu_here()->ordinal;
    return CUDA_SUCCESS;
}

static CUresult context_peer(CUcontext context, unsigned int flags)
{
    (void)flags;
    return cpu_here() == NULL || context == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
                                                : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

static CUresult error_string(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY              ? "out of memory"
            : error == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED ? "peer access is not supported between these two devices"
            : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                                : "an error";
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

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

/* ---- streams ---- */

/* One thing that a stream does; a box of rows for copies and fills. */
struct work {
    struct work *next;
    enum { COPY, FILL, RAISE, WAIT, MARK, PASS, CALL, KERNEL } what;
    unsigned char *to;
    const unsigned char *from;
    size_t width, height, depth, to_pitch, from_pitch, to_layer, from_layer;
    int byte;
    uint64_t value;
    struct CUevent_st *event; /* MARK: `value` records of it are done; PASS: waits for that many */
    CUhostFn function;        /* CALL */
    void *context;
    const kernel *launched;
    uint32_t blocks, threads;
    _Alignas(16) unsigned char parameters[KERNEL_PARAMETERS];
};

/* What a stream was told while it was captured. */
struct CUgraph_st {
    struct work *first, **last;
};

struct CUstream_st {
    struct CUgraph_st *captured; /* NULL: what comes is done */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct work *first, **last;
    size_t waiting; /* works not done yet */
    bool ending;
    int ordinal;
};

/* What is recorded is counted: an event is done when as many records are done as there were. Freed with its last user. */
struct CUevent_st {
    uint64_t recorded, done;
    int users;
};

static void leave_event(struct CUevent_st *event)
{
    if (__atomic_sub_fetch(&event->users, 1, __ATOMIC_ACQ_REL) == 0)
        free(event);
}

static bool is_ending(struct CUstream_st *stream)
{
    pthread_mutex_lock(&stream->mutex);
    bool ending = stream->ending;
    pthread_mutex_unlock(&stream->mutex);
    return ending;
}

static void do_event(struct CUstream_st *stream, const struct work *work)
{
    const struct timespec pause = { .tv_nsec = 20000 };
    struct CUevent_st *event = work->event;
    if (work->what == MARK) {
        __atomic_store_n(&event->done, work->value, __ATOMIC_RELEASE);
        leave_event(event);
        return;
    }
    while (__atomic_load_n(&event->done, __ATOMIC_ACQUIRE) < work->value && !is_ending(stream))
        nanosleep(&pause, NULL);
    leave_event(event);
}

static void do_work(struct CUstream_st *stream, const struct work *work)
{
    const struct timespec pause = { .tv_nsec = 50000 };
    if (work->what == MARK || work->what == PASS) {
        do_event(stream, work);
        return;
    }
    if (work->what == CALL) {
        work->function(work->context);
        return;
    }
    if (work->what == KERNEL) {
        work->launched->run(work->parameters, work->blocks, work->threads);
        return;
    }
    if (work->what == RAISE) {
        __atomic_store_n((uint64_t *)(void *)work->to, work->value, __ATOMIC_RELEASE);
        return;
    }
    if (work->what == WAIT) {
        while ((int64_t)(__atomic_load_n((const uint64_t *)(const void *)work->from, __ATOMIC_ACQUIRE) - work->value) < 0 &&
               !is_ending(stream))
            nanosleep(&pause, NULL);
        return;
    }
    for (size_t z = 0; z < work->depth; z++)
        for (size_t y = 0; y < work->height; y++) {
            unsigned char *to = work->to + z * work->to_layer + y * work->to_pitch;
            if (work->what == FILL)
                memset(to, work->byte, work->width);
            else
                memcpy(to, work->from + z * work->from_layer + y * work->from_pitch, work->width);
        }
}

static void *run(void *context)
{
    struct CUstream_st *stream = context;
    pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (stream->first == NULL && !stream->ending)
            pthread_cond_wait(&stream->changed, &stream->mutex);
        struct work *work = stream->first;
        if (work == NULL)
            break;
        stream->first = work->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        pthread_mutex_unlock(&stream->mutex);
        do_work(stream, work);
        free(work);
        pthread_mutex_lock(&stream->mutex);
        stream->waiting--;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

static CUresult stream_create(CUstream *out, unsigned int flags)
{
    if (cpu_here() == NULL || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->last = &stream->first;
    stream->ordinal = cpu_here()->ordinal;
    if (pthread_create(&stream->thread, NULL, run, stream) != 0) {
        free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = stream;
    return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
    pthread_mutex_lock(&stream->mutex);
    stream->ending = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
    pthread_mutex_destroy(&stream->mutex);
    pthread_cond_destroy(&stream->changed);
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult enqueue(CUstream stream, const struct work *what)
{
    struct work *work = cpu_here() == NULL ? NULL : malloc(sizeof *work);
    if (work == NULL)
        return cpu_here() == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_OUT_OF_MEMORY;
    *work = *what;
    work->next = NULL;
    pthread_mutex_lock(&stream->mutex);
    struct CUgraph_st *graph = stream->captured;
    if (graph != NULL) {
        *graph->last = work;
        graph->last = &work->next;
    } else {
        *stream->last = work;
        stream->last = &work->next;
        stream->waiting++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->mutex);
    return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&stream->mutex);
    bool idle = stream->waiting == 0, captured = stream->captured != NULL;
    pthread_mutex_unlock(&stream->mutex);
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult stream_synchronize(CUstream stream)
{
    pthread_mutex_lock(&stream->mutex);
    while (stream->waiting > 0)
        pthread_cond_wait(&stream->changed, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
    return CUDA_SUCCESS;
}

static CUresult stream_write(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || !cpu_is_device(address, sizeof value))
        return CUDA_ERROR_INVALID_VALUE;
    const struct work work = { .what = RAISE, .to = (unsigned char *)(uintptr_t)address, .value = value };
    return enqueue(stream, &work);
}

static CUresult stream_wait(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    if (flags != CU_STREAM_WAIT_VALUE_GEQ || !cpu_is_device(address, sizeof value))
        return CUDA_ERROR_INVALID_VALUE;
    const struct work work = { .what = WAIT, .from = (const unsigned char *)(uintptr_t)address, .value = value };
    return enqueue(stream, &work);
}

/* ---- events ---- */

static CUresult event_create(CUevent *event, unsigned int flags)
{
    if (cpu_here() == NULL || (flags & CU_EVENT_INTERPROCESS) != 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*event)->users = 1;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    leave_event(event);
    return CUDA_SUCCESS;
}

static CUresult enqueue_event(CUstream stream, CUevent event, struct work *work)
{
    if (stream->captured != NULL) /* those of a capture belong to its graph, of which there is only a list here */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    work->event = event;
    __atomic_add_fetch(&event->users, 1, __ATOMIC_RELAXED);
    CUresult result = enqueue(stream, work);
    if (result != CUDA_SUCCESS)
        leave_event(event);
    return result;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    struct work work = { .what = MARK, .value = __atomic_add_fetch(&event->recorded, 1, __ATOMIC_RELAXED) };
    return enqueue_event(stream, event, &work);
}

static CUresult event_query(CUevent event)
{
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    return __atomic_load_n(&event->done, __ATOMIC_ACQUIRE) < __atomic_load_n(&event->recorded, __ATOMIC_RELAXED)
               ? CUDA_ERROR_NOT_READY
               : CUDA_SUCCESS;
}

static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned int flags)
{
    struct work work = { .what = PASS, .value = __atomic_load_n(&event->recorded, __ATOMIC_RELAXED) };
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : enqueue_event(stream, event, &work);
}

static CUresult call_host(CUstream stream, CUhostFn function, void *context)
{
    const struct work work = { .what = CALL, .function = function, .context = context };
    return enqueue(stream, &work);
}

/* ---- captures and graphs ---- */

static CUresult stream_context(CUstream stream, CUcontext *context)
{
    *context = &primary[stream->ordinal];
    return CUDA_SUCCESS;
}

static CUresult capture_state(CUstream stream, CUstreamCaptureStatus *state)
{
    *state = stream->captured != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult capture_mode(CUstreamCaptureMode *mode)
{
    static _Thread_local CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode before = own;
    own = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
    (void)mode;
    struct CUgraph_st *graph = cpu_here() == NULL || stream->captured != NULL ? NULL : calloc(1, sizeof *graph);
    if (graph == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    graph->last = &graph->first;
    stream->captured = graph;
    return CUDA_SUCCESS;
}

static CUresult capture_end(CUstream stream, CUgraph *graph)
{
    *graph = stream->captured;
    stream->captured = NULL;
    return *graph == NULL ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

static CUresult graph_destroy(CUgraph graph)
{
    for (struct work *work = graph->first, *next; work != NULL; work = next) {
        next = work->next;
        free(work);
    }
    free(graph);
    return CUDA_SUCCESS;
}

/* What runs is a list of its own, as the real one is. */
static CUresult graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    struct CUgraph_st *made = cpu_here() == NULL || flags != 0 ? NULL : calloc(1, sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    made->last = &made->first;
    for (const struct work *work = graph->first; work != NULL; work = work->next) {
        struct work *copy = malloc(sizeof *copy);
        if (copy == NULL)
            return graph_destroy(made), CUDA_ERROR_OUT_OF_MEMORY;
        *copy = *work;
        copy->next = NULL;
        *made->last = copy;
        made->last = &copy->next;
    }
    *out = (CUgraphExec)(void *)made;
    return CUDA_SUCCESS;
}

static CUresult graph_launch(CUgraphExec graph, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    for (const struct work *work = ((CUgraph)(void *)graph)->first; work != NULL && result == CUDA_SUCCESS; work = work->next)
        result = enqueue(stream, work);
    return result;
}

static CUresult graph_exec_destroy(CUgraphExec graph)
{
    return graph_destroy((CUgraph)(void *)graph);
}

/* ---- copies ---- */

/* Bytes from the first to behind the last of a box. */
static size_t reach(size_t width, size_t height, size_t depth, size_t pitch, size_t layer)
{
    return width + (height - 1) * pitch + (depth - 1) * layer;
}

/* Of two addresses at least one is on a device; the other may be the host's. */
static CUresult copy_box(CUstream stream, struct work *work)
{
    if (work->width == 0 || work->height == 0 || work->depth == 0 || work->to_pitch < work->width ||
        work->from_pitch < work->width)
        return CUDA_ERROR_INVALID_VALUE;
    bool to = cpu_is_device((CUdeviceptr)(uintptr_t)work->to,
                        reach(work->width, work->height, work->depth, work->to_pitch, work->to_layer));
    bool from = cpu_is_device((CUdeviceptr)(uintptr_t)work->from,
                          reach(work->width, work->height, work->depth, work->from_pitch, work->from_layer));
    work->what = COPY;
    return to || from ? enqueue(stream, work) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    struct work work = { .to = (unsigned char *)(uintptr_t)to,
                         .from = (const unsigned char *)(uintptr_t)from,
                         .width = bytes,
                         .height = 1,
                         .depth = 1,
                         .to_pitch = bytes,
                         .from_pitch = bytes };
    return copy_box(stream, &work);
}

static CUresult copy_plane(const CUDA_MEMCPY2D *plane, CUstream stream)
{
    struct work work = { .to = (unsigned char *)(uintptr_t)plane->dstDevice,
                         .from = (const unsigned char *)(uintptr_t)plane->srcDevice,
                         .width = plane->WidthInBytes,
                         .height = plane->Height,
                         .depth = 1,
                         .to_pitch = plane->dstPitch,
                         .from_pitch = plane->srcPitch };
    return copy_box(stream, &work);
}

static CUresult copy_batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                           size_t *first, size_t nattributes, size_t *failed, CUstream stream)
{
    if (stream->captured != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (count == 0 || nattributes != 1 || first[0] != 0 || attributes->srcAccessOrder != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult result = cpu_is_device(to[i], bytes[i]) && cpu_is_device(from[i], bytes[i]) ? copy(to[i], from[i], bytes[i], stream)
                                                                                     : CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS) {
            *failed = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult copy_boxes(size_t count, CUDA_MEMCPY3D_BATCH_OP *box, size_t *failed, unsigned long long flags, CUstream stream)
{
    if (stream->captured != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (size_t i = 0; i < count; i++) {
        size_t to_pitch = box[i].dst.op.ptr.rowLength, from_pitch = box[i].src.op.ptr.rowLength;
        struct work work = { .to = (unsigned char *)(uintptr_t)box[i].dst.op.ptr.ptr,
                             .from = (const unsigned char *)(uintptr_t)box[i].src.op.ptr.ptr,
                             .width = box[i].extent.width,
                             .height = box[i].extent.height,
                             .depth = box[i].extent.depth,
                             .to_pitch = to_pitch,
                             .from_pitch = from_pitch,
                             .to_layer = to_pitch * box[i].dst.op.ptr.layerHeight,
                             .from_layer = from_pitch * box[i].src.op.ptr.layerHeight };
        bool layered = box[i].dst.op.ptr.layerHeight >= work.height && box[i].src.op.ptr.layerHeight >= work.height;
        CUresult result = flags == 0 && layered ? copy_box(stream, &work) : CUDA_ERROR_INVALID_VALUE;
        if (result != CUDA_SUCCESS) {
            *failed = i;
            return result;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream)
{
    const struct work work = {
        .what = FILL, .to = (unsigned char *)(uintptr_t)to, .width = bytes, .height = 1, .depth = 1, .byte = byte
    };
    return cpu_is_device(to, bytes) ? enqueue(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult fill_plane(CUdeviceptr to, size_t pitch, unsigned char byte, size_t width, size_t height, CUstream stream)
{
    const struct work work = { .what = FILL,
                               .to = (unsigned char *)(uintptr_t)to,
                               .width = width,
                               .height = height,
                               .depth = 1,
                               .to_pitch = pitch,
                               .byte = byte };
    return cpu_is_device(to, reach(width, height, 1, pitch, 0)) ? enqueue(stream, &work) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- kernels ---- */

struct CUmod_st {
    int ordinal;
};

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = 4;
    return attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT && device < DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* An image is looked at no further than a driver must to know it for one. */
static CUresult module_load(CUmodule *module, const void *image)
{
    const uint32_t fatbin = 0xBA55ED50;
    if (cpu_here() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (memcmp(image, &fatbin, sizeof fatbin) != 0)
        return CUDA_ERROR_INVALID_IMAGE;
    struct CUmod_st *made = getenv("SLUICE_CUDA_ON_CPU_OLD") != NULL ? NULL : malloc(sizeof *made); /* a GPU without an image */
    if (made == NULL)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    made->ordinal = cpu_here()->ordinal;
    *module = made;
    return CUDA_SUCCESS;
}

static CUresult module_unload(CUmodule module)
{
    if (cpu_here() == NULL || cpu_here()->ordinal != module->ordinal)
        return CUDA_ERROR_INVALID_CONTEXT;
    free(module);
    return CUDA_SUCCESS;
}

static CUresult module_function(CUfunction *function, CUmodule module, const char *name)
{
    const kernel *found = kernel_find(name);
    *function = (CUfunction)(uintptr_t)found;
    return cpu_here() == NULL || cpu_here()->ordinal != module->ordinal ? CUDA_ERROR_INVALID_CONTEXT
           : found == NULL                                      ? CUDA_ERROR_NOT_FOUND
                                                                : CUDA_SUCCESS;
}

static bool holds(uint64_t address, size_t bytes)
{
    return cpu_is_device(address, bytes);
}

static CUresult launch(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int threads, unsigned int ty,
                       unsigned int tz, unsigned int shared, CUstream stream, void **parameters, void **extra)
{
    const kernel *known = (const void *)function;
    struct work work = { .what = KERNEL, .launched = known, .blocks = x, .threads = threads };
    if (x == 0 || threads == 0 || threads > known->threads || y != 1 || z != 1 || ty != 1 || tz != 1 || shared != 0 ||
        extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(work.parameters, parameters[0], known->parameters);
    return known->is_sound(work.parameters, holds) ? enqueue(stream, &work) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* ---- the door ---- */

typedef cpu_function any;

static void look_up(const struct cpu_named *known, size_t count, const char *symbol, void **function)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(known[i].name, symbol) == 0)
            memcpy(function, &known[i].function, sizeof *function);
}

__attribute__((visibility("default"))) CUresult cuDriverGetVersion(int *version)
{
    return driver_version(version);
}

#undef cuGetProcAddress
__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                                                    cuuint64_t flags, CUdriverProcAddressQueryResult *found)
{
    static const struct cpu_named known[] = {
        { "cuInit", (any)init },
        { "cuDriverGetVersion", (any)driver_version },
        { "cuDeviceGet", (any)device_get },
        { "cuDeviceGetCount", (any)device_count },
        { "cuDeviceGetName", (any)device_name },
        { "cuDeviceGetUuid", (any)device_uuid },
        { "cuDeviceGetAttribute", (any)device_attribute },
        { "cuDevicePrimaryCtxRetain", (any)context_retain },
        { "cuDevicePrimaryCtxRelease", (any)context_release },
        { "cuCtxPushCurrent", (any)context_push },
        { "cuCtxPopCurrent", (any)context_pop },
        { "cuCtxGetDevice", (any)context_device },
        { "cuCtxEnablePeerAccess", (any)context_peer },
        { "cuGetErrorName", (any)error_name },
        { "cuGetErrorString", (any)error_string },
        { "cuMemAlloc", (any)memory_allocate },
        { "cuMemFree", (any)memory_free },
        { "cuMemGetInfo", (any)memory_info },
        { "cuMemGetAddressRange", (any)memory_range },
        { "cuPointerGetAttributes", (any)pointer_attributes },
        { "cuMemcpyAsync", (any)copy },
        { "cuMemcpy2DAsync", (any)copy_plane },
        { "cuMemsetD8Async", (any)fill },
        { "cuMemsetD2D8Async", (any)fill_plane },
        { "cuModuleLoadData", (any)module_load },
        { "cuModuleUnload", (any)module_unload },
        { "cuModuleGetFunction", (any)module_function },
        { "cuLaunchKernel", (any)launch },
        { "cuStreamCreate", (any)stream_create },
        { "cuStreamDestroy", (any)stream_destroy },
        { "cuStreamQuery", (any)stream_query },
        { "cuStreamSynchronize", (any)stream_synchronize },
        { "cuStreamWaitEvent", (any)stream_wait_event },
        { "cuEventCreate", (any)event_create },
        { "cuEventDestroy", (any)event_destroy },
        { "cuEventRecord", (any)event_record },
        { "cuEventQuery", (any)event_query },
        { "cuLaunchHostFunc", (any)call_host },
        { "cuStreamWriteValue64", (any)stream_write },
        { "cuStreamWaitValue64", (any)stream_wait },
        { "cuStreamGetCtx", (any)stream_context },
        { "cuStreamIsCapturing", (any)capture_state },
        { "cuStreamBeginCapture", (any)capture_begin },
        { "cuStreamEndCapture", (any)capture_end },
        { "cuThreadExchangeStreamCaptureMode", (any)capture_mode },
        { "cuGraphInstantiateWithFlags", (any)graph_instantiate },
        { "cuGraphLaunch", (any)graph_launch },
        { "cuGraphDestroy", (any)graph_destroy },
        { "cuGraphExecDestroy", (any)graph_exec_destroy },
        { "cuIpcGetMemHandle", (any)handle_get },
        { "cuIpcOpenMemHandle", (any)handle_open },
        { "cuIpcCloseMemHandle", (any)handle_close },
        { "cuMemcpyBatchAsync", (any)copy_batch },
        { "cuMemcpy3DBatchAsync", (any)copy_boxes },
    };
    const char *old = getenv("SLUICE_CUDA_ON_CPU_VERSION"); /* a driver that is older than some functions */
    (void)flags;
    *function = NULL;
    size_t count = 0;
    const struct cpu_named *of_pieces = cpu_piece_functions(&count);
    if (old == NULL || version <= atoi(old)) {
        look_up(known, sizeof known / sizeof known[0], symbol, function);
        look_up(of_pieces, count, symbol, function);
    }
    *found = *function == NULL ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
    return *function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
