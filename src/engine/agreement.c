/*
 * agreement.c: rounds over long lists. The list itself does not travel while all agree: each rank says its digest, and
 * only when they differ does one rank of each kind send its lines, so that the refusal can name the first that differs.
 */
#include "control/text.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* VERDICT_HEAD: of judge_digests' answer, what is in front of the extra */
enum { LONGEST_LINE = 1024, MOST_KINDS = 5, VERDICT_HEAD = 1 + MOST_KINDS * 4, TEXT_ROOM = SLUICE_ERROR_TEXT - 128 };

/* ---- kinds ---- */

/*
 * Ranks by what they say. Kind 0 says what the reference does; the lowest rank of each kind speaks for it. Ranks of more kinds
 * than have room are FURTHER ones.
 */
typedef struct kind_set {
    int8_t *of; /* by rank: its kind, FURTHER or SILENT */
    int32_t ranks, speaker[MOST_KINDS];
    size_t said[MOST_KINDS]; /* bytes of the speaker's word that count */
    int count;
} kind_set;

enum { SILENT = -1, FURTHER = MOST_KINDS };

static sluice_status begin_kinds(kind_set *kinds, int32_t ranks, sluice_error *error)
{
    kinds->of = slc_allocate_zeroed((size_t)ranks, sizeof *kinds->of);
    kinds->ranks = ranks;
    return kinds->of != NULL ? SLUICE_OK : slc_fail_memory(error, "agree", "the ranks that differ", (size_t)ranks);
}

/* The next rank, in order: `said` bytes of its word count, 0 for one that says nothing. */
static void sort_in(kind_set *kinds, const slc_word *word, int32_t rank, size_t said)
{
    int kind = 0;
    while (kind < kinds->count
           && (kinds->said[kind] != said || memcmp(word[kinds->speaker[kind]].body, word[rank].body, said) != 0))
        kind++;
    if (said > 0 && kind == kinds->count && kind < MOST_KINDS) {
        kinds->speaker[kind] = rank;
        kinds->said[kind] = said;
        kinds->count++;
    }
    kinds->of[rank] = (int8_t)(said == 0 ? SILENT : kind);
}

/* "; ranks 3, 5 say what rank 2 does": the others of a kind. */
static void add_others(slc_line *line, const kind_set *kinds, int kind)
{
    int32_t *rank = slc_allocate_zeroed((size_t)kinds->ranks, sizeof *rank);
    size_t count = 0;
    for (int32_t i = 0; i < kinds->ranks && rank != NULL; i++)
        if (kinds->of[i] == kind && (kind == FURTHER || i != kinds->speaker[kind]))
            rank[count++] = i;
    if (count > 0) {
        slc_line_add(line, "; ");
        slc_line_add_ranks(line, rank, count, 200);
        if (kind == FURTHER)
            slc_line_add(line, count == 1 ? " says something else again" : " say other things again");
        else
            slc_line_add(line, " %s what rank %d does", count == 1 ? "says" : "say", (int)kinds->speaker[kind]);
    }
    slc_release(rank);
}

/* ---- lists ---- */

struct difference {
    const char *stage, *what;
    kind_set kinds; /* rank 0's */
};

/* The bytes of a first word that must be equal, 0 where it gives no lines; the rest of it is extra. */
static size_t said_by(const slc_word *word, bool *failed)
{
    slc_reader reader = { .data = word->body, .length = word->length };
    bool gives = slc_read_u8(&reader) != 0;
    if (gives) {
        (void)slc_read_bytes(&reader, SLC_DIGEST_TEXT - 1);
        (void)slc_read_bytes(&reader, slc_read_u32(&reader));
    }
    *failed = reader.failed;
    return gives ? reader.offset : 0;
}

/*
 * First round: u8 gives lines, digest text, heading, extra. The answer: u8 same, u32 speaker of each kind (UINT32_MAX: there is no
 * such kind), extra of the reference.
 */
static sluice_status judge_digests(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    struct difference *difference = context;
    int32_t reference = -1;
    size_t wanted = 0;
    bool same = true;
    for (int32_t i = 0; i < count; i++) {
        bool failed;
        size_t said = said_by(&word[i], &failed);
        if (failed)
            return slc_fail(error, SLUICE_INTERNAL, "agree", "rank %d sent a digest that cannot be read", i);
        if (said > 0 && reference < 0) {
            reference = i;
            wanted = said;
        } else if (said > 0) {
            same = same && said == wanted && memcmp(word[i].body, word[reference].body, said) == 0;
        }
    }
    sluice_status status = same ? SLUICE_OK : begin_kinds(&difference->kinds, count, error);
    for (int32_t i = 0; i < count && !same && status == SLUICE_OK; i++) {
        bool failed;
        sort_in(&difference->kinds, word, i, said_by(&word[i], &failed));
    }
    slc_buffer_u8(answer, same);
    for (int kind = 0; kind < MOST_KINDS; kind++)
        slc_buffer_u32(answer, kind < difference->kinds.count ? (uint32_t)difference->kinds.speaker[kind] : UINT32_MAX);
    if (same && reference >= 0)
        slc_buffer_append(answer, (const unsigned char *)word[reference].body + wanted, word[reference].length - wanted);
    if (status == SLUICE_OK && answer->failed)
        status = slc_fail_memory(error, "agree", "an answer", answer->length);
    return status;
}

