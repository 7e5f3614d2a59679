/* driver.h: what several of the specs' drivers do. Owns nothing. */
#ifndef SPEC_SUPPORT_DRIVER_H
#define SPEC_SUPPORT_DRIVER_H

#include <dirent.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How many descriptors this process has open, the one that it counts with among them. */
static inline int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* A socket that listens on some port of an address, as INADDR_LOOPBACK; -1 where there is none, as errno says. */
static inline int listen_at(uint32_t address, int *port)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
    socklen_t length = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 1024) == 0 &&
        getsockname(fd, (struct sockaddr *)&name, &length) == 0) {
        *port = ntohs(name.sin_port);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Whether a name stands in a list of names with commas between them; in none (NULL) stands every one. */
static inline bool chosen(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',') == NULL ? NULL : strchr(at, ',') + 1)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    return list == NULL;
}

/* A text as JSON, whatever bytes it has. */
static inline void print_text(const char *text, size_t length)
{
    putchar('"');
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 32 || c > 126)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

/* Numbers as a list of JSON that follows another field. */
static inline void print_series(const char *name, const double *number, int count)
{
    printf(",\"%s\":[", name);
    for (int i = 0; i < count; i++)
        printf("%s%.9g", i == 0 ? "" : ",", number[i]);
    printf("]");
}

#endif
