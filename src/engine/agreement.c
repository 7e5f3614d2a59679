/*
 * agreement.c: rounds over long lists. The list itself does not travel while all agree: each rank says its digest, and
 * only when two differ do one rank of each kind send their lines, so that the refusal can name the first that differs.
 */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_LINE = 1024, VERDICT_HEAD = 9 }; /* of judge_digests' answer: what is in front of the extra */

/* ---- lists ---- */

/* First round: u8 gives lines, digest text, extra. The answer: u8 same, u32 reference rank, u32 other rank, extra of the reference. */
static sluice_status judge_digests(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)context;
    const slc_word *reference = NULL, *other = NULL;
    slc_reader extra = { 0 };
    for (int32_t i = 0; i < count && other == NULL; i++) {
        slc_reader reader = { .data = word[i].body, .length = word[i].length };
        bool gives = slc_read_u8(&reader) != 0;
        const unsigned char *digest = gives ? slc_read_bytes(&reader, SLC_DIGEST_TEXT - 1) : NULL;
        if (reader.failed)
            return slc_fail(error, SLUICE_INTERNAL, "agree", "rank %d sent a digest that cannot be read", i);
        if (!gives)
            continue;
        if (reference == NULL) {
            reference = &word[i];
            extra = reader;
        } else if (memcmp(digest, (const unsigned char *)reference->body + 1, SLC_DIGEST_TEXT - 1) != 0) {
            other = &word[i];
        }
    }
    slc_buffer_u8(answer, other == NULL);
    slc_buffer_u32(answer, reference == NULL ? 0 : (uint32_t)reference->rank);
    slc_buffer_u32(answer, other == NULL ? 0 : (uint32_t)other->rank);
    if (other == NULL && reference != NULL)
        slc_buffer_append(answer, extra.data + extra.offset, slc_reader_left(&extra));
    return answer->failed ? slc_fail_memory(error, "agree", "an answer", extra.length) : SLUICE_OK;
}

struct difference {
    const char *stage, *what;
    uint32_t reference, other;
};

/* Second round: u64 count, then that many strings, from the reference and the other rank; nothing from the rest. */
static sluice_status judge_lines(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    const struct difference *difference = context;
    (void)answer;
    if (difference->reference >= (uint32_t)count || difference->other >= (uint32_t)count)
        return slc_fail(error, SLUICE_INTERNAL, "agree", "ranks %u and %u are outside the world", difference->reference, difference->other);
    slc_arena arena = { 0 };
    slc_reader a = { .data = word[difference->reference].body, .length = word[difference->reference].length };
    slc_reader b = { .data = word[difference->other].body, .length = word[difference->other].length };
    uint64_t na = slc_read_u64(&a), nb = slc_read_u64(&b), position = 0;
    const char *line_a = "(none)", *line_b = "(none)";
    for (; position < na && position < nb && !a.failed && !b.failed; position++) {
        line_a = slc_read_string(&a, &arena, LONGEST_LINE);
        line_b = slc_read_string(&b, &arena, LONGEST_LINE);
        if (strcmp(line_a, line_b) != 0)
            break;
    }
    bool ended = position == na || position == nb;
    if (ended) {
        line_a = position < na ? slc_read_string(&a, &arena, LONGEST_LINE) : "(none)";
        line_b = position < nb ? slc_read_string(&b, &arena, LONGEST_LINE) : "(none)";
    }
    sluice_status status;
    if (ended && na == nb)
        status = slc_fail(error, SLUICE_DISAGREE, difference->stage,
                          "ranks %u and %u give the same %llu %ss but not the same digest; one of them spells out what the other leaves out",
                          difference->reference, difference->other, (unsigned long long)na, difference->what);
    else
        status = slc_fail(error, SLUICE_DISAGREE, difference->stage,
                          "ranks %u and %u differ, first at %s %llu: rank %u has %s, rank %u has %s (%llu and %llu in all)",
                          difference->reference, difference->other, difference->what, (unsigned long long)position,
                          difference->reference, line_a, difference->other, line_b, (unsigned long long)na, (unsigned long long)nb);
    error->rank = (int32_t)difference->other;
    slc_arena_clear(&arena);
    return status;
}

static sluice_status name_difference(slc_group *group, const char *stage, const slc_list *list, slc_reader *answer, slc_deadline deadline,
                                     sluice_error *error)
{
    struct difference difference = { .stage = stage, .what = list->what };
    difference.reference = slc_read_u32(answer);
    difference.other = slc_read_u32(answer);
    slc_buffer lines = { 0 };
    if ((uint32_t)group->rank == difference.reference || (uint32_t)group->rank == difference.other) {
        slc_buffer_u64(&lines, list->count);
        char line[LONGEST_LINE];
        for (size_t i = 0; i < list->count; i++) {
            list->line(list->context, i, line, sizeof line);
            slc_buffer_string(&lines, line);
        }
    }
    sluice_error failed = SLUICE_ERROR_INIT;
    if (lines.failed)
        slc_fail_memory(&failed, stage, "the lines of a list that differs", lines.length);
    sluice_status status = slc_group_round(group, stage, &failed, lines.data, lines.length, judge_lines, &difference, NULL, deadline, error);
    slc_buffer_clear(&lines);
    return status != SLUICE_OK ? status : slc_fail(error, SLUICE_INTERNAL, stage, "digests differ and lines do not");
}

