/* load.c: finds CUDA's driver library and the functions in it. Owns the library's handle. */
#include "transport/nccl/load.h"

#include "base/symbol.h"

#include <dlfcn.h>
#include <string.h>

static const char STAGE[] = "runtime";
enum { LOWEST_DRIVER = 12000 };

bool slc_cuda_find(const slc_cuda *cuda, const char *name, int version, void *function)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    void *symbol = NULL;
    bool there = cuda->driver >= version && cuda->look_up(name, &symbol, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS &&
                 found == CU_GET_PROC_ADDRESS_SUCCESS && symbol != NULL;
    symbol = there ? symbol : NULL;
    memcpy(function, &symbol, sizeof symbol);
    return there;
}

static sluice_status need(const slc_cuda *cuda, const char *name, int version, void *function, sluice_error *error)
{
    return slc_cuda_find(cuda, name, version, function)
               ? SLUICE_OK
               : slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "CUDA driver %d.%d has no %s", cuda->driver / 1000, cuda->driver % 1000 / 10, name);
}

static sluice_status driver_version(slc_cuda *cuda, sluice_error *error)
{
    PFN_cuDriverGetVersion_v2020 ask = NULL;
    slc_symbol(cuda->library, "cuDriverGetVersion", &ask);
    if (ask == NULL || ask(&cuda->driver) != CUDA_SUCCESS)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "libcuda.so.1 does not tell its version");
    if (cuda->driver < LOWEST_DRIVER)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "CUDA driver (%d.%d) must be at least %d.0", cuda->driver / 1000,
                        cuda->driver % 1000 / 10, LOWEST_DRIVER / 1000);
    return SLUICE_OK;
}

sluice_status slc_cuda_open(slc_cuda *cuda, sluice_error *error)
{
    *cuda = (slc_cuda){ 0 };
    cuda->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cuda->library == NULL)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "transport nccl wants an NVIDIA driver: %s", dlerror());
    sluice_status status = driver_version(cuda, error);
    if (status == SLUICE_OK)
        status = slc_symbol_need(cuda->library, "libcuda.so.1", "cuGetProcAddress_v2", &cuda->look_up, error);
#define SLC_CUDA_NEED(name, version) \
    if (status == SLUICE_OK) \
        status = need(cuda, "cu" #name, version, &cuda->name, error);
#define SLC_CUDA_WANT(name, version) \
    if (status == SLUICE_OK) \
        (void)slc_cuda_find(cuda, "cu" #name, version, &cuda->name);
    SLC_CUDA_LIST(SLC_CUDA_NEED)
    SLC_CUDA_NEWER_LIST(SLC_CUDA_WANT)
#undef SLC_CUDA_WANT
#undef SLC_CUDA_NEED
    if (status == SLUICE_OK)
        status = slc_cuda_check(cuda, cuda->Init(0), STAGE, "cuInit", error);
    if (status != SLUICE_OK)
        slc_cuda_close(cuda);
    return status;
}

void slc_cuda_close(slc_cuda *cuda)
{
    if (cuda->library != NULL)
        dlclose(cuda->library);
    *cuda = (slc_cuda){ 0 };
}

/* After such an error every call of the process fails on that GPU. */
static bool is_lasting(CUresult result)
{
    switch ((int)result) {
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
            return true;
        default:
            return false;
    }
}

sluice_status slc_cuda_check(const slc_cuda *cuda, CUresult result, const char *stage, const char *what, sluice_error *error)
{
    if (result == CUDA_SUCCESS)
        return SLUICE_OK;
    const char *name = "unknown", *words = "no description";
    (void)cuda->GetErrorName(result, &name);
    (void)cuda->GetErrorString(result, &words);
    return slc_fail(error, result == CUDA_ERROR_OUT_OF_MEMORY ? SLUICE_NO_MEMORY : SLUICE_SYSTEM, stage, "%s: %s (%s)%s", what,
                    words, name, is_lasting(result) ? "; this process has lost that GPU: start it anew" : "");
}
