/*
 * edit.c: the console's line editor: libedit where it was there at build time, with history and completion; else plain lines.
 * Owns the editor and its history; what completes a line is lua/sluice/console/complete.lua.
 */
#include "cli/native.h"

#include "base/error.h"
#include "base/memory.h"
#include "script/call.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char TYPE[] = "sluice.editor";

#ifdef SLUICE_LIBEDIT

#include <histedit.h>

enum { MOST_LINES = 2000, LONGEST_LISTING = 65536 };

typedef struct editor {
    slc_script *script;
    EditLine *line;
    History *history;
    char *prompt, *path; /* path: NULL where no history is kept */
    int session; /* a reference: what complete.lua asks */
    bool cancelled;
} editor;

static editor *get_editor(EditLine *line)
{
    void *found = NULL;
    el_get(line, EL_CLIENTDATA, &found);
    return found;
}

static char *show_prompt(EditLine *line)
{
    return get_editor(line)->prompt;
}

/* ---- keys ---- */

static unsigned char cancel(EditLine *line, int key)
{
    (void)key;
    get_editor(line)->cancelled = true;
    fputs("^C\n", stdout);
    fflush(stdout);
    return CC_EOF;
}

typedef struct completion {
    const editor *editor;
    const LineInfo *line;
    char *insert, *listing;
} completion;

static int push_line(lua_State *L, void *context)
{
    const completion *c = context;
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->editor->session);
    lua_pushlstring(L, c->line->buffer, (size_t)(c->line->cursor - c->line->buffer));
    return 2;
}

static void take_completion(lua_State *L, int count, void *context)
{
    completion *c = context;
    if (count > 0 && lua_isstring(L, 1))
        c->insert = slc_duplicate(lua_tostring(L, 1));
    if (count > 1 && lua_isstring(L, 2))
        c->listing = slc_duplicate(lua_tostring(L, 2));
}

static unsigned char complete(EditLine *line, int key)
{
    (void)key;
    completion c = { .editor = get_editor(line), .line = el_line(line) };
    sluice_error error = SLUICE_ERROR_INIT;
    unsigned char code = CC_REFRESH;
    if (slc_script_call(c.editor->script, "repl", "sluice.console.complete", "at", push_line, take_completion, &c, &error) !=
        SLUICE_OK)
        code = CC_ERROR;
    if (c.insert != NULL && c.insert[0] != '\0' && el_insertstr(line, c.insert) != 0)
        code = CC_ERROR;
    if (c.listing != NULL) {
        printf("\n%s\n", c.listing);
        fflush(stdout);
        code = CC_REDISPLAY;
    }
    slc_release(c.insert);
    slc_release(c.listing);
    return code;
}

/* ---- life ---- */

static int editor_close(lua_State *L)
{
    editor *e = luaL_checkudata(L, 1, TYPE);
    if (e->line != NULL)
        el_end(e->line);
    if (e->history != NULL)
        history_end(e->history);
    slc_release(e->prompt);
    slc_release(e->path);
    luaL_unref(L, LUA_REGISTRYINDEX, e->session);
    *e = (editor){ .session = LUA_NOREF };
    return 0;
}

static bool begin(editor *e)
{
    HistEvent event;
    e->history = history_init();
    e->line = el_init("sluice", stdin, stdout, stderr);
    if (e->history == NULL || e->line == NULL)
        return false;
    history(e->history, &event, H_SETSIZE, MOST_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    if (e->path != NULL)
        history(e->history, &event, H_LOAD, e->path);
    el_set(e->line, EL_CLIENTDATA, e);
    el_set(e->line, EL_PROMPT, show_prompt);
    el_set(e->line, EL_EDITOR, "emacs");
    el_set(e->line, EL_HIST, history, e->history);
    el_set(e->line, EL_ADDFN, "sluice-complete", "completes a name", complete);
    el_set(e->line, EL_ADDFN, "sluice-cancel", "gives the line up", cancel);
    el_source(e->line, NULL); /* the user's own keys, ~/.editrc; ours go over them */
    el_set(e->line, EL_BIND, "^I", "sluice-complete", NULL);
    el_set(e->line, EL_BIND, "^C", "sluice-cancel", NULL);
    el_set(e->line, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(e->line, EL_SETTY, "-d", "-isig", NULL); /* Ctrl-C is a key while a line is typed */
    return true;
}

/* read(prompt) -> a line; false where it was given up; nothing at the end */
static int editor_read(lua_State *L)
{
    editor *e = luaL_checkudata(L, 1, TYPE);
    slc_release(e->prompt);
    e->prompt = slc_duplicate(luaL_checkstring(L, 2));
    if (e->line == NULL || e->prompt == NULL)
        return luaL_error(L, "no line editor");
    e->cancelled = false;
    int length = 0;
    el_set(e->line, EL_PREP_TERM, 1); /* before the prompt: what is typed at once is not the kernel's to echo */
    const char *line = el_gets(e->line, &length);
    if (e->cancelled) {
        lua_pushboolean(L, false);
        return 1;
    }
    if (line == NULL || length <= 0)
        return 0;
    lua_pushlstring(L, line, (size_t)length - (line[length - 1] == '\n'));
    return 1;
}

/* add(line): into the history, and to its file */
static int editor_add(lua_State *L)
{
    const editor *e = luaL_checkudata(L, 1, TYPE);
    HistEvent event;
    history(e->history, &event, H_ENTER, luaL_checkstring(L, 2));
    if (e->path != NULL)
        history(e->history, &event, H_SAVE, e->path);
    return 0;
}

/* editor(session, path of the history or nil) -> an editor */
int slc_native_editor(lua_State *L)
{
    static const luaL_Reg methods[] = {
        { "read", editor_read }, { "add", editor_add }, { "close", editor_close }, { NULL, NULL }
    };
    const char *path = luaL_optstring(L, 2, NULL);
    editor *e = lua_newuserdata(L, sizeof *e);
    *e = (editor){ .script = slc_lua_script(L), .session = LUA_NOREF };
    if (luaL_newmetatable(L, TYPE)) {
        lua_newtable(L);
        luaL_register(L, NULL, methods);
        lua_setfield(L, -2, "__index");
        lua_pushcfunction(L, editor_close);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    lua_pushvalue(L, 1);
    e->session = luaL_ref(L, LUA_REGISTRYINDEX);
    e->path = path == NULL ? NULL : slc_duplicate(path);
    if (!begin(e))
        return luaL_error(L, "the line editor cannot begin");
    return 1;
}

#else

/* read(prompt) -> a line; nothing at the end */
static int editor_read(lua_State *L)
{
    char *line = NULL;
    size_t room = 0;
    fputs(luaL_checkstring(L, 2), stdout);
    fflush(stdout);
    ssize_t length = getline(&line, &room, stdin);
    if (length > 0)
        lua_pushlstring(L, line, (size_t)length - (line[length - 1] == '\n'));
    free(line);
    return length > 0 ? 1 : 0;
}

static int editor_nothing(lua_State *L)
{
    (void)L;
    return 0;
}

/* editor(session, path) -> an editor without history or completion */
int slc_native_editor(lua_State *L)
{
    static const luaL_Reg methods[] = {
        { "read", editor_read }, { "add", editor_nothing }, { "close", editor_nothing }, { NULL, NULL }
    };
    lua_newuserdata(L, 1);
    luaL_newmetatable(L, TYPE);
    lua_newtable(L);
    luaL_register(L, NULL, methods);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    return 1;
}

#endif
