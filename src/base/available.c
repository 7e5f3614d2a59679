/* available.c: see available.h; owns nothing. */
#include "base/available.h"

#include <inttypes.h>
#include <stdio.h>

/* The first number that `format` finds in a line of the file; -1 for none. */
static int64_t number_in(const char *path, const char *format)
{
    char line[256];
    int64_t number = -1;
    FILE *file = fopen(path, "re");
    while (file != NULL && number < 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, format, &number) != 1)
            number = -1;
    if (file != NULL)
        fclose(file);
    return number;
}

int64_t slc_memory_available(void)
{
    int64_t kilobytes = number_in("/proc/meminfo", "MemAvailable: %" SCNd64);
    int64_t limit = number_in("/sys/fs/cgroup/memory.max", "%" SCNd64); /* "max": none */
    int64_t used = number_in("/sys/fs/cgroup/memory.current", "%" SCNd64);
    int64_t available = kilobytes < 0 ? INT64_MAX : kilobytes * 1024;
    int64_t allowed = limit < 0 || used < 0 ? INT64_MAX : limit > used ? limit - used : 0;
    return available < allowed ? available : allowed;
}
