/*
 * version.c: which version the live memory of this world holds. Every rank knows only what it has seen itself: it may have
 * failed alone, or be a fresh process in the place of one that was killed. In round 4 of init each says what it holds, and
 * all end it with one answer.
 */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

enum { LABEL_LONGEST = SLUICE_LABEL_BYTES - 1, REASON_LONGEST = sizeof((slc_session *)0)->unfinished - 1 };

typedef struct holding {
    int32_t rank;
    bool dirty;
    const char *label; /* "" before the first update */
} holding;

static bool read_holding(const slc_word *word, slc_arena *arena, holding *held)
{
    slc_reader reader = { .data = word->body, .length = word->length };
    *held = (holding){ .rank = word->rank, .dirty = slc_read_u8(&reader) != 0 };
    held->label = slc_read_string(&reader, arena, LABEL_LONGEST);
    return !reader.failed;
}

/* Why `one` and the first worker do not hold one version, as a text; nothing where they do. */
static void compare(const holding *first, const holding *one, int32_t trainers, char *why, size_t room)
{
    bool trainer = one->rank < trainers;
    if (one->dirty)
        snprintf(why, room, trainer ? "rank %d sent parts of an update that was not finished"
                                    : "rank %d holds parts of an update that was not finished", one->rank);
    else if (strcmp(one->label, first->label) != 0 && !(trainer && one->label[0] == '\0'))
        snprintf(why, room, "rank %d %s version '%s', rank %d holds '%s'", one->rank, trainer ? "sent" : "holds", one->label,
                 first->rank, first->label);
}

/* Word: u8 dirty, string label. Answer: string label of all, string why there is none. */
static sluice_status judge_versions(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    const slc_session *session = context;
    slc_arena arena = { 0 };
    holding first, one;
    char why[REASON_LONGEST + 1] = "";
    bool good = read_holding(&word[session->info.trainers], &arena, &first);
    for (int32_t i = 0; good && i < count && why[0] == '\0'; i++) {
        good = read_holding(&word[i], &arena, &one);
        if (good)
            compare(&first, &one, session->info.trainers, why, sizeof why);
    }
    if (good) {
        slc_buffer_string(answer, first.label);
        slc_buffer_string(answer, why);
    }
    slc_arena_clear(&arena);
    return good ? SLUICE_OK : slc_fail(error, SLUICE_INTERNAL, word[0].stage, "a rank's version cannot be read");
}

sluice_status slc_agree_on_version(sluice_engine *engine, const sluice_error *mine, slc_deadline deadline, sluice_error *error)
{
    slc_session *session = engine->session;
    slc_buffer word = { 0 }, answer = { 0 };
    sluice_error failed = SLUICE_ERROR_INIT;
    slc_buffer_u8(&word, engine->dirty);
    slc_buffer_string(&word, slc_label(engine));
    if (mine->status != SLUICE_OK)
        slc_error_copy(&failed, mine);
    else if (word.failed)
        slc_fail_memory(&failed, "runtime", "a version", SLUICE_LABEL_BYTES);
    sluice_status status = slc_group_round(session->group, "runtime", &failed, word.data, word.length, judge_versions, session, &answer,
                                           deadline, error);
    if (status == SLUICE_OK) {
        slc_reader reader = { .data = answer.data, .length = answer.length };
        slc_arena arena = { 0 };
        const char *label = slc_read_string(&reader, &arena, LABEL_LONGEST);
        const char *why = slc_read_string(&reader, &arena, REASON_LONGEST);
        if (reader.failed)
            status = slc_fail(error, SLUICE_NO_MEMORY, "runtime", "the version that all hold cannot be kept");
        snprintf(session->version, sizeof session->version, "%s", label);
        snprintf(session->unfinished, sizeof session->unfinished, "%s", why);
        slc_arena_clear(&arena);
    }
    slc_buffer_clear(&word);
    slc_buffer_clear(&answer);
    return status;
}

void slc_take_version(sluice_engine *engine)
{
    const slc_session *session = engine->session;
    engine->dirty = session->unfinished[0] != '\0';
    if (engine->dirty)
        slc_say(&engine->log, SLUICE_LOG_WARN, "init: the next update must be a whole one: %s", session->unfinished);
    else
        slc_label_set(engine, session->version);
}

const char *slc_label(const sluice_engine *engine)
{
    return (const char *)engine->labels.word[engine->labels.count % 2];
}

/* Words are stored with release and read with acquire: who reads one of a new label sees that the one before it was counted. */
void slc_label_set(sluice_engine *engine, const char *label)
{
    slc_labels *labels = &engine->labels;
    uint64_t next = labels->count + 1, word[SLUICE_LABEL_BYTES / 8] = { 0 };
    memcpy(word, label, strnlen(label, SLUICE_LABEL_BYTES - 1));
    for (size_t i = 0; i < SLUICE_LABEL_BYTES / 8; i++)
        __atomic_store_n(&labels->word[next % 2][i], word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&labels->count, next, __ATOMIC_RELEASE);
}

const char *sluice_version(const sluice_engine *engine)
{
    return atomic_load(&engine->dirty) ? "dirty" : slc_label(engine);
}

void sluice_copy_version(const sluice_engine *engine, char *text)
{
    const slc_labels *labels = &engine->labels;
    uint64_t word[SLUICE_LABEL_BYTES / 8], count;
    if (atomic_load(&engine->dirty)) {
        snprintf(text, SLUICE_LABEL_BYTES, "dirty");
        return;
    }
    do { /* again where two labels were set meanwhile */
        count = __atomic_load_n(&labels->count, __ATOMIC_ACQUIRE);
        for (size_t i = 0; i < SLUICE_LABEL_BYTES / 8; i++)
            word[i] = __atomic_load_n(&labels->word[count % 2][i], __ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&labels->count, __ATOMIC_RELAXED) != count);
    memcpy(text, word, sizeof word);
}
