/*
 * process.c: processes, descriptors and signals for lua/sluice/cli/supervise.lua. Ranks are started from this very program
 * and die with it (PR_SET_PDEATHSIG); everything that it opens closes on exec but what a rank is given by name.
 */
#include "cli/native.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int integer_at(lua_State *L, int list, int position)
{
    lua_rawgeti(L, list, position);
    int value = (int)lua_tointeger(L, -1);
    lua_pop(L, 1);
    return value;
}

/* ---- spawn ---- */

/* A NULL-terminated array of the texts of the list at `index`, behind `extra` ones; anchored on the stack. */
static const char **text_array(lua_State *L, int index, const char *const *extra, size_t nextra)
{
    size_t count = lua_objlen(L, index);
    const char **array = lua_newuserdata(L, (nextra + count + 1) * sizeof *array);
    for (size_t i = 0; i < nextra; i++)
        array[i] = extra[i];
    for (size_t i = 0; i < count; i++) {
        lua_rawgeti(L, index, (int)i + 1);
        array[nextra + i] = luaL_checkstring(L, -1);
        lua_pop(L, 1); /* the list keeps it */
    }
    array[nextra + count] = NULL;
    return array;
}

static bool replaced(const char *entry, const char **fresh)
{
    size_t name = strcspn(entry, "=") + 1;
    for (; *fresh != NULL; fresh++)
        if (strncmp(entry, *fresh, name) == 0)
            return true;
    return false;
}

/* environ without what `fresh` sets, and fresh. */
static char **environment(lua_State *L, const char **fresh)
{
    size_t count = 0, extra = 0, used = 0;
    while (environ[count] != NULL)
        count++;
    while (fresh[extra] != NULL)
        extra++;
    const char **out = lua_newuserdata(L, (count + extra + 1) * sizeof *out);
    for (size_t i = 0; i < count; i++)
        if (!replaced(environ[i], fresh))
            out[used++] = environ[i];
    for (size_t i = 0; i < extra; i++)
        out[used++] = fresh[i];
    out[used] = NULL;
    return (char **)out;
}

typedef struct {
    char **arguments, **environment;
    const int *keep;
    size_t nkeep;
    pid_t parent;
    int report;
} start;

/* In the child: only calls that are safe between fork and exec. */
static void become(const start *s)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->parent)
        _exit(127);
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere >= 0) {
        dup2(nowhere, STDIN_FILENO);
        dup2(nowhere, STDOUT_FILENO);
    }
    for (size_t i = 0; i < s->nkeep; i++)
        fcntl(s->keep[i], F_SETFD, 0);
    fcntl(s->report, F_SETFD, 0);
    execve("/proc/self/exe", s->arguments, s->environment);
    _exit(127);
}

/*
 * spawn(arguments, environment, descriptors) -> pid, pidfd, report
 * Starts this program again with the arguments and --report-fd; `environment` is a list of NAME=value that go over its own.
 */
static int process_spawn(lua_State *L)
{
    for (int i = 1; i <= 3; i++)
        luaL_checktype(L, i, LUA_TTABLE);
    luaL_checkstack(L, 16, "starting a rank");
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return slc_native_fail_errno(L, "cannot make a socket for a rank");
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    size_t nkeep = lua_objlen(L, 3);
    int *keep = lua_newuserdata(L, (nkeep + 1) * sizeof *keep);
    for (size_t i = 0; i < nkeep; i++)
        keep[i] = integer_at(L, 3, (int)i + 1);
    char report[32];
    snprintf(report, sizeof report, "--report-fd=%d", ends[1]);
    lua_pushstring(L, report);
    lua_rawseti(L, 1, (int)lua_objlen(L, 1) + 1);
    const char *name = "sluice";
    start s = { .keep = keep, .nkeep = nkeep, .parent = getpid(), .report = ends[1] };
    s.arguments = (char **)text_array(L, 1, &name, 1);
    s.environment = environment(L, text_array(L, 2, NULL, 0));
    pid_t pid = fork();
    if (pid == 0)
        become(&s);
    int failed = errno;
    close(ends[1]);
    int pidfd = pid < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd >= 0) {
        lua_pushinteger(L, pid);
        lua_pushinteger(L, pidfd);
        lua_pushinteger(L, ends[0]);
        return 3;
    }
    if (pid > 0) {
        failed = errno;
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    close(ends[0]);
    errno = failed;
    return slc_native_fail_errno(L, "cannot start a rank");
}

/* kill(pidfd, signal) */
static int process_kill(lua_State *L)
{
    syscall(SYS_pidfd_send_signal, luaL_checkint(L, 1), luaL_checkint(L, 2), NULL, 0);
    return 0;
}