/* One line of a rank's list, and what is said of it, which may differ. */
struct said {
    const char *line, *note;
};

static struct said read_said(slc_reader *reader, slc_arena *arena)
{
    struct said said = { .line = slc_read_string(reader, arena, LONGEST_LINE) };
    said.note = slc_read_string(reader, arena, LONGEST_LINE);
    return said;
}

static void add_said(slc_line *line, int32_t rank, struct said said, size_t longest)
{
    slc_line_add(line, "rank %d has ", (int)rank);
    slc_line_add_cut(line, said.line, strlen(said.line), longest);
    if (said.note[0] == '\0')
        return;
    slc_line_add(line, ", because: ");
    slc_line_add_cut(line, said.note, strlen(said.note), longest / 2);
}

/* What sets the lists of two ranks apart; each quotation is of at most `longest` bytes. */
static void add_difference(slc_line *line, const char *what, const slc_word *word, int32_t first, int32_t second, size_t longest)
{
    static const struct said NONE = { "(none)", "" };
    slc_arena arena = { 0 };
    slc_reader a = { .data = word[first].body, .length = word[first].length };
    slc_reader b = { .data = word[second].body, .length = word[second].length };
    struct said of_a = read_said(&a, &arena), of_b = read_said(&b, &arena);
    uint64_t na = slc_read_u64(&a), nb = slc_read_u64(&b), position = 0;
    bool headed = strcmp(of_a.line, of_b.line) != 0;
    for (; !headed && position < na && position < nb && !a.failed && !b.failed; position++) {
        of_a = read_said(&a, &arena);
        of_b = read_said(&b, &arena);
        if (strcmp(of_a.line, of_b.line) != 0)
            break;
    }
    bool ended = !headed && (position == na || position == nb);
    if (ended) {
        of_a = position < na ? read_said(&a, &arena) : NONE;
        of_b = position < nb ? read_said(&b, &arena) : NONE;
    }
    if (ended && na == nb) {
        slc_line_add(line, "ranks %d and %d give the same %llu %ss but not the same digest; one of them spells out what the other leaves "
                     "out, or has other meshes beside", (int)first, (int)second, (unsigned long long)na, what);
    } else {
        slc_line_add(line, "ranks %d and %d differ", (int)first, (int)second);
        if (!headed)
            slc_line_add(line, ", first at %s %llu", what, (unsigned long long)position);
        slc_line_add(line, ": ");
        add_said(line, first, of_a, longest);
        slc_line_add(line, ", ");
        add_said(line, second, of_b, longest);
        if (!headed)
            slc_line_add(line, " (%llu and %llu in all)", (unsigned long long)na, (unsigned long long)nb);
    }
    slc_arena_clear(&arena);
}

/* Second round: heading, u64 count, then that many lines, each with its note, from each kind's speaker; nothing from the rest. */
static sluice_status judge_lines(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    const struct difference *difference = context;
    const kind_set *kinds = &difference->kinds;
    (void)answer;
    if (kinds->ranks != count || kinds->count < 2)
        return slc_fail(error, SLUICE_INTERNAL, "agree", "of %d ranks nobody differs", (int)count);
    char text[TEXT_ROOM];
    slc_line line = slc_line_in(text, sizeof text);
    size_t longest = (TEXT_ROOM / (size_t)(kinds->count - 1) - 250) / 2;
    for (int kind = 1; kind < kinds->count; kind++) {
        slc_line_add(&line, kind == 1 ? "" : "; ");
        add_difference(&line, difference->what, word, kinds->speaker[0], kinds->speaker[kind], longest < LONGEST_LINE ? longest : LONGEST_LINE);
        add_others(&line, kinds, kind);
    }
    add_others(&line, kinds, FURTHER);
    sluice_status status = slc_fail(error, SLUICE_DISAGREE, difference->stage, "%s", text);
    error->rank = kinds->speaker[1];
    return status;
}

static bool is_speaker(int32_t rank, slc_reader *answer)
{
    bool speaks = false;
    for (int kind = 0; kind < MOST_KINDS; kind++)
        speaks |= slc_read_u32(answer) == (uint32_t)rank;
    return speaks;
}

