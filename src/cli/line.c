/* line.c: whole lines from two threads on one socket, and the thread that beats. */
#include "cli/line.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/native.h"

enum { BEAT_MS = 1000 };

static const char TYPE[] = "sluice.line";

typedef struct {
    int fd, stop;
    pthread_mutex_t whole_lines;
    pthread_t thread;
} line_socket;

static void write_line(void *user, const char *line, size_t length)
{
    line_socket *out = user;
    pthread_mutex_lock(&out->whole_lines);
    while (length > 0) {
        ssize_t wrote = send(out->fd, line, length, MSG_NOSIGNAL);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            break; /* whoever started this rank is gone; it ends by itself */
        line += wrote;
        length -= (size_t)wrote;
    }
    pthread_mutex_unlock(&out->whole_lines);
}

static void *beat(void *user)
{
    line_socket *out = user;
    struct pollfd stop = { .fd = out->stop, .events = POLLIN };
    static const char pulse[] = "{\"event\":\"alive\"}\n";
    do
        write_line(out, pulse, sizeof pulse - 1);
    while (poll(&stop, 1, BEAT_MS) <= 0);
    return NULL;
}

/* Signals are for the other threads of the rank. */
static int start_beating(line_socket *out)
{
    sigset_t all, before;
    sigfillset(&all);
    int failed = pthread_sigmask(SIG_BLOCK, &all, &before);
    if (failed != 0)
        return failed;
    failed = pthread_create(&out->thread, NULL, beat, out);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static int collect(lua_State *L)
{
    line_socket *out = luaL_checkudata(L, 1, TYPE);
    uint64_t one = 1;
    if (out->stop < 0)
        return 0;
    while (write(out->stop, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    pthread_join(out->thread, NULL);
    close(out->stop);
    out->stop = -1;
    return 0;
}

int slc_line_new(lua_State *L)
{
    line_socket *out = lua_newuserdata(L, sizeof *out);
    *out = (line_socket){ .fd = luaL_checkint(L, 1), .stop = eventfd(0, EFD_CLOEXEC), .whole_lines = PTHREAD_MUTEX_INITIALIZER };
    if (out->stop < 0)
        return slc_native_fail_errno(L, "cannot begin to report");
    int failed = start_beating(out);
    if (failed != 0) {
        close(out->stop);
        errno = failed;
        return slc_native_fail_errno(L, "cannot begin to report");
    }
    if (luaL_newmetatable(L, TYPE)) {
        lua_pushcfunction(L, collect);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return 1;
}

bool slc_line_report(lua_State *L, int index, slc_report *report)
{
    if (lua_type(L, index) != LUA_TUSERDATA)
        return false;
    line_socket *out = luaL_checkudata(L, index, TYPE);
    *report = (slc_report){ .write = write_line, .user = out, .progress = true, .go = out->fd };
    return true;
}