sluice_status slc_agree_on_list(slc_group *group, const char *stage, const sluice_error *mine, const char *digest, const slc_list *list,
                                slc_buffer *answer, slc_deadline deadline, sluice_error *error)
{
    slc_buffer body = { 0 }, verdict = { 0 };
    bool gives = list->count != SIZE_MAX;
    slc_buffer_u8(&body, gives);
    if (gives) {
        slc_buffer_append(&body, digest, SLC_DIGEST_TEXT - 1);
        slc_buffer_append(&body, list->extra, list->extra_length);
    }
    sluice_error failed = SLUICE_ERROR_INIT;
    if (mine != NULL && mine->status != SLUICE_OK)
        slc_error_copy(&failed, mine);
    else if (body.failed)
        slc_fail_memory(&failed, stage, "an envelope", list->extra_length);
    sluice_status status = slc_group_round_to(group, stage, &failed, body.data, body.length, judge_digests, NULL, list->readers,
                                              VERDICT_HEAD, &verdict, deadline, error);
    slc_buffer_clear(&body);
    if (status == SLUICE_OK) {
        slc_reader reader = { .data = verdict.data, .length = verdict.length };
        if (slc_read_u8(&reader) == 0) {
            status = name_difference(group, stage, list, &reader, deadline, error);
        } else if (answer != NULL) {
            (void)slc_read_bytes(&reader, VERDICT_HEAD - 1);
            slc_buffer_append(answer, reader.data + reader.offset, slc_reader_left(&reader));
            answer->failed = answer->failed || reader.failed;
        }
    }
    slc_buffer_clear(&verdict);
    return status;
}

/* ---- settings ---- */

struct line {
    const char *text;
    size_t length;
};

static bool next_line(slc_reader *reader, struct line *line)
{
    size_t left = slc_reader_left(reader);
    if (left == 0)
        return false;
    line->text = (const char *)reader->data + reader->offset;
    const char *end = memchr(line->text, '\n', left);
    line->length = end == NULL ? left : (size_t)(end - line->text);
    reader->offset += end == NULL ? left : line->length + 1;
    return true;
}

/*
 * Settings come in the same order from every rank: the same code writes them. A line more or less is named as such. Ends
 * once there is more than an error can say: a rank may have sent a million lines.
 */
static void compare_settings(const slc_word *reference, const slc_word *other, slc_buffer *differences)
{
    slc_reader a = { .data = reference->body, .length = reference->length };
    slc_reader b = { .data = other->body, .length = other->length };
    struct line x = { 0 }, y = { 0 };
    while (differences->length < SLUICE_ERROR_TEXT) {
        bool more_a = next_line(&a, &x), more_b = next_line(&b, &y);
        if (!more_a && !more_b)
            return;
        if (!more_a)
            x = (struct line){ "(nothing)", 9 };
        if (!more_b)
            y = (struct line){ "(nothing)", 9 };
        if (x.length == y.length && memcmp(x.text, y.text, x.length) == 0)
            continue;
        slc_buffer_text(differences, "%srank %d has %.*s, rank %d has %.*s", differences->length == 0 ? "" : "; ", reference->rank,
                        (int)(x.length < 256 ? x.length : 256), x.text, other->rank, (int)(y.length < 256 ? y.length : 256), y.text);
    }
}

static sluice_status judge_settings(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)answer;
    const slc_word *reference = NULL;
    for (int32_t i = 0; i < count; i++) {
        if (word[i].length == 0)
            continue; /* its preparation failed: it says so in the next round */
        if (reference == NULL)
            reference = &word[i];
        if (word[i].length == reference->length && memcmp(word[i].body, reference->body, word[i].length) == 0)
            continue;
        slc_buffer differences = { 0 };
        compare_settings(reference, &word[i], &differences);
        sluice_status status = slc_fail(error, SLUICE_DISAGREE, context, "settings must be the same on every rank: %.*s",
                                        (int)(differences.length < 3000 ? differences.length : 3000),
                                        differences.data == NULL ? "" : (const char *)differences.data);
        error->rank = word[i].rank;
        slc_buffer_clear(&differences);
        return status;
    }
    return SLUICE_OK;
}

sluice_status slc_agree_on_settings(slc_group *group, const char *stage, const sluice_error *mine, const slc_buffer *lines,
                                    slc_deadline deadline, sluice_error *error)
{
    return slc_group_round(group, stage, mine, lines->data, lines->length, judge_settings, (void *)stage, NULL, deadline, error);
}
