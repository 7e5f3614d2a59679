/* place.c: see place.h. */
#include "base/place.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char HERE[] = "in this file";

void slc_own_folder(char *folder, size_t size)
{
    Dl_info info;
    char program[3072];
    folder[0] = '\0';
    const char *path = dladdr(HERE, &info) != 0 ? info.dli_fname : NULL;
    if (path == NULL || path[0] != '/') { /* a program is known by the name that it was called by */
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length < 0 ? 0 : length] = '\0';
        path = program;
    }
    const char *end = strrchr(path, '/');
    if (end != NULL)
        snprintf(folder, size, "%.*s", (int)(end - path + 1), path);
}
