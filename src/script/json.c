/* json.c: see json.h. A recursive descent over the text; the C stack is bounded by SLC_JSON_DEPTH. */
#include "script/json.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { NAME_SHOWN = 64, PATH_BYTES = 512, EXACT_DIGITS = 15 };

static const double EXACT = 9007199254740992.0; /* 2^53 */

/* Where the reader stands: an index in a list, or a key of an object as it is written. */
typedef struct place {
    const char *key;
    size_t key_length;
    size_t index;
} place;

typedef struct reader {
    lua_State *L;
    const char *start, *at, *end;
    int depth;
    place path[SLC_JSON_DEPTH + 1];
    bool odd;
    char odd_path[PATH_BYTES], odd_text[NAME_SHOWN + 4];
    const char *rule; /* what is wrong at `at`, once something is */
} reader;

static bool bad(reader *r, const char *at, const char *rule)
{
    r->at = at;
    r->rule = rule;
    return false;
}

/* ---- what is odd ---- */

static void write_path(const reader *r, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 1; i <= r->depth && used + 1 < size; i++) {
        const place *p = &r->path[i];
        int length = p->key == NULL ? snprintf(text + used, size - used, "[%zu]", p->index)
                                    : snprintf(text + used, size - used, "%s%.*s", used > 0 ? "." : "",
                                               (int)(p->key_length > NAME_SHOWN ? NAME_SHOWN : p->key_length), p->key);
        used += length < 0 ? 0 : (size_t)length;
    }
}

static void note_odd(reader *r, const char *text, size_t length)
{
    if (r->odd)
        return;
    r->odd = true;
    write_path(r, r->odd_path, sizeof r->odd_path);
    snprintf(r->odd_text, sizeof r->odd_text, "%.*s%s", (int)(length > NAME_SHOWN ? NAME_SHOWN : length), text,
             length > NAME_SHOWN ? "..." : "");
}

/* ---- strings ---- */

static int hex4(const char *p, const char *end)
{
    int value = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static void add_utf8(luaL_Buffer *buffer, int code)
{
    if (code < 0x80) {
        luaL_addchar(buffer, (char)code);
        return;
    }
    if (code < 0x800) {
        luaL_addchar(buffer, (char)(0xC0 | code >> 6));
    } else {
        if (code < 0x10000) {
            luaL_addchar(buffer, (char)(0xE0 | code >> 12));
        } else {
            luaL_addchar(buffer, (char)(0xF0 | code >> 18));
            luaL_addchar(buffer, (char)(0x80 | (code >> 12 & 0x3F)));
        }
        luaL_addchar(buffer, (char)(0x80 | (code >> 6 & 0x3F)));
    }
    luaL_addchar(buffer, (char)(0x80 | (code & 0x3F)));
}

/* at is behind the backslash; moves over the escape. */
static bool read_escape(reader *r, luaL_Buffer *buffer)
{
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    const char *at = r->at;
    const char *name = at < r->end && *at != '\0' ? strchr(NAMES, *at) : NULL;
    if (name != NULL) {
        luaL_addchar(buffer, VALUES[name - NAMES]);
        r->at = at + 1;
        return true;
    }
    int code = at < r->end && *at == 'u' ? hex4(at + 1, r->end) : -1;
    if (code < 0)
        return bad(r, at, "must be an escape that JSON knows");
    r->at = at + 5;
    if (code >= 0xD800 && code <= 0xDFFF) {
        int low = code <= 0xDBFF && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u' ? hex4(r->at + 2, r->end) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return bad(r, at, "must be the first of a pair of surrogates");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        r->at += 6;
    }
    add_utf8(buffer, code);
    return true;
}

/* Moves over bytes that stand for themselves, up to a quote or a backslash. */
static bool skip_plain(reader *r)
{
    while (r->at < r->end && *r->at != '"' && *r->at != '\\') {
        if ((unsigned char)*r->at < 0x20)
            return bad(r, r->at, "must not be a control character inside a string");
        size_t length = slc_utf8_length((const unsigned char *)r->at, (const unsigned char *)r->end);
        if (length == 0)
            return bad(r, r->at, "must be valid UTF-8");
        r->at += length;
    }
    return r->at < r->end || bad(r, r->at, "must be the rest of a string");
}

/* at is on the opening quote; pushes the string. */
static bool read_string(reader *r)
{
    const char *start = ++r->at;
    if (!skip_plain(r))
        return false;
    if (*r->at == '"') {
        lua_pushlstring(r->L, start, (size_t)(r->at++ - start));
        return true;
    }
    luaL_Buffer buffer;
    luaL_buffinit(r->L, &buffer);
    for (;;) {
        luaL_addlstring(&buffer, start, (size_t)(r->at - start));
        if (*r->at == '"')
            break;
        r->at++;
        if (!read_escape(r, &buffer))
            return false;
        start = r->at;
        if (!skip_plain(r))
            return false;
    }
    r->at++;
    luaL_pushresult(&buffer);
    return true;
}

/* ---- the other values ---- */

static const char *digits(const char *at, const char *end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

static bool read_number(reader *r)
{
    const char *start = r->at, *at = start, *end = r->end;
    if (at < end && *at == '-')
        at++;
    const char *whole = at;
    at = digits(at, end);
    if (at == whole || (*whole == '0' && at - whole > 1))
        return bad(r, start, "must be a number as JSON writes it");
    bool integer = !(*start == '-' && *whole == '0');
    double small = 0;
    for (const char *p = whole; p < at && at - whole <= EXACT_DIGITS; p++)
        small = small * 10 + (*p - '0');
    if (at < end && *at == '.') {
        const char *fraction = ++at;
        at = digits(at, end);
        integer = false;
        if (at == fraction)
            return bad(r, start, "must be a number as JSON writes it");
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at += at + 1 < end && (at[1] == '+' || at[1] == '-') ? 2 : 1;
        const char *exponent = at;
        at = digits(at, end);
        integer = false;
        if (at == exponent)
            return bad(r, start, "must be a number as JSON writes it");
    }
    double value = *start == '-' ? -small : small;
    if (!integer || at - whole > EXACT_DIGITS) {
        lua_pushlstring(r->L, start, (size_t)(at - start)); /* Lua's own reading knows no locale */
        value = lua_tonumber(r->L, -1);
        lua_pop(r->L, 1);
        bool rounded = (value == EXACT || value == -EXACT) && at[-1] != '2'; /* from 2^53 + 1 */
        if (!integer || value > EXACT || value < -EXACT || rounded)
            note_odd(r, start, (size_t)(at - start));
    }
    lua_pushnumber(r->L, value);
    r->at = at;
    return true;
}

static bool read_word(reader *r)
{
    static const char *const WORDS[] = { "null", "true", "false" };
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(WORDS[i]);
        if ((size_t)(r->end - r->at) < length || memcmp(r->at, WORDS[i], length) != 0)
            continue;
        if (i == 0)
            lua_pushlightuserdata(r->L, NULL);
        else
            lua_pushboolean(r->L, i == 1);
        r->at += length;
        return true;
    }
    return bad(r, r->at, "must be a value");
}

static void skip_space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
}

