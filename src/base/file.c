/* file.c: see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *slc_file_kind(mode_t mode)
{
    return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "folder" : S_ISFIFO(mode) ? "pipe" : S_ISSOCK(mode) ? "socket" : "device";
}

/* At most `limit` bytes; *too_long where there are more. Fails by errno. */
static bool read_regular(int fd, size_t limit, slc_buffer *text, bool *too_long)
{
    char bytes[16384];
    for (;;) {
        ssize_t got = read(fd, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0;
        if (text->length + (size_t)got > limit) {
            *too_long = true;
            return true;
        }
        slc_buffer_append(text, bytes, (size_t)got);
        if (text->failed) {
            errno = ENOMEM;
            return false;
        }
    }
}

bool slc_file_read(const char *path, mode_t unwanted, size_t limit, slc_buffer *text, char *problem, size_t size)
{
    struct stat found = { 0 };
    bool too_long = false;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    bool known = fd >= 0 && fstat(fd, &found) == 0;
    bool wanted = known && S_ISREG(found.st_mode) && (found.st_mode & unwanted) == 0;
    bool good = known && (!wanted || read_regular(fd, limit, text, &too_long));
    int failed = errno;
    if (fd >= 0)
        close(fd);
    if (!good)
        snprintf(problem, size, "%s: %s", path, strerrordesc_np(failed));
    else if (!S_ISREG(found.st_mode))
        snprintf(problem, size, "%s: it must be a regular file, not a %s", path, slc_file_kind(found.st_mode));
    else if (!wanted)
        snprintf(problem, size, "%s: its mode %04o must not have the bits %04o", path, (unsigned)(found.st_mode & 07777),
                 (unsigned)unwanted);
    else if (too_long)
        snprintf(problem, size, "%s: it must have at most %zu bytes", path, limit);
    return good && wanted && !too_long;
}