/* reap(pid) -> "exit", code | "signal", number | nothing while it runs */
static int process_reap(lua_State *L)
{
    int status;
    pid_t pid = waitpid(luaL_checkint(L, 1), &status, WNOHANG);
    if (pid <= 0)
        return 0;
    lua_pushstring(L, WIFSIGNALED(status) ? "signal" : "exit");
    lua_pushinteger(L, WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return 2;
}

/* ---- descriptors ---- */

/* signals() -> a descriptor that is ready when SIGINT, SIGTERM or SIGHUP came; from now on they do nothing else */
static int process_signals(lua_State *L)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max; /* two descriptors a rank */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return slc_native_fail_errno(L, "cannot wait for signals");
    lua_pushinteger(L, fd);
    return 1;
}

static int process_next_signal(lua_State *L)
{
    struct signalfd_siginfo got;
    if (read(luaL_checkint(L, 1), &got, sizeof got) != (ssize_t)sizeof got)
        return 0;
    lua_pushinteger(L, (lua_Integer)got.ssi_signo);
    return 1;
}

/* poll(descriptors, milliseconds) -> the list of those that are ready to be read */
static int process_poll(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    size_t count = lua_objlen(L, 1);
    struct pollfd *on = lua_newuserdata(L, (count + 1) * sizeof *on);
    for (size_t i = 0; i < count; i++)
        on[i] = (struct pollfd){ .fd = integer_at(L, 1, (int)i + 1), .events = POLLIN };
    int ready = poll(on, (nfds_t)count, luaL_checkint(L, 2));
    lua_newtable(L);
    int listed = 0;
    for (size_t i = 0; ready > 0 && i < count; i++)
        if (on[i].revents != 0) {
            lua_pushinteger(L, on[i].fd);
            lua_rawseti(L, -2, ++listed);
        }
    return 1;
}

/* read(descriptor) -> bytes, "" at the end, nothing when there is nothing now */
static int process_read(lua_State *L)
{
    char bytes[16384];
    ssize_t got = read(luaL_checkint(L, 1), bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    lua_pushlstring(L, bytes, got < 0 ? 0 : (size_t)got);
    return 1;
}

/* let_go(report): the rank that waits at the other end goes on */
static int process_let_go(lua_State *L)
{
    (void)!send(luaL_checkint(L, 1), "g", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    return 0;
}

static int process_close(lua_State *L)
{
    close(luaL_checkint(L, 1));
    return 0;
}

/* listen(backlog) -> a socket that listens on a free port of 127.0.0.1, the port */
static int process_listen(lua_State *L)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, luaL_checkint(L, 1)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        int failed = errno;
        if (fd >= 0)
            close(fd);
        errno = failed;
        return slc_native_fail_errno(L, "cannot listen on 127.0.0.1");
    }
    lua_pushinteger(L, fd);
    lua_pushinteger(L, ntohs(address.sin_port));
    return 2;
}

/* key() -> a descriptor of an unnamed file that holds a fresh random key, for all ranks of one run */
static int process_key(lua_State *L)
{
    unsigned char key[32];
    int fd = getrandom(key, sizeof key, 0) == (ssize_t)sizeof key ? memfd_create("sluice", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
    bool written = fd >= 0 && fchmod(fd, S_IRUSR | S_IWUSR) == 0 && write(fd, key, sizeof key) == (ssize_t)sizeof key &&
                   fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0;
    int failed = errno;
    explicit_bzero(key, sizeof key);
    if (written) {
        lua_pushinteger(L, fd);
        return 1;
    }
    if (fd >= 0)
        close(fd);
    errno = failed;
    return slc_native_fail_errno(L, "cannot make a key");
}

/* memfd(text) -> a descriptor of an unnamed file that holds it and can no longer change */
static int process_memfd(lua_State *L)
{
    size_t length, done = 0;
    const char *text = luaL_checklstring(L, 1, &length);
    int fd = memfd_create("sluice", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    while (fd >= 0 && done < length) {
        ssize_t wrote = write(fd, text + done, length - done);
        if (wrote < 0 && errno != EINTR)
            break;
        done += wrote < 0 ? 0 : (size_t)wrote;
    }
    if (fd < 0 || done < length || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0) {
        int failed = errno;
        if (fd >= 0)
            close(fd);
        errno = failed;
        return slc_native_fail_errno(L, "cannot pass the deployment on");
    }
    lua_pushinteger(L, fd);
    return 1;
}

const luaL_Reg slc_native_process[] = {
    { "spawn", process_spawn },
    { "kill", process_kill },
    { "reap", process_reap },
    { "signals", process_signals },
    { "next_signal", process_next_signal },
    { "poll", process_poll },
    { "read", process_read },
    { "close", process_close },
    { "let_go", process_let_go },
    { "listen", process_listen },
    { "memfd", process_memfd },
    { "key", process_key },
    { NULL, NULL },
};
