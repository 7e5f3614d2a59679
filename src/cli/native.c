/* native.c: the module sluice.native: its table, the small functions, and the door to a rank. Owns no state. */
#include "cli/native.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/line.h"
#include "cli/rank.h"

int slc_native_fail(lua_State *L, const sluice_error *error)
{
    lua_pushnil(L);
    lua_pushstring(L, error->text);
    lua_pushinteger(L, error->status);
    return 3;
}

int slc_native_fail_errno(lua_State *L, const char *what)
{
    sluice_error error = SLUICE_ERROR_INIT;
    slc_fail_errno(&error, errno, "sluice", "%s", what);
    return slc_native_fail(L, &error);
}

/* ---- small functions ---- */

static int native_seal(lua_State *L)
{
    size_t length;
    const char *json = luaL_checklstring(L, 1, &length);
    sluice_error error = SLUICE_ERROR_INIT;
    char *sealed = NULL;
    if (sluice_seal_init_info(json, length, &sealed, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    lua_pushstring(L, sealed);
    sluice_free(sealed);
    return 1;
}

static void push_tensor(lua_State *L, const slc_checkpoint_tensor *tensor)
{
    lua_createtable(L, 0, 3);
    lua_pushstring(L, tensor->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, tensor->dtype->name);
    lua_setfield(L, -2, "dtype");
    lua_createtable(L, tensor->ndim, 0);
    for (int i = 0; i < tensor->ndim; i++) {
        lua_pushnumber(L, (double)tensor->shape[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "shape");
}

/* checkpoint(path) -> the list of its tensors: name, dtype, shape */
static int native_checkpoint(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    slc_checkpoint *checkpoint = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_checkpoint_open(path, &checkpoint, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    lua_newtable(L);
    for (size_t i = 0; i < slc_checkpoint_count(checkpoint); i++) {
        push_tensor(L, slc_checkpoint_at(checkpoint, i));
        lua_rawseti(L, -2, (int)i + 1);
    }
    slc_checkpoint_close(checkpoint);
    return 1;
}

/* difference(path, a, b) -> nil where both tensors of the checkpoint hold the same bytes, else where the first differ */
static int native_difference(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    slc_checkpoint *checkpoint = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_checkpoint_open(path, &checkpoint, &error) != SLUICE_OK)
        return slc_native_fail(L, &error);
    const slc_checkpoint_tensor *a = slc_checkpoint_find(checkpoint, luaL_checkstring(L, 2));
    const slc_checkpoint_tensor *b = slc_checkpoint_find(checkpoint, luaL_checkstring(L, 3));
    size_t at = 0;
    bool same = a != NULL && b != NULL && a->bytes == b->bytes && (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
    for (size_t bytes = a == NULL || b == NULL ? 0 : a->bytes < b->bytes ? a->bytes : b->bytes; !same && at < bytes; at++)
        if (((const unsigned char *)a->data)[at] != ((const unsigned char *)b->data)[at])
            break;
    slc_checkpoint_close(checkpoint);
    if (same)
        lua_pushnil(L);
    else
        lua_pushnumber(L, (double)at);
    return 1;
}

static int native_version(lua_State *L)
{
    lua_pushfstring(L, "%d.%d.%d", SLUICE_VERSION_MAJOR, SLUICE_VERSION_MINOR, SLUICE_VERSION_PATCH);
    return 1;
}

static int native_monotonic(lua_State *L)
{
    lua_pushnumber(L, slc_now_s());
    return 1;
}

/* peak() -> the most bytes that this program ever had resident, 0 where the system does not say */
static int native_peak(lua_State *L)
{
    double kib = 0;
    char line[128];
    FILE *file = fopen("/proc/self/status", "re"); /* getrusage counts what began this program, too */
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtod(line + 6, NULL);
    if (file != NULL)
        fclose(file);
    lua_pushnumber(L, kib * 1024);
    return 1;
}

static int native_is_terminal(lua_State *L)
{
    lua_pushboolean(L, isatty(luaL_checkint(L, 1)) == 1);
    return 1;
}

static int native_columns(lua_State *L)
{
    struct winsize size = { 0 };
    bool known = ioctl(luaL_checkint(L, 1), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    lua_pushinteger(L, known ? size.ws_col : 80);
    return 1;
}

/* ---- files ---- */

/* kind(path) -> what is there: file, folder, pipe, socket or device; nothing where nothing is */
static int native_kind(lua_State *L)
{
    struct stat found;
    if (stat(luaL_checkstring(L, 1), &found) != 0)
        return 0;
    lua_pushstring(L, slc_file_kind(found.st_mode));
    return 1;
}

/* ---- a rank ---- */

static void call_line(void *user, const char *line, size_t length)
{
    lua_State *L = user;
    lua_pushvalue(L, 1);
    lua_pushlstring(L, line, length);
    lua_call(L, 1, 0);
}

/* run_rank(job, sink) -> the exit code */
static int native_run_rank(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    slc_report report = { .write = call_line, .user = L, .go = -1 };
    slc_line_report(L, 2, &report);
    slc_job job;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = slc_job_read(L, 1, &job, &error);
    lua_settop(L, 2);
    lua_remove(L, 1); /* the sink is at 1 now; the description can go */
    lua_gc(L, LUA_GCCOLLECT, 0);
    int code = SLC_EXIT_WRONG;
    if (status != SLUICE_OK)
        slc_report_failed(&report, &error, code);
    else {
        code = slc_rank_run(&job, &report, &error);
        slc_job_clear(&job);
    }
    lua_pushinteger(L, code);
    return 1;
}

int slc_native_open(lua_State *L)
{
    static const luaL_Reg functions[] = {
        { "version", native_version },
        { "seal", native_seal },
        { "checkpoint", native_checkpoint },
        { "difference", native_difference },
        { "monotonic", native_monotonic },
        { "peak", native_peak },
        { "is_terminal", native_is_terminal },
        { "columns", native_columns },
        { "kind", native_kind },
        { "report", slc_line_new },
        { "run_rank", native_run_rank },
        { "plan", slc_native_plan },
        { "explain", slc_native_explain },
        { "open", slc_native_plan_open },
        { "attach", slc_native_attach },
        { "traffic", slc_native_traffic },
        { "editor", slc_native_editor },
        { "facts", slc_native_facts },
        { "folder", slc_native_folder },
        { NULL, NULL },
    };
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    luaL_register(L, NULL, slc_native_process);
    luaL_register(L, NULL, slc_native_terminal);
    return 1;
}
