/* m2n_find.c: see m2n_find.h. Owns nothing: what was opened stays in the process. */
#include "transport/m2n_find.h"

#include "base/error.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char STAGE[] = "runtime";
static const char FILE_NAME[] = "libnccl_m2n.so";
static const int FLAGS = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;

enum { LONGEST = 1024 };

/* ---- a Python environment ---- */

static bool is_there(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file != NULL)
        fclose(file);
    return file != NULL;
}

/* In a folder of packages. The newer CUDA first: which one fits is seen when it is opened. */
static bool look_in_packages(const char *folder, size_t length, char path[LONGEST])
{
    static const char *const cuda[] = { "cu13/", "cu12/", "" };
    for (size_t i = 0; i < sizeof cuda / sizeof cuda[0]; i++) {
        int used = snprintf(path, LONGEST, "%.*s/nccl/m2n/lib/%s%s", (int)length, folder, cuda[i], FILE_NAME);
        if (used > 0 && used < LONGEST && is_there(path))
            return true;
    }
    path[0] = '\0';
    return false;
}

/* Where what is loaded came from: a process that runs Python has parts of its packages. */
static int see_packages(struct dl_phdr_info *info, size_t size, void *context)
{
    static const char *const names[] = { "/site-packages/", "/dist-packages/" };
    const char *name = info->dlpi_name == NULL ? "" : info->dlpi_name;
    (void)size;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *at = strstr(name, names[i]);
        if (at != NULL && look_in_packages(name, (size_t)(at - name) + strlen(names[i]) - 1, context))
            return 1;
    }
    return 0;
}

static bool look_in_environment(const char *variable, char path[LONGEST])
{
    const char *root = getenv(variable);
    char pattern[LONGEST];
    glob_t found;
    bool good = false;
    if (root == NULL || *root == '\0' || snprintf(pattern, sizeof pattern, "%s/lib/python3*/site-packages", root) >= LONGEST ||
        glob(pattern, 0, NULL, &found) != 0)
        return false;
    for (size_t i = 0; i < found.gl_pathc && !good; i++)
        good = look_in_packages(found.gl_pathv[i], strlen(found.gl_pathv[i]), path);
    globfree(&found);
    return good;
}

static bool look_in_python(char path[LONGEST])
{
    path[0] = '\0';
    return dl_iterate_phdr(see_packages, path) != 0 || look_in_environment("VIRTUAL_ENV", path) || look_in_environment("CONDA_PREFIX", path);
}

/* There NCCL is a package of its own, and not where nccl_m2n looks for it. */
static void bring_packaged_nccl(const char *m2n)
{
    char path[LONGEST + 64];
    const char *end = strstr(m2n, "/nccl/m2n/lib/");
    snprintf(path, sizeof path, "%.*s/nvidia/nccl/lib/libnccl.so.2", (int)(end - m2n), m2n);
    (void)dlopen(path, FLAGS); /* where it is not, opening nccl_m2n says what is missing */
}

/* ---- both ---- */

static sluice_status check_nccl(const slc_nccl_file *nccl, const char *m2n, sluice_error *error)
{
    char text[32];
    slc_nccl_version_text(nccl->version, text, sizeof text);
    return nccl->version >= SLC_M2N_LOWEST_NCCL
               ? SLUICE_OK
               : slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "NCCL %s (%s) must be at least 2.30.5 for nccl_m2n (%s)", text, nccl->path, m2n);
}

/* What nccl_m2n calls must be in the file that everything else here calls. */
static sluice_status check_same(const slc_m2n_file *file, sluice_error *error)
{
    void *theirs = dlsym(file->library, "ncclGetVersion"), *ours = dlsym(file->nccl.library, "ncclGetVersion");
    Dl_info where = { 0 };
    if (theirs == ours)
        return SLUICE_OK;
    if (theirs != NULL)
        (void)dladdr(theirs, &where);
    return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                    "nccl_m2n (%s) uses the NCCL of %s, and this process that of %s: they must be one file; let SLUICE_NCCL_LIBRARY name "
                    "the first, or load it before the other",
                    file->path, where.dli_fname == NULL ? "no file" : where.dli_fname, file->nccl.path);
}

static sluice_status open_library(const char *named, const char *wanted, slc_m2n_file *file, sluice_error *error)
{
    file->library = dlopen(wanted, FLAGS);
    if (file->library == NULL)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "transport m2n wants NVIDIA's nccl_m2n: %s%s",
                        named != NULL ? "SLUICE_M2N_LIBRARY: " : strchr(wanted, '/') != NULL ? "in the Python environment: "
                                                               : "SLUICE_M2N_LIBRARY names none, no Python environment has one, and where "
                                                                 "the system looks: ",
                        dlerror());
    Dl_info where;
    void *symbol = dlsym(file->library, "ncclReshard");
    if (symbol == NULL || dladdr(symbol, &where) == 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "%s has no ncclReshard", wanted);
    snprintf(file->path, sizeof file->path, "%s", where.dli_fname);
    return SLUICE_OK;
}

sluice_status slc_m2n_find(const slc_log *log, slc_m2n_file *file, sluice_error *error)
{
    char path[LONGEST];
    const char *named = getenv("SLUICE_M2N_LIBRARY"), *nccl = getenv("SLUICE_NCCL_LIBRARY"), *wanted = FILE_NAME;
    sluice_status status = SLUICE_OK;
    *file = (slc_m2n_file){ 0 };
    if (named != NULL && *named == '\0')
        named = NULL;
    bool packaged = named == NULL && look_in_python(path);
    wanted = named != NULL ? named : packaged ? path : FILE_NAME;
    bool before = slc_nccl_is_there() || (nccl != NULL && *nccl != '\0');
    if (before) { /* one that is too old lacks what nccl_m2n looks for: better said before */
        status = slc_nccl_find(log, &file->nccl, error);
        if (status == SLUICE_OK)
            status = check_nccl(&file->nccl, wanted, error);
    } else if (packaged) {
        bring_packaged_nccl(path);
    }
    if (status == SLUICE_OK)
        status = open_library(named, wanted, file, error);
    if (status == SLUICE_OK && !before)
        status = slc_nccl_find(log, &file->nccl, error);
    if (status == SLUICE_OK && !before)
        status = check_nccl(&file->nccl, file->path, error);
    return status == SLUICE_OK ? check_same(file, error) : status;
}
