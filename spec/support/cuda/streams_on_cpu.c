/*
 * streams_on_cpu.c: of the driver on processors, streams that really run beside their host, a thread each; events, which count; words
 * of device memory that streams raise and wait for; and captures, whose graphs are lists.
 */
#include "streams_on_cpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

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

CUresult cpu_enqueue(CUstream stream, const struct work *what)
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

bool cpu_is_captured(CUstream stream)
{
    return stream->captured != NULL;
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
    return cpu_enqueue(stream, &work);
}

static CUresult stream_wait(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    if (flags != CU_STREAM_WAIT_VALUE_GEQ || !cpu_is_device(address, sizeof value))
        return CUDA_ERROR_INVALID_VALUE;
    const struct work work = { .what = WAIT, .from = (const unsigned char *)(uintptr_t)address, .value = value };
    return cpu_enqueue(stream, &work);
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
    CUresult result = cpu_enqueue(stream, work);
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
    return cpu_enqueue(stream, &work);
}

/* ---- captures and graphs ---- */

static CUresult stream_context(CUstream stream, CUcontext *context)
{
    *context = cpu_context(stream->ordinal);
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
        result = cpu_enqueue(stream, work);
    return result;
}

static CUresult graph_exec_destroy(CUgraphExec graph)
{
    return graph_destroy((CUgraph)(void *)graph);
}

const struct cpu_named *cpu_stream_functions(size_t *count)
{
    static const struct cpu_named known[] = {
        { "cuStreamCreate", (cpu_function)stream_create },
        { "cuStreamDestroy", (cpu_function)stream_destroy },
        { "cuStreamQuery", (cpu_function)stream_query },
        { "cuStreamSynchronize", (cpu_function)stream_synchronize },
        { "cuStreamWaitEvent", (cpu_function)stream_wait_event },
        { "cuEventCreate", (cpu_function)event_create },
        { "cuEventDestroy", (cpu_function)event_destroy },
        { "cuEventRecord", (cpu_function)event_record },
        { "cuEventQuery", (cpu_function)event_query },
        { "cuLaunchHostFunc", (cpu_function)call_host },
        { "cuStreamWriteValue64", (cpu_function)stream_write },
        { "cuStreamWaitValue64", (cpu_function)stream_wait },
        { "cuStreamGetCtx", (cpu_function)stream_context },
        { "cuStreamIsCapturing", (cpu_function)capture_state },
        { "cuStreamBeginCapture", (cpu_function)capture_begin },
        { "cuStreamEndCapture", (cpu_function)capture_end },
        { "cuThreadExchangeStreamCaptureMode", (cpu_function)capture_mode },
        { "cuGraphInstantiateWithFlags", (cpu_function)graph_instantiate },
        { "cuGraphLaunch", (cpu_function)graph_launch },
        { "cuGraphDestroy", (cpu_function)graph_destroy },
        { "cuGraphExecDestroy", (cpu_function)graph_exec_destroy },
    };
    *count = sizeof known / sizeof known[0];
    return known;
}
