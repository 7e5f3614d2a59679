/* faults_stock.c: see faults.h. What this process holds of the system, counted before and after a life. */
#include "faults.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KINDS = 32, KIND_TEXT = 64 };

static int entries(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* "socket:[8]" is a socket, "anon_inode:[eventfd]" an eventfd, a path is itself. */
static bool kind_of(const char *name, char *kind)
{
    char path[300], target[KIND_TEXT] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length <= 0)
        return false;
    static const char anonymous[] = "anon_inode:";
    const char *from = strncmp(target, anonymous, sizeof anonymous - 1) == 0 ? target + sizeof anonymous - 1 : target;
    snprintf(kind, KIND_TEXT, "%.*s", (int)(target[0] == '/' || from != target ? strlen(from) : strcspn(from, ":")), from);
    return true;
}

static void tell_open(char *text, size_t size)
{
    char kind[KINDS][KIND_TEXT];
    int count[KINDS] = { 0 }, kinds = 0;
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL && kinds < KINDS) {
        int at = 0;
        if (!kind_of(entry->d_name, kind[kinds]))
            continue;
        while (strcmp(kind[at], kind[kinds]) != 0)
            at++;
        kinds += at == kinds;
        count[at]++;
    }
    closedir(folder);
    size_t used = 0;
    for (int i = 0; i < kinds && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d %s", i > 0 ? ", " : "", count[i], kind[i]);
}

void take_stock(case_seat *seat, int index)
{
    for (int i = 0; i < 100 && index > 0 && entries("/proc/self/task") != seat->threads[0]; i++)
        usleep(1000); /* a thread that was joined is in /proc for a moment more */
    seat->descriptors[index] = entries("/proc/self/fd");
    seat->threads[index] = entries("/proc/self/task");
    tell_open(seat->open[index], sizeof seat->open[index]);
}
