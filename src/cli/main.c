/* main.c: the sluice program: makes a Lua state with sluice.native in it and hands the command line to lua/sluice/cli.lua. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/native.h"
#include "cli/rank.h"
#include "script/call.h"

typedef struct {
    int argc;
    char **argv;
    int code;
} command_line;

static int push_arguments(lua_State *L, void *context)
{
    const command_line *line = context;
    slc_native_open(L);
    lua_createtable(L, line->argc, 0);
    for (int i = 1; i < line->argc; i++) {
        lua_pushstring(L, line->argv[i]);
        lua_rawseti(L, -2, i);
    }
    return 2;
}

static void read_code(lua_State *L, int count, void *context)
{
    command_line *line = context;
    line->code = count > 0 ? (int)lua_tointeger(L, 1) : SLC_EXIT_FAILED;
}

/* What this program opens must not become a standard stream that was closed. */
static bool open_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return false;
    return true;
}

/*
 * What a parent may have ignored, and this program's own ways: without SIGCHLD there is nothing to wait for when a rank ends, and a
 * file that is too large is an error with a text.
 */
static void settle_signals(void)
{
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGXFSZ, SIG_IGN);
}

/* The last word on whether standard output took everything, however the program ends. */
static void close_output(void)
{
    errno = 0;
    bool failed = ferror(stdout) != 0;
    if (fclose(stdout) != 0 || failed) {
        fprintf(stderr, "sluice: cannot write to standard output%s%s\n", errno == 0 ? "" : ": ",
                errno == 0 ? "" : strerror(errno));
        _exit(SLC_EXIT_FAILED);
    }
}

int main(int argc, char **argv)
{
    command_line line = { .argc = argc, .argv = argv, .code = SLC_EXIT_FAILED };
    settle_signals();
    if (!open_streams() || atexit(close_output) != 0)
        return SLC_EXIT_FAILED;
    slc_script *script = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_script_create(NULL, &script, &error);
    if (status == SLUICE_OK)
        status = slc_script_call(script, "sluice", "sluice.cli", "main", push_arguments, read_code, &line, &error);
    slc_script_destroy(script);
    if (status != SLUICE_OK) {
        fprintf(stderr, "%s\n", error.text);
        return SLC_EXIT_FAILED;
    }
    return line.code;
}
