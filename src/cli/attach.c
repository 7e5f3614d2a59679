/*
 * attach.c: asks an engine at its door (control/door.h): one connection, one question, one answer, bounded in bytes and time.
 * Owns no connection beyond the call.
 */
#include "cli/native.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

static const char STAGE[] = "attach";
static const double STALL_S = 10; /* without a byte */
static const size_t LONGEST = (size_t)512 << 20;

enum { HEAD = 256, AT_ONCE = 1 << 20 };

static sluice_status reach(const char *path, int *fd, sluice_error *error)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = strlen(path);
    bool abstract = path[0] == '@';
    if (length == 0 || length >= sizeof address.sun_path + (abstract ? 1 : 0))
        return slc_fail(error, SLUICE_INVALID, STAGE, "the path (%.200s) of a socket has 1 to %zu bytes", path, sizeof address.sun_path - 1);
    memcpy(address.sun_path + (abstract ? 1 : 0), path + (abstract ? 1 : 0), length - (abstract ? 1 : 0));
    socklen_t size = (socklen_t)(abstract ? offsetof(struct sockaddr_un, sun_path) + length : sizeof address);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0)
        return slc_fail_errno(error, errno, STAGE, "no socket");
    slc_deadline until = slc_deadline_in(STALL_S);
    while (connect(*fd, (const struct sockaddr *)&address, size) < 0) {
        if (errno == ENOENT || errno == ECONNREFUSED)
            return slc_fail(error, SLUICE_PEER, STAGE, "no engine listens at %s (%s)", path,
                            errno == ENOENT ? "nothing is there" : "whoever made the socket has ended");
        if (errno != EAGAIN && errno != EINTR)
            return slc_fail_errno(error, errno, STAGE, "%s", path);
        if (slc_deadline_passed(until))
            return slc_fail(error, SLUICE_TIMEOUT, STAGE, "%s takes nobody in within %g s", path, STALL_S);
        (void)poll(NULL, 0, 10); /* too many ask */
    }
    return SLUICE_OK;
}

/* What is read from a socket in a folder of anybody's must come from an engine of ours, or of root's. */
static sluice_status check_owner(int fd, const char *path, sluice_error *error)
{
    struct ucred who;
    socklen_t size = sizeof who;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
        return slc_fail_errno(error, errno, STAGE, "%s", path);
    if (geteuid() != 0 && who.uid != geteuid() && who.uid != 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s belongs to a process of user %u", path, (unsigned)who.uid);
    return SLUICE_OK;
}

static sluice_status ask(int fd, const char *path, const char *word, sluice_error *error)
{
    char request[64];
    int length = snprintf(request, sizeof request, "sluice attach 1 %.32s\n", word);
    ssize_t sent = send(fd, request, (size_t)length, MSG_NOSIGNAL);
    bool hung_up = sent < 0 && errno == EPIPE; /* and said why before */
    return sent == length || hung_up ? SLUICE_OK : slc_fail_errno(error, errno, STAGE, "%s takes no question", path);
}

/* Some bytes more; none at the end, where the other side may have reset what it no longer reads. */
static sluice_status more(int fd, const char *path, void *into, size_t room, size_t *got, sluice_error *error)
{
    slc_deadline until = slc_deadline_in(STALL_S);
    for (;;) {
        ssize_t came = recv(fd, into, room, 0);
        if (came >= 0 || errno == ECONNRESET) {
            *got = came > 0 ? (size_t)came : 0;
            return SLUICE_OK;
        }
        if (errno != EAGAIN && errno != EINTR)
            return slc_fail_errno(error, errno, STAGE, "%s", path);
        if (slc_deadline_passed(until))
            return slc_fail(error, SLUICE_TIMEOUT, STAGE, "%s says nothing for %g s", path, STALL_S);
        struct pollfd wanted = { .fd = fd, .events = POLLIN };
        (void)poll(&wanted, 1, slc_deadline_poll_ms(until, 1000));
    }
}

/* "ok BYTES" or "no REASON": how much follows. */
static sluice_status judge_head(char *line, const char *path, size_t *bytes, sluice_error *error)
{
    if (strncmp(line, "no ", 3) == 0)
        return slc_fail(error, SLUICE_PEER, STAGE, "%s: %s", path, line + 3);
    char *end = line;
    unsigned long long count = strncmp(line, "ok ", 3) == 0 && line[3] >= '0' && line[3] <= '9' ? strtoull(line + 3, &end, 10) : 0;
    if (end == line || *end != '\0')
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s is no engine's: it says '%.40s'", path, line);
    if (count > LONGEST)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s announces %llu bytes; an answer has at most %zu", path, count, LONGEST);
    *bytes = (size_t)count;
    return SLUICE_OK;
}

static sluice_status hear(int fd, const char *path, slc_buffer *answer, sluice_error *error)
{
    char head[HEAD + 1];
    size_t length = 0, got, bytes = 0;
    char *newline = NULL;
    while (newline == NULL) {
        sluice_status status = more(fd, path, head + length, HEAD - length, &got, error);
        if (status != SLUICE_OK)
            return status;
        length += got;
        newline = memchr(head, '\n', length);
        if (newline == NULL && (got == 0 || length == HEAD))
            return slc_fail(error, SLUICE_PEER, STAGE, "%s gives no answer", path);
    }
    *newline = '\0';
    sluice_status status = judge_head(head, path, &bytes, error);
    if (status != SLUICE_OK)
        return status;
    size_t early = length - (size_t)(newline + 1 - head);
    slc_buffer_append(answer, newline + 1, early < bytes ? early : bytes);
    unsigned char *block = slc_allocate(AT_ONCE);
    while (block != NULL && status == SLUICE_OK && answer->length < bytes && !answer->failed) {
        size_t left = bytes - answer->length;
        status = more(fd, path, block, left < AT_ONCE ? left : AT_ONCE, &got, error);
        if (status == SLUICE_OK && got == 0)
            status = slc_fail(error, SLUICE_PEER, STAGE, "%s ended after %zu of %zu bytes", path, answer->length, bytes);
        if (status == SLUICE_OK)
            slc_buffer_append(answer, block, got);
    }
    if (status == SLUICE_OK && (block == NULL || answer->failed))
        status = slc_fail_memory(error, STAGE, "an answer", bytes);
    slc_release(block);
    return status;
}

/* attach(path, word) -> the answer */
int slc_native_attach(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1), *word = luaL_checkstring(L, 2);
    int fd = -1;
    slc_buffer answer = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = reach(path, &fd, &error);
    if (status == SLUICE_OK)
        status = check_owner(fd, path, &error);
    if (status == SLUICE_OK)
        status = ask(fd, path, word, &error);
    if (status == SLUICE_OK)
        status = hear(fd, path, &answer, &error);
    if (fd >= 0)
        close(fd);
    if (status == SLUICE_OK)
        lua_pushlstring(L, (const char *)answer.data, answer.length);
    slc_buffer_clear(&answer);
    return status == SLUICE_OK ? 1 : slc_native_fail(L, &error);
}
