/* caller.c: see caller.h. Owns the events. */
#include "transport/nccl/caller.h"

#include "base/error.h"
#include "base/memory.h"

#include <time.h>

static const char UPDATE[] = "update";

sluice_status slc_caller_device(const slc_cuda *cuda, void *stream, int *ordinal, sluice_error *error)
{
    CUcontext context = NULL;
    CUdevice device = 0;
    CUresult result = CUDA_SUCCESS;
    *ordinal = 0;
    if (stream != NULL)
        result = cuda->StreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS && context != NULL)
        result = cuda->CtxPushCurrent(context);
    if (result != CUDA_SUCCESS)
        return slc_cuda_check(cuda, result, "runtime", "options.stream", error);
    if (cuda->CtxGetDevice(&device) == CUDA_SUCCESS) /* the driver numbers devices as it orders them */
        *ordinal = device;
    if (context != NULL)
        (void)cuda->CtxPopCurrent(&context);
    return SLUICE_OK;
}

sluice_status slc_caller_open(const slc_device *device, void *stream, slc_caller *caller, sluice_error *error)
{
    const slc_cuda *cuda = device->cuda;
    CUcontext context = NULL;
    *caller = (slc_caller){ .cuda = cuda, .stream = stream };
    if (stream == NULL)
        return SLUICE_OK;
    sluice_status status = slc_cuda_check(cuda, cuda->StreamGetCtx(stream, &context), "runtime", "options.stream", error);
    if (status == SLUICE_OK && context != device->context)
        status = slc_fail(error, SLUICE_INVALID, "runtime",
                          "options.stream must be a stream of GPU %d's primary context, where this rank's tensors lie", device->ordinal);
    return status == SLUICE_OK ? slc_cuda_check(cuda, cuda->EventCreate(&caller->came, CU_EVENT_DISABLE_TIMING), "runtime",
                                                "creating an event", error)
                               : status;
}

sluice_status slc_caller_slots(slc_caller *caller, size_t count, sluice_error *error)
{
    if (caller->stream == NULL)
        return SLUICE_OK;
    caller->read = slc_allocate_zeroed(count, sizeof(CUevent));
    if (caller->read == NULL)
        return slc_fail_memory(error, "runtime", "the events of staging slots", count * sizeof(CUevent));
    for (; caller->nslots < count; caller->nslots++) {
        CUresult result = caller->cuda->EventCreate(&caller->read[caller->nslots], CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS)
            return slc_cuda_check(caller->cuda, result, "runtime", "creating an event", error);
    }
    return SLUICE_OK;
}

void slc_caller_close(slc_caller *caller)
{
    if (caller->came != NULL)
        (void)caller->cuda->EventDestroy(caller->came);
    for (size_t i = 0; i < caller->nslots; i++)
        (void)caller->cuda->EventDestroy(caller->read[i]);
    slc_release((void *)caller->read);
    *caller = (slc_caller){ 0 };
}

sluice_status slc_caller_captured(const slc_caller *caller, const char *stage, bool *captured, sluice_error *error)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    *captured = false;
    if (caller->stream == NULL)
        return SLUICE_OK;
    sluice_status status =
        slc_cuda_check(caller->cuda, caller->cuda->StreamIsCapturing(caller->stream, &state), stage, "options.stream", error);
    *captured = status == SLUICE_OK && state != CU_STREAM_CAPTURE_STATUS_NONE;
    return status;
}

sluice_status slc_caller_check(const slc_caller *caller, const char *stage, sluice_error *error)
{
    bool captured;
    sluice_status status = slc_caller_captured(caller, stage, &captured, error);
    if (captured)
        status = slc_fail(error, SLUICE_STATE, stage, "options.stream is being captured: end its capture before an update");
    return status;
}

sluice_status slc_caller_begin(slc_caller *caller, sluice_error *error)
{
    return caller->stream == NULL ? SLUICE_OK
                                  : slc_cuda_check(caller->cuda, caller->cuda->EventRecord(caller->came, caller->stream), UPDATE,
                                                   "marking options.stream", error);
}

CUresult slc_caller_follow(const slc_caller *caller, CUstream stream)
{
    if (caller->gate != NULL)
        return slc_gate_follow(caller->gate, stream);
    return caller->stream == NULL ? CUDA_SUCCESS : caller->cuda->StreamWaitEvent(stream, caller->came, 0);
}

CUresult slc_caller_end(slc_caller *caller)
{
    CUresult result = caller->gate == NULL ? CUDA_SUCCESS : slc_gate_open(caller->gate);
    caller->gate = NULL;
    return result;
}

void slc_caller_gave(slc_caller *caller, size_t slot)
{
    if (caller->stream == NULL || caller->failed != CUDA_SUCCESS)
        return;
    caller->failed = caller->cuda->EventRecord(caller->read[slot], caller->stream);
}

sluice_status slc_caller_await(const slc_caller *caller, size_t slot, int32_t rank, slc_wait *wait, sluice_error *error)
{
    const struct timespec pause = { .tv_nsec = 20000 };
    sluice_status marked = slc_cuda_check(caller->cuda, caller->failed, UPDATE, "marking options.stream", error);
    if (marked != SLUICE_OK)
        return marked;
    while (caller->stream != NULL) {
        CUresult result = caller->cuda->EventQuery(caller->read[slot]);
        if (result != CUDA_ERROR_NOT_READY)
            return slc_cuda_check(caller->cuda, result, UPDATE, "waiting for options.stream", error);
        sluice_status status = slc_wait_tick(wait, "waiting for what options.stream reads of a staging slot on", rank, error);
        if (status != SLUICE_OK)
            return status;
        (void)nanosleep(&pause, NULL);
    }
    return SLUICE_OK;
}

bool slc_caller_settled(const slc_caller *caller)
{
    for (size_t i = 0; i < caller->nslots; i++)
        if (caller->cuda->EventQuery(caller->read[i]) == CUDA_ERROR_NOT_READY)
            return false;
    return true;
}
