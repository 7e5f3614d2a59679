/* gate.c: see gate.h. Owns the words, a stream to write them, and a hold on the device. */
#include "transport/nccl/gate.h"

#include "base/error.h"
#include "base/memory.h"

static const char RECORD[] = "record", UPDATE[] = "update";

struct slc_gate {
    slc_cuda cuda;
    slc_device device;
    CUdeviceptr came, open;
    CUstream stream;
};

static CUresult set(const slc_gate *gate, CUdeviceptr word, uint64_t value)
{
    return gate->cuda.StreamWriteValue64(gate->stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

static void release(void *what)
{
    slc_gate *gate = what;
    sluice_error ignored = SLUICE_ERROR_INIT;
    if (gate->device.context != NULL && slc_device_enter(&gate->device, RECORD, &ignored) == SLUICE_OK) {
        if (gate->stream != NULL)
            (void)gate->cuda.StreamDestroy(gate->stream);
        slc_device_release(&gate->device, gate->came);
        slc_device_leave(&gate->device);
    }
    slc_device_close(&gate->device);
    slc_cuda_close(&gate->cuda);
    slc_release(gate);
}

static sluice_status make(slc_gate *gate, int ordinal, sluice_error *error)
{
    sluice_status status = slc_cuda_open(&gate->cuda, error);
    if (status == SLUICE_OK)
        status = slc_device_open(&gate->cuda, ordinal, &gate->device, error);
    if (status == SLUICE_OK)
        status = slc_device_allocate(&gate->device, 2 * sizeof(uint64_t), "a place in a graph", &gate->came, error);
    if (status != SLUICE_OK)
        return status;
    gate->open = gate->came + sizeof(uint64_t);
    CUresult result = gate->cuda.StreamCreate(&gate->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = set(gate, gate->came, 0);
    if (result == CUDA_SUCCESS)
        result = set(gate, gate->open, 1);
    if (result == CUDA_SUCCESS)
        result = gate->cuda.StreamSynchronize(gate->stream);
    return slc_cuda_check(&gate->cuda, result, RECORD, "a place in a graph", error);
}

sluice_status slc_gate_of(slc_keep *keep, const slc_device *device, slc_gate **gate, sluice_error *error)
{
    *gate = keep->what;
    if (*gate != NULL)
        return (*gate)->device.ordinal == device->ordinal
                   ? SLUICE_OK
                   : slc_fail(error, SLUICE_STATE, RECORD, "this engine's graphs wait on GPU %d, its tensors lie on GPU %d now",
                              (*gate)->device.ordinal, device->ordinal);
    slc_gate *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, RECORD, "a place in a graph", sizeof *made);
    sluice_status status = make(made, device->ordinal, error);
    if (status != SLUICE_OK) {
        release(made);
        return status;
    }
    *keep = (slc_keep){ .what = made, .release = release };
    *gate = made;
    return SLUICE_OK;
}

sluice_status slc_gate_place(const slc_gate *gate, CUstream captured, sluice_error *error)
{
    CUresult result = gate->cuda.StreamWriteValue64(captured, gate->came, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (result == CUDA_SUCCESS)
        result = gate->cuda.StreamWaitValue64(captured, gate->open, 1, CU_STREAM_WAIT_VALUE_GEQ);
    return slc_cuda_check(&gate->cuda, result, RECORD, "a place in the capture of options.stream", error);
}

sluice_status slc_gate_close(slc_gate *gate, sluice_error *error)
{
    CUresult result = set(gate, gate->came, 0);
    if (result == CUDA_SUCCESS)
        result = set(gate, gate->open, 0);
    if (result == CUDA_SUCCESS)
        result = gate->cuda.StreamSynchronize(gate->stream);
    return slc_cuda_check(&gate->cuda, result, UPDATE, "closing the gate in a graph of the host's", error);
}

CUresult slc_gate_open(slc_gate *gate)
{
    return set(gate, gate->open, 1);
}

CUresult slc_gate_follow(const slc_gate *gate, CUstream stream)
{
    return gate->cuda.StreamWaitValue64(stream, gate->came, 1, CU_STREAM_WAIT_VALUE_GEQ);
}
