/* rule_folders.c: see rule_folders.h. Owns nothing. */
#include "script/rule_folders.h"

#include "base/file.h"
#include "base/place.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_FOLDERS = 64 };

static void add(lua_State *L, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(lua_State *L, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof path)
        return; /* no system call takes it */
    lua_pushstring(L, path);
    lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
}

static void add_named(lua_State *L, const char *list)
{
    for (const char *at = list; at != NULL && *at != '\0';) {
        size_t length = strcspn(at, ":");
        if (length > 0 && at[0] != '/')
            slc_lua_fail(L, SLUICE_INVALID, "SLUICE_RULES_PATH (%.*s) must hold absolute paths", (int)(length < 400 ? length : 400), at);
        if (length > 0 && length < PATH_MAX)
            add(L, "%.*s", (int)length, at);
        if (lua_objlen(L, -1) > MOST_FOLDERS)
            slc_lua_fail(L, SLUICE_INVALID, "SLUICE_RULES_PATH must hold at most %d paths", MOST_FOLDERS);
        at += length + (at[length] == ':');
    }
}

/* What was installed with this code. */
static void add_installed(lua_State *L)
{
    char own[PATH_MAX], path[PATH_MAX], real[PATH_MAX];
    slc_own_folder(own, sizeof own);
    size_t length = strlen(own);
    bool is_program = length >= 5 && strcmp(own + length - 5, "/bin/") == 0;
    int written = snprintf(path, sizeof path, "%s%s/sluice/rules", own, is_program ? SLUICE_DATA_FROM_PROGRAM : SLUICE_DATA_FROM_LIBRARY);
    if (written > 0 && (size_t)written < sizeof path && realpath(path, real) != NULL)
        add(L, "%s", real);
}

int slc_lua_rule_folders(lua_State *L)
{
    const char *data = secure_getenv("XDG_DATA_HOME"), *home = secure_getenv("HOME");
    lua_newtable(L);
    add_named(L, secure_getenv("SLUICE_RULES_PATH"));
    lua_pushinteger(L, (lua_Integer)lua_objlen(L, -1));
    lua_insert(L, -2);
    /* The XDG base directory specification: a relative path is ignored. */
    if (data != NULL && data[0] == '/')
        add(L, "%s/sluice/rules", data);
    else if (home != NULL && home[0] == '/')
        add(L, "%s/.local/share/sluice/rules", home);
    add_installed(L);
    lua_insert(L, -2);
    return 2;
}

static int wrong(lua_State *L, const char *text)
{
    lua_pushnil(L);
    lua_pushnil(L);
    lua_pushstring(L, text);
    return 3;
}

int slc_lua_read_rules(lua_State *L)
{
    char path[PATH_MAX], problem[PATH_MAX + 256];
    struct stat found;
    const char *folder = luaL_checkstring(L, 1);
    int length = snprintf(path, sizeof path, "%s/%s.lua", folder, luaL_checkstring(L, 2));
    if (length < 0 || (size_t)length >= sizeof path || stat(folder, &found) != 0 || !S_ISDIR(found.st_mode))
        return 0;
    mode_t mode = found.st_mode;
    if (lstat(path, &found) != 0)
        return 0;
    if ((mode & S_IWOTH) != 0) {
        snprintf(problem, sizeof problem, "%s: anyone may write into its folder (mode %04o); chmod o-w makes it good", path,
                 (unsigned)(mode & 07777));
        return wrong(L, problem);
    }
    slc_buffer *text = slc_lua_buffer(L);
    if (!slc_file_read(path, S_IWOTH, (size_t)luaL_checknumber(L, 3), text, problem, sizeof problem)) {
        slc_buffer_clear(text);
        return wrong(L, problem);
    }
    lua_pushlstring(L, (const char *)text->data, text->length);
    slc_buffer_clear(text);
    lua_pushstring(L, path);
    return 2;
}
