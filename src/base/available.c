/* available.c: see available.h; owns nothing. */
#include "base/available.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind `key` at the beginning of a line of the file; -1 for none. */
static int64_t number_in(const char *path, const char *key)
{
    char line[256];
    int64_t number = -1;
    FILE *file = fopen(path, "re");
    while (file != NULL && number < 0 && fgets(line, sizeof line, file) != NULL) {
        char *from = line + strlen(key), *end;
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        long long found = strtoll(from, &end, 10);
        number = end == from || found < 0 ? -1 : found;
    }
    if (file != NULL)
        fclose(file);
    return number;
}

int64_t slc_memory_available(void)
{
    int64_t kilobytes = number_in("/proc/meminfo", "MemAvailable:");
    int64_t limit = number_in("/sys/fs/cgroup/memory.max", ""); /* "max": none */
    int64_t used = number_in("/sys/fs/cgroup/memory.current", "");
    int64_t available = kilobytes < 0 || kilobytes > INT64_MAX / 1024 ? INT64_MAX : kilobytes * 1024;
    int64_t allowed = limit < 0 || used < 0 ? INT64_MAX : limit > used ? limit - used : 0;
    return available < allowed ? available : allowed;
}
