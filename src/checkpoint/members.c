/* members.c: the walk over a JSON object's members. Owns the finding of ends; leaves every judgement of a token to jansson. */
#include "checkpoint/members.h"

#include <string.h>

#include "checkpoint/parse.h"

static sluice_status not_json(const slc_members *walk, const char *reason, sluice_error *error)
{
    return slc_refuse(error, "%s: %s is not JSON (byte %zu: %s)", walk->file, walk->what, (size_t)(walk->at - walk->begin),
                      reason);
}

static void skip_space(slc_members *walk)
{
    while (walk->at < walk->end && (*walk->at == ' ' || *walk->at == '\t' || *walk->at == '\n' || *walk->at == '\r'))
        walk->at++;
}

static bool take(slc_members *walk, char wanted)
{
    skip_space(walk);
    if (walk->at == walk->end || *walk->at != wanted)
        return false;
    walk->at++;
    return true;
}

/* Behind the closing quote of the string that opens at `at`, or NULL. */
static const char *string_end(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at < end ? at + 1 : NULL;
}

/* Behind the number or word at `at`; `at` itself where there is none. */
static const char *word_end(const char *at, const char *end)
{
    while (at < end && memchr(",}] \t\r\n", *at, 7) == NULL)
        at++;
    return at;
}

/* Behind the value at `at`, or NULL where the text ends first. Brackets are counted, not matched: jansson does that. */
static const char *value_end(const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        char c = *at;
        if (c == '"') {
            at = string_end(at, end);
            if (at == NULL || depth == 0)
                return at;
            continue;
        }
        if (depth == 0 && c != '{' && c != '[')
            return word_end(at, end);
        if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            return at + 1;
        at++;
    }
    return NULL;
}

static sluice_status read_text(const slc_members *walk, const char *text, size_t length, json_t **json, sluice_error *error)
{
    json_error_t fault;
    char shown[SLC_SHOWN];
    *json = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &fault);
    if (*json != NULL)
        return SLUICE_OK;
    if (json_error_code(&fault) == json_error_out_of_memory)
        return slc_fail_memory(error, STAGE, walk->what, length);
    return slc_refuse(error, "%s: %s is not JSON (byte %zu: %s)", walk->file, walk->what,
                      (size_t)(text - walk->begin) + (size_t)(fault.position > 0 ? fault.position : 0),
                      slc_checkpoint_shown(fault.text, shown));
}

sluice_status slc_members_begin(slc_members *walk, const char *file, const char *what, const char *text, size_t length,
                                sluice_error *error)
{
    *walk = (slc_members){ .file = file, .what = what, .begin = text, .at = text, .end = text + length, .first = true };
    return take(walk, '{') ? SLUICE_OK : slc_refuse(error, "%s: %s must be a JSON object", file, what);
}

static sluice_status read_key(slc_members *walk, json_t **key, sluice_error *error)
{
    skip_space(walk);
    const char *start = walk->at;
    const char *behind = start < walk->end && *start == '"' ? string_end(start, walk->end) : NULL;
    if (behind == NULL)
        return not_json(walk, "a key must be a string", error);
    if (behind - start - 2 > SLC_LONGEST_KEY)
        return slc_refuse(error, "%s: %s has a key of %zu bytes; at most %d are allowed", walk->file, walk->what,
                          (size_t)(behind - start - 2), SLC_LONGEST_KEY);
    walk->at = behind;
    return read_text(walk, start, (size_t)(behind - start), key, error);
}

sluice_status slc_members_next(slc_members *walk, json_t **key, slc_span *value, sluice_error *error)
{
    *key = NULL;
    if (take(walk, '}')) {
        skip_space(walk);
        return walk->at == walk->end ? SLUICE_OK : not_json(walk, "text follows the object", error);
    }
    if (!walk->first && !take(walk, ','))
        return not_json(walk, "a comma or a closing brace must follow a member", error);
    walk->first = false;
    sluice_status status = read_key(walk, key, error);
    if (status == SLUICE_OK && !take(walk, ':'))
        status = not_json(walk, "a colon must follow a key", error);
    if (status == SLUICE_OK) {
        skip_space(walk);
        const char *behind = value_end(walk->at, walk->end);
        if (behind == NULL)
            status = not_json(walk, "the text ends inside a value", error);
        else
            *value = (slc_span){ walk->at, (size_t)(behind - walk->at) };
        walk->at = behind == NULL ? walk->at : behind;
    }
    if (status != SLUICE_OK && *key != NULL) {
        json_decref(*key);
        *key = NULL;
    }
    return status;
}

sluice_status slc_members_value(const slc_members *walk, slc_span value, json_t **json, sluice_error *error)
{
    *json = NULL;
    if (value.length > SLC_LONGEST_VALUE)
        return slc_refuse(error, "%s: %s has a value of %zu bytes at byte %zu; at most %d are allowed", walk->file, walk->what,
                          value.length, (size_t)(value.text - walk->begin), SLC_LONGEST_VALUE);
    return read_text(walk, value.text, value.length, json, error);
}
