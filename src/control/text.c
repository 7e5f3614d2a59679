/* text.c: see text.h; owns nothing. */
#include "control/text.h"

#include "base/digest.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_LONGEST = 200, GROUP_LEAST = 120, REST_ROOM = 40, QUOTED_LONGEST = 160 };

slc_line slc_line_in(char *text, size_t room)
{
    text[0] = '\0';
    return (slc_line){ .text = text, .room = room };
}

size_t slc_line_left(const slc_line *line)
{
    return line->room - line->length - 1;
}

/* The longest prefix of at most `length` bytes that ends with a whole character. */
static size_t whole_characters(const char *text, size_t length)
{
    size_t end = length;
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
        end--;
    return end;
}

void slc_line_add(slc_line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line->text + line->length, line->room - line->length, format, arguments);
    va_end(arguments);
    if (wanted < 0)
        return;
    if ((size_t)wanted <= slc_line_left(line)) {
        line->length += (size_t)wanted;
        return;
    }
    size_t end = line->room - 1;
    while (end > line->length && ((unsigned char)line->text[end - 1] & 0xc0) == 0x80)
        end--;
    if (end > line->length && (unsigned char)line->text[end - 1] >= 0xc0)
        end--;
    line->text[end] = '\0';
    line->length = end;
}

void slc_line_add_cut(slc_line *line, const char *text, size_t length, size_t longest)
{
    if (longest > slc_line_left(line))
        longest = slc_line_left(line);
    if (length <= longest)
        slc_line_add(line, "%.*s", (int)length, text);
    else if (longest > 3)
        slc_line_add(line, "%.*s...", (int)whole_characters(text, longest - 3), text);
}

/* The ranks lie `stride` bytes apart. */
static void add_ranks(slc_line *line, const void *first, size_t stride, size_t count, size_t longest)
{
#define RANK(i) (*(const int32_t *)((const unsigned char *)first + (i) * stride))
    slc_line_add(line, count == 1 ? "rank " : "ranks ");
    size_t start = line->length;
    for (size_t i = 0, run; i < count; i += run) {
        for (run = 1; i + run < count && RANK(i + run) == RANK(i) + (int32_t)run;)
            run++;
        if (line->length - start + REST_ROOM > longest && i > 0) {
            slc_line_add(line, " and %zu more", count - i);
            return;
        }
        const char *comma = i == 0 ? "" : ", ";
        if (run >= 3) {
            slc_line_add(line, "%s%d-%d", comma, RANK(i), RANK(i + run - 1));
        } else {
            slc_line_add(line, "%s%d", comma, RANK(i));
            run = 1;
        }
    }
#undef RANK
}

void slc_line_add_ranks(slc_line *line, const int32_t *rank, size_t count, size_t longest)
{
    add_ranks(line, rank, sizeof *rank, count, longest);
}

static int by_key_and_rank(const void *a, const void *b)
{
    const slc_saying *x = a, *y = b;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    int order = x->length == 0 ? 0 : memcmp(x->key, y->key, x->length);
    return order != 0 ? order : x->rank < y->rank ? -1 : x->rank > y->rank;
}

static bool same_key(const slc_saying *a, const slc_saying *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->key, b->key, a->length) == 0);
}

/* The group of those not yet said that holds the lowest rank: sorted by key, a group's first element is its lowest. */
static size_t next_group(const slc_saying *saying, size_t count, int32_t above, size_t *groups_left)
{
    size_t best = count;
    *groups_left = 0;
    for (size_t i = 0; i < count; i++) {
        if ((i > 0 && same_key(&saying[i], &saying[i - 1])) || saying[i].rank <= above)
            continue;
        ++*groups_left;
        if (best == count || saying[i].rank < saying[best].rank)
            best = i;
    }
    return best;
}

void slc_line_add_sayings(slc_line *line, slc_saying *saying, size_t count, slc_show show)
{
    qsort(saying, count, sizeof *saying, by_key_and_rank);
    size_t said = 0, left_groups;
    int32_t above = -1;
    for (size_t at; (at = next_group(saying, count, above, &left_groups)) < count; above = saying[at].rank) {
        size_t members = 1, room = slc_line_left(line);
        while (at + members < count && same_key(&saying[at], &saying[at + members]))
            members++;
        if (said > 0 && room < GROUP_LEAST + REST_ROOM) {
            slc_line_add(line, "; and %zu more of %zu ranks", count - said, count);
            return;
        }
        size_t allowed = (room > REST_ROOM ? room - REST_ROOM : room) / left_groups;
        if (allowed < GROUP_LEAST)
            allowed = GROUP_LEAST;
        size_t start = line->length;
        if (said > 0)
            slc_line_add(line, "; ");
        add_ranks(line, &saying[at].rank, sizeof *saying, members, LIST_LONGEST);
        slc_line_add(line, ": ");
        size_t used = line->length - start;
        show(line, &saying[at], allowed > used + GROUP_LEAST / 2 ? allowed - used : GROUP_LEAST / 2);
        said += members;
    }
}

void slc_show_text(slc_line *line, const slc_saying *saying, size_t longest)
{
    slc_line_add_cut(line, saying->key, saying->length, longest);
}

void slc_show_quoted(slc_line *line, const slc_saying *saying, size_t longest)
{
    const unsigned char *bytes = saying->key;
    bool printable = saying->length <= QUOTED_LONGEST;
    for (size_t i = 0; i < saying->length && printable; i++)
        printable = bytes[i] >= 0x20 && bytes[i] != 0x7f;
    char digest[SLC_DIGEST_TEXT];
    if (printable && saying->length + 2 <= longest)
        slc_line_add(line, "\"%.*s\"", (int)saying->length, (const char *)bytes);
    else if (slc_digest(saying->key, saying->length, digest, NULL) == SLUICE_OK)
        slc_line_add(line, "%zu bytes with SHA-256 %.16s", saying->length, digest);
    else
        slc_line_add(line, "%zu bytes", saying->length);
}
