/*
 * terminal.c: what the console asks of the system beside its line editor: how high the terminal is, whether Ctrl-C was pressed, a
 * pager or an editor to be run, a file that only its owner reads.
 */
#include "cli/native.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "script/call.h"

static const char INTERRUPTS[] = "sluice.interrupts";

/* rows(descriptor) */
static int terminal_rows(lua_State *L)
{
    struct winsize size = { 0 };
    bool known = ioctl(luaL_checkint(L, 1), TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
    lua_pushinteger(L, known ? size.ws_row : 24);
    return 1;
}

/* ---- Ctrl-C ---- */

typedef struct interrupts {
    int fd;
    bool came, paused;
} interrupts;

static bool interrupted(void *user)
{
    interrupts *i = user;
    struct signalfd_siginfo got;
    while (!i->paused && read(i->fd, &got, sizeof got) == (ssize_t)sizeof got)
        i->came = true;
    return i->came;
}

/* came() -> whether Ctrl-C was pressed since the last call; forgets it */
static int interrupts_came(lua_State *L)
{
    interrupts *i = luaL_checkudata(L, 1, INTERRUPTS);
    lua_pushboolean(L, interrupted(i));
    i->came = false;
    return 1;
}

/* pause(on): while it is on, Ctrl-C is another's to read */
static int interrupts_pause(lua_State *L)
{
    interrupts *i = luaL_checkudata(L, 1, INTERRUPTS);
    i->paused = lua_toboolean(L, 2);
    return 0;
}

static int interrupts_close(lua_State *L)
{
    interrupts *i = luaL_checkudata(L, 1, INTERRUPTS);
    slc_script_watch(slc_lua_script(L), NULL, NULL);
    if (i->fd >= 0)
        close(i->fd);
    i->fd = -1;
    return 0;
}

/*
 * interrupts() -> an object: from now on SIGINT ends what runs under a guard, and nothing else, until the object is collected.
 * Ends here mean the call in progress; the program goes on.
 */
static int terminal_interrupts(lua_State *L)
{
    static const luaL_Reg methods[] = { { "came", interrupts_came }, { "pause", interrupts_pause }, { NULL, NULL } };
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    interrupts *i = lua_newuserdata(L, sizeof *i);
    *i = (interrupts){ .fd = -1 };
    if (luaL_newmetatable(L, INTERRUPTS)) {
        lua_newtable(L);
        luaL_register(L, NULL, methods);
        lua_setfield(L, -2, "__index");
        lua_pushcfunction(L, interrupts_close);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    i->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (i->fd < 0)
        return slc_native_fail_errno(L, "cannot wait for signals");
    slc_script_watch(slc_lua_script(L), interrupted, i);
    return 1;
}

/* release_signals(interrupt): SIGTERM and SIGHUP end this process again, after `signals`; with true SIGINT does, too */
static int terminal_release_signals(lua_State *L)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    if (lua_toboolean(L, 1))
        sigaddset(&set, SIGINT);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    return 0;
}

/* ---- other programs ---- */

static void become_shell(const char *command, int input)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (input >= 0)
        dup2(input, STDIN_FILENO);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

/* Writes until all is written or nobody reads any more. */
static void feed(int fd, const char *text, size_t length)
{
    sigset_t pipe_set, before;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &pipe_set, &before);
    bool broken = false;
    while (length > 0 && !broken) {
        ssize_t wrote = write(fd, text, length);
        broken = wrote < 0 && errno != EINTR;
        text += wrote < 0 ? 0 : wrote;
        length -= wrote < 0 ? 0 : (size_t)wrote;
    }
    struct timespec now = { 0 };
    while (broken && sigtimedwait(&pipe_set, NULL, &now) > 0)
        continue;
    sigprocmask(SIG_SETMASK, &before, NULL);
}

/* shell(command, text or nil) -> its exit status; `text` is its standard input */
static int terminal_shell(lua_State *L)
{
    const char *command = luaL_checkstring(L, 1);
    size_t length = 0;
    const char *text = luaL_optlstring(L, 2, NULL, &length);
    int ends[2] = { -1, -1 };
    if (text != NULL && pipe2(ends, O_CLOEXEC) != 0)
        return slc_native_fail_errno(L, "cannot make a pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        become_shell(command, ends[0]);
    int failed = errno, status = 0;
    if (text != NULL)
        close(ends[0]);
    if (text != NULL && pid > 0)
        feed(ends[1], text, length);
    if (text != NULL)
        close(ends[1]);
    errno = failed;
    if (pid < 0)
        return slc_native_fail_errno(L, "cannot start a program");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    lua_pushinteger(L, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return 1;
}

/* ---- files ---- */

/* private_file(folder, name) -> its path: a file of mode 600 in a folder that is made, with those above it, where it is not there */
static int terminal_private_file(lua_State *L)
{
    char path[PATH_MAX];
    const char *folder = luaL_checkstring(L, 1), *name = luaL_checkstring(L, 2);
    size_t length = (size_t)snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length >= sizeof path)
        return luaL_error(L, "the path is too long");
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, S_IRWXU) != 0 && errno != EEXIST)
            return slc_native_fail_errno(L, path);
        *slash = '/';
    }
    struct stat found;
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, S_IRUSR | S_IWUSR);
    bool good = fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
                fchmod(fd, S_IRUSR | S_IWUSR) == 0;
    int failed = errno;
    if (fd >= 0)
        close(fd);
    errno = failed;
    if (!good)
        return slc_native_fail_errno(L, path);
    lua_pushstring(L, path);
    return 1;
}

/* absolute(path) -> the same file's path from the root */
static int terminal_absolute(lua_State *L)
{
    char *path = realpath(luaL_checkstring(L, 1), NULL);
    if (path == NULL)
        return slc_native_fail_errno(L, lua_tostring(L, 1));
    lua_pushstring(L, path);
    free(path);
    return 1;
}

const luaL_Reg slc_native_terminal[] = {
    { "rows", terminal_rows },
    { "interrupts", terminal_interrupts },
    { "release_signals", terminal_release_signals },
    { "shell", terminal_shell },
    { "private_file", terminal_private_file },
    { "absolute", terminal_absolute },
    { NULL, NULL },
};
