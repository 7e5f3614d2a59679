/* canonical.c: see canonical.h. */
#include "script/canonical.h"

#include "script/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    lua_State *L;
    slc_buffer *buffer;
    const char *problem;
} writer;

typedef struct key {
    const char *text;
    size_t length;
} key;

static bool fail(writer *w, const char *problem)
{
    w->problem = problem;
    return false;
}

static bool put(writer *w, const char *text, size_t length)
{
    return slc_buffer_append(w->buffer, text, length) || fail(w, "out of memory");
}

/* ---- strings ---- */

static unsigned decode_utf8(const unsigned char *p, size_t length)
{
    unsigned code = *p & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (p[i] & 0x3Fu);
    return code;
}

static void put_unit(writer *w, unsigned unit)
{
    static const char HEX[] = "0123456789abcdef";
    const char text[6] = { '\\', 'u', HEX[unit >> 12 & 15], HEX[unit >> 8 & 15], HEX[unit >> 4 & 15], HEX[unit & 15] };
    (void)put(w, text, sizeof text);
}

/* One character that does not stand for itself; gives the bytes that it takes. */
static size_t put_escape(writer *w, const unsigned char *p, size_t left)
{
    static const char NAMES[] = "\"\\\b\f\n\r\t", LETTERS[] = "\"\\bfnrt";
    const char *named = *p == '\0' ? NULL : strchr(NAMES, *p);
    if (named != NULL) {
        const char text[2] = { '\\', LETTERS[named - NAMES] };
        (void)put(w, text, 2);
        return 1;
    }
    if (*p < 0x80) {
        put_unit(w, *p);
        return 1;
    }
    size_t length = *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
    if (length > left)
        return left; /* cut UTF-8 never comes from the decoder */
    unsigned code = decode_utf8(p, length);
    if (code >= 0x10000) {
        put_unit(w, 0xD800 + ((code - 0x10000) >> 10));
        put_unit(w, 0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
        put_unit(w, code);
    }
    return length;
}

static bool put_string(writer *w, const char *text, size_t length)
{
    (void)put(w, "\"", 1);
    for (size_t i = 0, plain = 0; i <= length; i++) {
        if (i < length && text[i] >= ' ' && text[i] <= '~' && text[i] != '"' && text[i] != '\\')
            continue;
        (void)put(w, text + plain, i - plain);
        if (i == length)
            break;
        plain = i + put_escape(w, (const unsigned char *)text + i, length - i);
        i = plain - 1;
    }
    return put(w, "\"", 1);
}

/* ---- the other values ---- */

static bool put_number(writer *w, double value)
{
    if (value != floor(value) || fabs(value) > 9007199254740992.0)
        return fail(w, "a number that is no integer of at most 2^53 in size");
    return slc_buffer_text(w->buffer, "%lld", (long long)value) || fail(w, "out of memory");
}

static bool put_value(writer *w, int index, int depth);

static bool put_list(writer *w, int index, int depth)
{
    size_t count = lua_objlen(w->L, index);
    bool good = put(w, "[", 1);
    for (size_t i = 1; good && i <= count; i++) {
        lua_rawgeti(w->L, index, (int)i);
        good = (i == 1 || put(w, ",", 1)) && put_value(w, lua_gettop(w->L), depth + 1);
        lua_pop(w->L, 1);
    }
    return good && put(w, "]", 1);
}

static int compare_keys(const void *left, const void *right)
{
    const key *a = left, *b = right;
    int order = memcmp(a->text, b->text, a->length < b->length ? a->length : b->length);
    return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

/* The keys stay where they are while the table holds them. Python sorts by code point, which UTF-8 bytes do, too. */
static bool put_object(writer *w, int index, int depth, key *keys, size_t count)
{
    qsort(keys, count, sizeof *keys, compare_keys);
    bool good = put(w, "{", 1);
    for (size_t i = 0; good && i < count; i++) {
        good = (i == 0 || put(w, ",", 1)) && put_string(w, keys[i].text, keys[i].length) && put(w, ":", 1);
        lua_pushlstring(w->L, keys[i].text, keys[i].length); /* interned already, so nothing new is made */
        lua_rawget(w->L, index);
        good = good && put_value(w, lua_gettop(w->L), depth + 1);
        lua_pop(w->L, 1);
    }
    return good && put(w, "}", 1);
}

static bool put_table(writer *w, int index, int depth)
{
    key few[16], *keys = few;
    size_t count = 0, capacity = sizeof few / sizeof *few;
    bool good = true;
    lua_pushnil(w->L);
    while (lua_next(w->L, index) != 0) {
        lua_pop(w->L, 1);
        if (lua_type(w->L, -1) != LUA_TSTRING) {
            lua_pop(w->L, 1);
            good = count == 0 || fail(w, "a table that is list and object");
            return good && put_list(w, index, depth);
        }
        if (count == capacity) {
            key *grown = slc_reallocate(keys == few ? NULL : keys, 2 * capacity * sizeof *keys);
            if (grown == NULL) {
                lua_pop(w->L, 1);
                good = fail(w, "out of memory");
                break;
            }
            if (keys == few)
                memcpy(grown, few, sizeof few);
            keys = grown;
            capacity *= 2;
        }
        keys[count].text = lua_tolstring(w->L, -1, &keys[count].length);
        count++;
    }
    good = good && (count == 0 ? put(w, "[]", 2) : put_object(w, index, depth, keys, count));
    if (keys != few)
        slc_release(keys);
    return good;
}

static bool put_value(writer *w, int index, int depth)
{
    size_t length;
    const char *text;
    if (depth > SLC_JSON_DEPTH || !lua_checkstack(w->L, 8))
        return fail(w, "a value that is nested too deep");
    switch (lua_type(w->L, index)) {
    case LUA_TSTRING:
        text = lua_tolstring(w->L, index, &length);
        return put_string(w, text, length);
    case LUA_TNUMBER:
        return put_number(w, lua_tonumber(w->L, index));
    case LUA_TBOOLEAN:
        return lua_toboolean(w->L, index) ? put(w, "true", 4) : put(w, "false", 5);
    case LUA_TLIGHTUSERDATA:
        return put(w, "null", 4);
    case LUA_TTABLE:
        return put_table(w, index, depth);
    default:
        return fail(w, "a value that JSON does not have");
    }
}

bool slc_canonical(lua_State *L, int index, slc_buffer *buffer, const char **problem)
{
    writer w = { .L = L, .buffer = buffer };
    int top = lua_gettop(L);
    bool good = put_value(&w, index, 0);
    if (w.problem == NULL && buffer->failed)
        good = fail(&w, "out of memory");
    *problem = w.problem;
    lua_settop(L, top);
    return good;
}
