/*
 * plugin_find.c: opens libsluice_cuda when a transport asks for GPUs. Once opened it stays in the process: CUDA does not
 * survive being unloaded. Owns nothing.
 */
#include "transport/nccl/plugin.h"

#include "base/error.h"
#include "base/place.h"
#include "base/symbol.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static const char STAGE[] = "runtime";
static const char FILE_NAME[] = "libsluice_cuda.so";

/* Beside this code, in the lib folder beside its bin folder, then where the system looks. What dlopen said of the last is kept. */
static void *open_plugin(char *tried, size_t size)
{
    static const char *const places[] = { "", "../lib/", "../lib64/" };
    const int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    char folder[3072], path[4096];
    slc_own_folder(folder, sizeof folder);
    for (size_t i = 0; folder[0] != '\0' && i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, sizeof path, "%s%s%s", folder, places[i], FILE_NAME);
        void *library = dlopen(path, flags);
        if (library != NULL)
            return library;
    }
    void *library = dlopen(FILE_NAME, flags);
    if (library == NULL)
        snprintf(tried, size, "%s", dlerror());
    return library;
}

static sluice_status check_versions(const sluice_cuda_versions *versions, sluice_error *error)
{
    if (versions->size == sizeof *versions && versions->sluice_major == SLUICE_VERSION_MAJOR &&
        versions->sluice_minor == SLUICE_VERSION_MINOR && versions->sluice_patch == SLUICE_VERSION_PATCH)
        return SLUICE_OK;
    return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                    "%s is of Sluice %u.%u.%u and this library of %d.%d.%d: both must come from one build", FILE_NAME,
                    versions->sluice_major, versions->sluice_minor, versions->sluice_patch, SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR,
                    SLUICE_VERSION_PATCH);
}

sluice_status slc_cuda_plugin_find(const sluice_cuda_plugin **plugin, sluice_error *error)
{
    const char *named = getenv("SLUICE_CUDA_PLUGIN");
    char tried[1024] = "";
    *plugin = NULL;
    void *library = named != NULL ? dlopen(named, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : open_plugin(tried, sizeof tried);
    if (library == NULL)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "transport nccl wants %s, which is built where nvcc and nccl.h are found: %s", FILE_NAME,
                        named != NULL ? dlerror() : tried);
    const sluice_cuda_plugin *(*door)(void) = NULL;
    sluice_status status = slc_symbol_need(library, FILE_NAME, "sluice_cuda_plugin_open", &door, error);
    const sluice_cuda_plugin *found = status == SLUICE_OK ? door() : NULL;
    if (status == SLUICE_OK)
        status = check_versions(&found->versions, error);
    dlclose(library); /* it stays, see RTLD_NODELETE */
    if (status == SLUICE_OK)
        *plugin = found;
    return status;
}
