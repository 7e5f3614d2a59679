/* load.c: finds CUDA's driver library and the functions in it. Owns the library's handle. */
#include "transport/nccl/load.h"

#include <dlfcn.h>
#include <string.h>

static const char STAGE[] = "runtime";
enum { LOWEST_DRIVER = 12000 };

static sluice_status find(slc_cuda *cuda, PFN_cuGetProcAddress_v12000 look_up, const char *name, int version, bool needed,
                          void **function, sluice_error *error)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *function = NULL;
    if (cuda->driver >= version && look_up(name, function, version, CU_GET_PROC_ADDRESS_DEFAULT, &found) == CUDA_SUCCESS &&
        found == CU_GET_PROC_ADDRESS_SUCCESS && *function != NULL)
        return SLUICE_OK;
    *function = NULL;
    return needed ? slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "CUDA driver %d.%d has no %s", cuda->driver / 1000,
                             cuda->driver % 1000 / 10, name)
                  : SLUICE_OK;
}

/* The symbol that every driver has, whatever else it lacks; a function pointer out of dlsym by way of memcpy, as POSIX has it. */
static PFN_cuGetProcAddress_v12000 look_up_of(void *library)
{
    PFN_cuGetProcAddress_v12000 function = NULL;
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    memcpy(&function, &symbol, sizeof function);
    return function;
}

static sluice_status driver_version(slc_cuda *cuda, sluice_error *error)
{
    PFN_cuDriverGetVersion_v2020 ask = NULL;
    void *symbol = dlsym(cuda->library, "cuDriverGetVersion");
    memcpy(&ask, &symbol, sizeof ask);
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
    PFN_cuGetProcAddress_v12000 look_up = status == SLUICE_OK ? look_up_of(cuda->library) : NULL;
    if (status == SLUICE_OK && look_up == NULL)
        status = slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "libcuda.so.1 has no cuGetProcAddress_v2");
    void *function;
#define SLC_CUDA_FIND(name, version, needed) \
    if (status == SLUICE_OK) { \
        status = find(cuda, look_up, "cu" #name, version, needed, &function, error); \
        memcpy(&cuda->name, &function, sizeof function); \
    }
#define SLC_CUDA_NEED(name, version) SLC_CUDA_FIND(name, version, true)
#define SLC_CUDA_WANT(name, version) SLC_CUDA_FIND(name, version, false)
    SLC_CUDA_LIST(SLC_CUDA_NEED)
    SLC_CUDA_NEWER_LIST(SLC_CUDA_WANT)
#undef SLC_CUDA_WANT
#undef SLC_CUDA_NEED
#undef SLC_CUDA_FIND
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

sluice_status slc_cuda_check(const slc_cuda *cuda, CUresult result, const char *stage, const char *what, sluice_error *error)
{
    if (result == CUDA_SUCCESS)
        return SLUICE_OK;
    const char *name = "unknown", *words = "no description";
    (void)cuda->GetErrorName(result, &name);
    (void)cuda->GetErrorString(result, &words);
    return slc_fail(error, result == CUDA_ERROR_OUT_OF_MEMORY ? SLUICE_NO_MEMORY : SLUICE_SYSTEM, stage, "%s: %s (%s)", what,
                    words, name);
}