static sluice_status name_difference(slc_group *group, struct difference *difference, const slc_list *list, slc_reader *answer,
                                     slc_deadline deadline, sluice_error *error)
{
    slc_buffer lines = { 0 };
    if (is_speaker(group->rank, answer)) {
        slc_buffer_string(&lines, list->heading);
        slc_buffer_string(&lines, "");
        slc_buffer_u64(&lines, list->count);
        char line[LONGEST_LINE], note[LONGEST_LINE] = "";
        for (size_t i = 0; i < list->count; i++) {
            list->line(list->context, i, line, sizeof line);
            if (list->note != NULL)
                list->note(list->context, i, note, sizeof note);
            slc_buffer_string(&lines, line);
            slc_buffer_string(&lines, note);
        }
    }
    sluice_error failed = SLUICE_ERROR_INIT;
    if (lines.failed)
        slc_fail_memory(&failed, difference->stage, "the lines of a list that differs", lines.length);
    sluice_status status = slc_group_round(group, difference->stage, &failed, lines.data, lines.length, judge_lines, difference, NULL, deadline,
                                           error);
    slc_buffer_clear(&lines);
    return status != SLUICE_OK ? status : slc_fail(error, SLUICE_INTERNAL, difference->stage, "digests differ and lines do not");
}

sluice_status slc_agree_on_list(slc_group *group, const char *stage, const sluice_error *mine, const char *digest, const slc_list *list,
                                slc_buffer *answer, slc_deadline deadline, sluice_error *error)
{
    slc_buffer body = { 0 }, verdict = { 0 };
    struct difference difference = { .stage = stage, .what = list->what };
    bool gives = list->count != SIZE_MAX;
    slc_buffer_u8(&body, gives);
    if (gives) {
        slc_buffer_append(&body, digest, SLC_DIGEST_TEXT - 1);
        slc_buffer_string(&body, list->heading);
        slc_buffer_append(&body, list->extra, list->extra_length);
    }
    sluice_error failed = SLUICE_ERROR_INIT;
    if (mine != NULL && mine->status != SLUICE_OK)
        slc_error_copy(&failed, mine);
    else if (body.failed)
        slc_fail_memory(&failed, stage, "an envelope", list->extra_length);
    sluice_status status = slc_group_round_to(group, stage, &failed, body.data, body.length, judge_digests, &difference,
                                              list->readers, VERDICT_HEAD, &verdict, deadline, error);
    slc_buffer_clear(&body);
    if (status == SLUICE_OK) {
        slc_reader reader = { .data = verdict.data, .length = verdict.length };
        if (slc_read_u8(&reader) == 0) {
            status = name_difference(group, &difference, list, &reader, deadline, error);
        } else if (answer != NULL) {
            (void)slc_read_bytes(&reader, VERDICT_HEAD - 1);
            slc_buffer_append(answer, reader.data + reader.offset, slc_reader_left(&reader));
            answer->failed = answer->failed || reader.failed;
        }
    }
    slc_buffer_clear(&verdict);
    slc_release(difference.kinds.of);
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

static void add_settings(slc_line *line, const slc_word *word, const kind_set *kinds)
{
    for (int kind = 1; kind < kinds->count; kind++) {
        slc_buffer differences = { 0 };
        compare_settings(&word[kinds->speaker[0]], &word[kinds->speaker[kind]], &differences);
        slc_line_add(line, kind == 1 ? "" : "; ");
        slc_line_add_cut(line, differences.data == NULL ? "" : (const char *)differences.data, differences.length,
                         (TEXT_ROOM - 400) / (size_t)(kinds->count - 1) - 100);
        add_others(line, kinds, kind);
        slc_buffer_clear(&differences);
    }
    add_others(line, kinds, FURTHER);
}

static sluice_status judge_settings(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)answer;
    int32_t reference = 0;
    while (reference < count && word[reference].length == 0)
        reference++; /* its preparation failed: it says so in the next round */
    bool same = true;
    for (int32_t i = reference + 1; i < count; i++)
        same = same && (word[i].length == 0
                        || (word[i].length == word[reference].length && memcmp(word[i].body, word[reference].body, word[i].length) == 0));
    if (same)
        return SLUICE_OK;
    kind_set kinds = { 0 };
    sluice_status status = begin_kinds(&kinds, count, error);
    for (int32_t i = 0; i < count && status == SLUICE_OK; i++)
        sort_in(&kinds, word, i, word[i].length);
    if (status == SLUICE_OK) {
        char text[TEXT_ROOM];
        slc_line line = slc_line_in(text, sizeof text);
        add_settings(&line, word, &kinds);
        status = slc_fail(error, SLUICE_DISAGREE, context, "settings must be the same on every rank: %s", text);
        error->rank = kinds.speaker[1];
    }
    slc_release(kinds.of);
    return status;
}

sluice_status slc_agree_on_settings(slc_group *group, const char *stage, const sluice_error *mine, const slc_buffer *lines,
                                    slc_deadline deadline, sluice_error *error)
{
    return slc_group_round(group, stage, mine, lines->data, lines->length, judge_settings, (void *)stage, NULL, deadline, error);
}
