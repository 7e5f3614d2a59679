/* nccl_find.c: see nccl_find.h. Owns nothing: what was opened stays in the process. */
#include "transport/nccl_find.h"

#include "base/error.h"
#include "base/symbol.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char STAGE[] = "runtime";
static const char FILE_NAME[] = "libnccl.so.2";

void slc_nccl_version_text(int version, char *text, size_t size)
{
    if (version < 10000) /* up to 2.8 it counted otherwise */
        snprintf(text, size, "%d.%d.%d", version / 1000, version % 1000 / 100, version % 100);
    else
        snprintf(text, size, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
}

/* ---- in the process ---- */

struct seen {
    size_t count;
    char path[2][1024];
};

static int see(struct dl_phdr_info *info, size_t size, void *context)
{
    struct seen *seen = context;
    const char *name = info->dlpi_name == NULL ? "" : info->dlpi_name;
    const char *slash = strrchr(name, '/');
    (void)size;
    if (strncmp(slash == NULL ? name : slash + 1, "libnccl.so", strlen("libnccl.so")) != 0)
        return 0;
    if (seen->count < 2)
        snprintf(seen->path[seen->count], sizeof seen->path[0], "%s", name);
    seen->count++;
    return 0;
}

/* The one that the process has, by its file, or as part of something else. NULL: none. */
static sluice_status find_present(slc_nccl_file *file, sluice_error *error)
{
    struct seen seen = { 0 };
    (void)dl_iterate_phdr(see, &seen);
    if (seen.count > 1)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "this process has two NCCLs, %s and %s: they must not be used side by side; load one of them only",
                        seen.path[0], seen.path[1]);
    if (seen.count == 1)
        file->library = dlopen(seen.path[0], RTLD_NOW | RTLD_NOLOAD);
    else if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != NULL)
        file->library = dlopen(NULL, RTLD_NOW);
    file->was_there = file->library != NULL;
    return SLUICE_OK;
}

bool slc_nccl_is_there(void)
{
    struct seen seen = { 0 };
    (void)dl_iterate_phdr(see, &seen);
    return seen.count > 0 || dlsym(RTLD_DEFAULT, "ncclGetVersion") != NULL;
}

/* ---- on disk ---- */

static sluice_status load(const char *named, slc_nccl_file *file, sluice_error *error)
{
    const int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    file->library = dlopen(named != NULL ? named : FILE_NAME, flags);
    if (file->library != NULL)
        return SLUICE_OK;
    const char *said = dlerror();
    if (named != NULL)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "peers that are not on one NVLink domain want NCCL: this process has none, and SLUICE_NCCL_LIBRARY: %s",
                        said);
    return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                    "peers that are not on one NVLink domain want NCCL: this process has none, SLUICE_NCCL_LIBRARY names none, "
                    "and where the system looks: %s",
                    said);
}

static sluice_status read_version(slc_nccl_file *file, sluice_error *error)
{
    int (*ask)(int *) = NULL;
    char text[32];
    Dl_info where;
    void *symbol = dlsym(file->library, "ncclGetVersion");
    slc_symbol(file->library, "ncclGetVersion", &ask);
    if (symbol != NULL && dladdr(symbol, &where) != 0)
        snprintf(file->path, sizeof file->path, "%s", where.dli_fname);
    if (ask == NULL || ask(&file->version) != 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "NCCL (%s) does not tell its version", file->path);
    slc_nccl_version_text(file->version, text, sizeof text);
    if (file->version < SLC_NCCL_LOWEST || file->version >= SLC_NCCL_BEYOND)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "NCCL %s (%s) must be of version 2, and at least 2.18", text, file->path);
    return SLUICE_OK;
}

sluice_status slc_nccl_find(const slc_log *log, slc_nccl_file *file, sluice_error *error)
{
    const char *named = getenv("SLUICE_NCCL_LIBRARY");
    char text[32];
    *file = (slc_nccl_file){ 0 };
    if (named != NULL && *named == '\0')
        named = NULL;
    sluice_status status = find_present(file, error);
    if (status == SLUICE_OK && !file->was_there)
        status = load(named, file, error);
    if (status == SLUICE_OK)
        status = read_version(file, error);
    if (status != SLUICE_OK)
        return status;
    slc_nccl_version_text(file->version, text, sizeof text);
    slc_say(log, SLUICE_LOG_INFO, "nccl: NCCL %s, %s%s", text, file->path, file->was_there ? ", which this process had" : "");
    if (file->was_there && named != NULL && strcmp(named, file->path) != 0)
        slc_say(log, SLUICE_LOG_WARN, "nccl: SLUICE_NCCL_LIBRARY (%s) is passed over: the process has %s", named, file->path);
    return SLUICE_OK;
}