static bool take(reader *r, char wanted)
{
    skip_space(r);
    if (r->at >= r->end || *r->at != wanted)
        return false;
    r->at++;
    return true;
}

static bool read_value(reader *r);

static bool read_list(reader *r)
{
    place *here = &r->path[r->depth];
    *here = (place){ 0 };
    lua_newtable(r->L);
    if (take(r, ']'))
        return true;
    for (;; here->index++) {
        if (here->index >= INT32_MAX - 1)
            return bad(r, r->at, "must end a list of fewer than 2^31 values");
        if (!read_value(r))
            return false;
        lua_rawseti(r->L, -2, (int)here->index + 1);
        if (take(r, ']'))
            return true;
        if (!take(r, ','))
            return bad(r, r->at, "must be a comma or ]");
    }
}

static bool read_object(reader *r)
{
    place *here = &r->path[r->depth];
    lua_newtable(r->L);
    if (take(r, '}')) {
        r->depth--; /* the path of the object itself */
        note_odd(r, "{}", 2);
        r->depth++;
        return true;
    }
    for (;;) {
        skip_space(r);
        if (r->at >= r->end || *r->at != '"')
            return bad(r, r->at, "must be a key in quotes");
        const char *start = r->at + 1;
        if (!read_string(r))
            return false;
        *here = (place){ .key = start, .key_length = (size_t)(r->at - 1 - start) };
        if (!take(r, ':'))
            return bad(r, r->at, "must be a colon");
        if (!read_value(r))
            return false;
        lua_rawset(r->L, -3);
        if (take(r, '}'))
            return true;
        if (!take(r, ','))
            return bad(r, r->at, "must be a comma or }");
    }
}

static bool read_value(reader *r)
{
    skip_space(r);
    if (r->at >= r->end)
        return bad(r, r->at, "must be a value");
    const char *start = r->at;
    switch (*start) {
    case '"':
        return read_string(r);
    case '[':
    case '{':
        if (r->depth == SLC_JSON_DEPTH)
            return bad(r, start, "must not nest more than 32 deep");
        luaL_checkstack(r->L, 8, "JSON");
        r->at++;
        r->depth++;
        if (!(*start == '[' ? read_list(r) : read_object(r)))
            return false;
        r->depth--;
        return true;
    default:
        return (*start >= '0' && *start <= '9') || *start == '-' ? read_number(r) : read_word(r);
    }
}

int slc_json_decode(lua_State *L, const char *text, size_t length)
{
    reader r = { .L = L, .start = text, .at = text, .end = text + length };
    int top = lua_gettop(L);
    bool good = read_value(&r);
    if (good) {
        skip_space(&r);
        if (r.at < r.end)
            good = bad(&r, r.at, "must be the end of the text");
    }
    if (good) {
        lua_pushstring(L, r.odd ? r.odd_path : NULL);
        lua_pushstring(L, r.odd ? r.odd_text : NULL);
        return 3;
    }
    lua_settop(L, top);
    lua_pushnil(L);
    unsigned char found = r.at < r.end ? (unsigned char)*r.at : 0;
    if (r.at >= r.end)
        lua_pushfstring(L, "JSON byte %d (the end) %s", (int)(r.at - r.start), r.rule);
    else if (found > 0x20 && found < 0x7F)
        lua_pushfstring(L, "JSON byte %d (%c) %s", (int)(r.at - r.start), found, r.rule);
    else
        lua_pushfstring(L, "JSON byte %d (code %d) %s", (int)(r.at - r.start), found, r.rule);
    return 2;
}
