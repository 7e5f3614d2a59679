/* round.c: see round.h. Owns the words of a round while it lasts. */
#include "control/round.h"

#include "base/error.h"
#include "base/flag.h"
#include "control/group.h"
#include "control/word.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- rank 0: gathering ---- */

/* A rank that said its word before it left is heard all the same. */
static bool left_silent(const slc_link *link)
{
    return link->left && !link->has_word;
}

/* Which links are `missing` a word (or, with `leavers`, have left without), as a text, and the first of them. */
static int32_t add_links(slc_group *group, slc_line *line, bool leavers, sluice_error *error)
{
    struct slc_group_state *state = group->state;
    int32_t first = -1, count = 0;
    int32_t *rank = slc_allocate((size_t)state->nlinks * sizeof *rank);
    for (int32_t i = 1; i < state->nlinks; i++) {
        if (leavers ? !left_silent(&state->link[i]) : state->link[i].has_word)
            continue;
        if (count++ == 0)
            first = i;
        if (rank != NULL)
            rank[count - 1] = i;
    }
    if (count == 1 || rank == NULL) {
        char name[SLC_WHO_TEXT + 32];
        slc_group_name(group, first, name, sizeof name);
        slc_line_add(line, "%s", name);
        if (count > 1)
            slc_line_add(line, " and %d more", count - 1);
    } else {
        slc_line_add_ranks(line, rank, (size_t)count, SLUICE_ERROR_TEXT / 2);
    }
    slc_release(rank);
    error->rank = first;
    return count;
}

static void break_for_leavers(slc_group *group, const char *stage)
{
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_fail(&cause, SLUICE_PEER, stage, "%s", "");
    slc_line line = { .text = cause.text, .room = sizeof cause.text, .length = strlen(cause.text) };
    int32_t count = add_links(group, &line, true, &cause);
    slc_line_add(&line, count == 1 ? " has left" : " have left");
    slc_group_break(group, &cause, NULL);
}

static void break_for_silence(slc_group *group, const char *stage, double seconds)
{
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_fail(&cause, SLUICE_TIMEOUT, stage, "no word from ");
    slc_line line = { .text = cause.text, .room = sizeof cause.text, .length = strlen(cause.text) };
    add_links(group, &line, false, &cause);
    slc_line_add(&line, " within %.3g s", seconds);
    slc_group_break(group, &cause, NULL);
}

/* The soonest deadline of rank 0 and of the ranks whose word is there: each must hear the verdict before its own. */
static slc_deadline soonest(const slc_group *group, slc_deadline deadline)
{
    return group->state->words == 0 ? deadline : slc_deadline_sooner(deadline, group->state->until);
}

/* Whether every word is there; breaks the group where one cannot come any more. */
static bool all_said(slc_group *group, const char *stage, slc_deadline deadline)
{
    struct slc_group_state *state = group->state;
    if (state->words == state->nlinks - 1)
        return true;
    for (int32_t i = 1; state->leavers > 0 && i < state->nlinks; i++)
        if (left_silent(&state->link[i])) {
            break_for_leavers(group, stage);
            return false;
        }
    slc_deadline until = soonest(group, deadline);
    if (slc_deadline_passed(until))
        break_for_silence(group, stage, until.seconds);
    return false;
}

static sluice_status gather(slc_group *group, const slc_round *round, sluice_error *error)
{
    while (!group->broken && !all_said(group, round->stage, round->deadline))
        if (!group->broken && !slc_group_cancelled(group, round->stage))
            slc_group_pump(group, round->stage, slc_group_slice(group, soonest(group, round->deadline)));
    return group->broken ? slc_group_cause(group, error) : SLUICE_OK;
}

/* ---- rank 0: judging ---- */

typedef struct hearing {
    slc_word *word;
    slc_envelope *envelope; /* [0] is rank 0's own and mostly unused */
    slc_saying *saying;
    slc_arena arena;
} hearing;

static sluice_status open_hearing(const slc_group *group, hearing *all, sluice_error *error)
{
    size_t count = (size_t)group->world_size;
    all->word = slc_arena_take(&all->arena, count, sizeof *all->word);
    all->envelope = slc_arena_take(&all->arena, count, sizeof *all->envelope);
    all->saying = slc_arena_take(&all->arena, count, sizeof *all->saying);
    if (all->word == NULL || all->envelope == NULL || all->saying == NULL)
        return slc_fail_memory(error, "control", "the words of a round", count * (sizeof *all->word + sizeof *all->envelope));
    return SLUICE_OK;
}

static sluice_status hear(const slc_group *group, const slc_round *round, hearing *all, sluice_error *error)
{
    sluice_status status = open_hearing(group, all, error);
    if (status != SLUICE_OK)
        return status;
    bool failed = round->mine != NULL && round->mine->status != SLUICE_OK;
    all->word[0] = (slc_word){ .rank = 0, .stage = round->stage, .text = "", .body = round->body, .length = round->length };
    if (failed)
        all->word[0] = (slc_word){ .status = round->mine->status, .stage = round->mine->stage, .text = round->mine->text };
    for (int32_t i = 1; i < group->world_size; i++) {
        const slc_frame *frame = &group->state->link[i].word;
        slc_envelope *envelope = &all->envelope[i];
        sluice_error said = SLUICE_ERROR_INIT;
        /* It was read once when it came; it can be read again. */
        slc_word_read_envelope(frame->payload, frame->header.length, envelope, &said);
        slc_word *word = &all->word[i];
        *word = (slc_word){ .rank = i, .status = envelope->status, .stage = round->stage, .text = "", .body = envelope->body,
                            .length = envelope->length };
        if (envelope->status == SLUICE_OK)
            continue;
        word->stage = slc_arena_text(&all->arena, said.stage, strlen(said.stage));
        word->text = slc_arena_text(&all->arena, said.text, strlen(said.text));
        if (word->stage == NULL || word->text == NULL)
            return slc_fail_memory(error, "control", "the errors of a round", sizeof said);
    }
    return SLUICE_OK;
}

static sluice_status sayings_failed(const char *stage, sluice_status status, const char *what, slc_saying *saying, size_t count,
                                    slc_show show, sluice_error *error)
{
    int32_t first = saying[0].rank;
    slc_fail(error, status, stage, "%s: ", what);
    slc_line line = { .text = error->text, .room = sizeof error->text, .length = strlen(error->text) };
    slc_line_add_sayings(&line, saying, count, show);
    error->rank = first;
    return status;
}

/* Every rank's error, where there is one. */
static sluice_status refuse(const slc_round *round, hearing *all, int32_t count, sluice_error *error)
{
    size_t failing = 0;
    sluice_status first = SLUICE_OK;
    for (int32_t i = 0; i < count; i++) {
        const slc_word *word = &all->word[i];
        if (word->status == SLUICE_OK)
            continue;
        if (failing == 0)
            first = word->status;
        const char *text = slc_word_bare(round->stage, word->text);
        if (text[0] == '\0')
            text = sluice_status_text(word->status);
        all->saying[failing++] = (slc_saying){ .rank = i, .key = text, .length = strlen(text) };
    }
    if (failing == 0)
        return SLUICE_OK;
    return sayings_failed(round->stage, first, "refused", all->saying, failing, slc_show_text, error);
}

/* All ranks must be in the same round: a host that calls update on one rank and finish on another hears so. */
static sluice_status same_round(const slc_round *round, hearing *all, int32_t count, sluice_error *error)
{
    bool same = true;
    for (int32_t i = 1; i < count && same; i++)
        same = all->envelope[i].kind == round->kind && strcmp(all->envelope[i].stage, round->stage) == 0;
    if (same)
        return SLUICE_OK;
    for (int32_t i = 0; i < count; i++) {
        char *stage = all->envelope[i].stage;
        bool cards = (i == 0 ? round->kind : all->envelope[i].kind) == SLC_ROUND_EXCHANGE;
        if (i == 0)
            snprintf(stage, sizeof all->envelope[i].stage, "%s", round->stage);
        size_t length = strlen(stage);
        if (cards && length + 6 < sizeof all->envelope[i].stage)
            length += (size_t)snprintf(stage + length, sizeof all->envelope[i].stage - length, " cards");
        all->saying[i] = (slc_saying){ .rank = i, .key = stage, .length = length };
    }
    return sayings_failed(round->stage, SLUICE_DISAGREE, "ranks are in different rounds", all->saying, (size_t)count, slc_show_quoted,
                          error);
}

static sluice_status judge(const slc_group *group, const slc_round *round, hearing *all, slc_buffer *answer, sluice_error *error)
{
    sluice_status status = hear(group, round, all, error);
    if (status == SLUICE_OK)
        status = refuse(round, all, group->world_size, error);
    if (status == SLUICE_OK)
        status = same_round(round, all, group->world_size, error);
    if (status == SLUICE_OK && round->judge != NULL)
        status = round->judge(round->context, all->word, group->world_size, answer, error);
    if (status == SLUICE_OK && answer->failed)
        status = slc_fail_memory(error, round->stage, "the answer of a round", answer->length);
    if (status == SLUICE_OK && answer->length > slc_frame_longest(SLC_FRAME_VERDICT) - 4)
        status = slc_fail(error, SLUICE_INVALID, round->stage, "the answer (%zu bytes) must have at most %u bytes", answer->length,
                          slc_frame_longest(SLC_FRAME_VERDICT) - 4);
    return status;
}

/* ---- rank 0: verdicts ---- */

static slc_payload *verdict_of(sluice_status status, const sluice_error *error, const slc_buffer *answer)
{
    slc_buffer bytes = { 0 };
    slc_buffer_u32(&bytes, (uint32_t)status);
    if (status == SLUICE_OK)
        slc_buffer_append(&bytes, answer->data, answer->length);
    else
        slc_word_write_error(&bytes, error);
    return slc_payload_of(&bytes);
}

static sluice_status put_verdict(slc_group *group, const char *stage, int32_t link, uint32_t tag, slc_payload *verdict)
{
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = verdict == NULL ? slc_fail_memory(&error, stage, "a verdict", 0)
                                           : slc_group_put(group, stage, link, SLC_FRAME_VERDICT, tag, verdict, &error);
    /* A closed link was lost after its word came; the group is broken by it already. */
    if (status != SLUICE_OK && group->channel[link] != NULL)
        slc_group_give_up(group, &error);
    return status;
}

static void deliver(slc_group *group, const slc_round *round, uint32_t tag, hearing *all, sluice_status status, const sluice_error *error,
                    slc_buffer *answer)
{
    bool each = status == SLUICE_OK && round->answer_each != NULL;
    bool some = status == SLUICE_OK && round->readers > 0 && round->readers < group->world_size && answer->length > round->head;
    const slc_buffer head = { .data = answer->data, .length = round->head };
    slc_payload *common = each ? NULL : verdict_of(status, error, answer);
    slc_payload *brief = some ? verdict_of(status, error, &head) : NULL;
    for (int32_t i = 1; i < group->world_size; i++) {
        if (!each) {
            put_verdict(group, round->stage, i, tag, some && i >= round->readers ? brief : common);
            continue;
        }
        slc_buffer bytes = { 0 };
        if (round->answer_each(round->context, all->word, i, &bytes, NULL) != SLUICE_OK)
            bytes.failed = true;
        slc_payload *own = bytes.failed ? NULL : verdict_of(SLUICE_OK, error, &bytes);
        slc_buffer_clear(&bytes);
        put_verdict(group, round->stage, i, tag, own);
        slc_payload_release(own);
    }
    slc_payload_release(common);
    slc_payload_release(brief);
    for (int32_t i = 1; i < group->world_size; i++)
        slc_group_drop_word(group, i);
}

static sluice_status lead(slc_group *group, const slc_round *round, uint32_t tag, slc_buffer *answer, sluice_error *error)
{
    hearing all = { 0 };
    sluice_error verdict = SLUICE_ERROR_INIT;
    if (round->mine != NULL && round->mine->status != SLUICE_OK)
        slc_group_recall(group, tag);
    sluice_status status = gather(group, round, error);
    if (status != SLUICE_OK)
        return status;
    slc_deadline deadline = soonest(group, round->deadline);
    slc_group_unlock(group); /* words that came stay as they are; beats go on, however long the judge takes */
    status = judge(group, round, &all, answer, &verdict);
    slc_group_lock(group);
    if (status == SLUICE_OK && round->answer_each != NULL)
        status = round->answer_each(round->context, all.word, 0, answer, &verdict);
    if (status != SLUICE_OK) {
        verdict.status = status;
        slc_buffer_clear(answer);
    }
    deliver(group, round, tag, &all, status, &verdict, answer);
    while (group->state->unsent > 0 && !slc_deadline_passed(deadline) && !slc_flag_raised(group->cancelled))
        slc_group_pump(group, round->stage, slc_group_slice(group, deadline));
    slc_arena_clear(&all.arena);
    if (status != SLUICE_OK)
        slc_error_copy(error, &verdict);
    return status;
}

/* ---- other ranks ---- */

static sluice_status send_envelope(slc_group *group, const slc_round *round, uint32_t tag)
{
    slc_buffer bytes = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    slc_word_write_envelope(&bytes, round->deadline, round->kind, round->stage, round->mine, round->body, round->length);
    size_t wanted = bytes.length;
    slc_payload *envelope = slc_payload_of(&bytes);
    sluice_status status = envelope == NULL ? slc_fail_memory(&error, round->stage, "an envelope", wanted)
                                            : slc_group_put(group, round->stage, 0, SLC_FRAME_ENVELOPE, tag, envelope, &error);
    slc_payload_release(envelope);
    if (status != SLUICE_OK)
        slc_group_give_up(group, &error);
    return status;
}

static sluice_status read_verdict(slc_group *group, const slc_round *round, slc_buffer *answer, sluice_error *error)
{
    slc_frame *frame = &group->state->link[0].word;
    slc_reader reader = { .data = frame->payload, .length = frame->header.length };
    sluice_status status = (sluice_status)slc_read_u32(&reader);
    if (!reader.failed && status == SLUICE_OK) {
        answer->length = slc_reader_left(&reader);
        answer->capacity = frame->header.length;
        answer->data = frame->payload;
        if (answer->length > 0)
            memmove(answer->data, answer->data + reader.offset, answer->length);
        frame->payload = NULL;
    } else {
        sluice_error said = SLUICE_ERROR_INIT;
        slc_word_read_error(&reader, &said);
        if (reader.failed) {
            slc_fail(&said, SLUICE_PEER, round->stage, "the verdict of rank 0 cannot be read");
            slc_group_break(group, &said, NULL);
        }
        status = slc_error_copy(error, &said);
    }
    slc_group_drop_word(group, 0);
    return status;
}

/* Rank 0 cannot answer any more, or has not in time. */
static void break_for_leader(slc_group *group, sluice_status status, const char *stage, const char *before, const char *after, double seconds)
{
    char name[SLC_WHO_TEXT + 32], within[40] = "";
    sluice_error cause = SLUICE_ERROR_INIT;
    slc_group_name(group, 0, name, sizeof name);
    if (status == SLUICE_TIMEOUT)
        snprintf(within, sizeof within, " within %.3g s", seconds);
    slc_fail(&cause, status, stage, "%s%s%s%s", before, name, after, within);
    cause.rank = 0;
    slc_group_break(group, &cause, NULL);
}

/* Whether a verdict came: one that came before the group broke still counts, every rank has the same. */
static bool await_verdict(slc_group *group, const char *stage, slc_deadline deadline)
{
    const slc_link *leader = &group->state->link[0];
    slc_deadline patience = slc_word_patience(deadline);
    while (!group->broken && !leader->has_word) {
        if (leader->left)
            break_for_leader(group, SLUICE_PEER, stage, "", " has left", 0);
        else if (slc_deadline_passed(patience))
            break_for_leader(group, SLUICE_TIMEOUT, stage, "no verdict from ", "", deadline.seconds);
        else if (!slc_group_cancelled(group, stage))
            slc_group_pump(group, stage, slc_group_slice(group, patience));
    }
    return leader->has_word;
}

static sluice_status follow(slc_group *group, const slc_round *round, uint32_t tag, slc_buffer *answer, sluice_error *error)
{
    if (!group->state->link[0].left)
        send_envelope(group, round, tag);
    return await_verdict(group, round->stage, round->deadline) ? read_verdict(group, round, answer, error) : slc_group_cause(group, error);
}

/* ---- rounds that a rank does not wait for ---- */

static slc_round owed_round(const slc_group *group, slc_deadline deadline)
{
    const sluice_error *said = &group->state->owed;
    return (slc_round){ .stage = said->stage, .kind = SLC_ROUND_AGREE, .mine = said, .deadline = deadline };
}

/* Waits for the end of the round that this rank went on from; what it comes to was said to the host already. */
static sluice_status settle(slc_group *group, const char *stage, slc_deadline deadline, sluice_error *error)
{
    struct slc_group_state *state = group->state;
    if (!state->owes || group->broken)
        return group->broken ? slc_group_cause(group, error) : SLUICE_OK;
    state->owes = false;
    if (group->rank == 0) {
        slc_buffer none = { 0 };
        slc_round round = owed_round(group, deadline);
        (void)lead(group, &round, state->owed_tag, &none, NULL);
        slc_buffer_clear(&none);
    } else if (await_verdict(group, stage, deadline)) {
        slc_group_drop_word(group, 0);
    }
    return group->broken ? slc_group_cause(group, error) : SLUICE_OK;
}

void slc_round_settle(slc_group *group)
{
    struct slc_group_state *state = group->state;
    if (group->rank != 0 || !state->owes || group->broken)
        return;
    slc_round round = owed_round(group, slc_deadline_in(HUGE_VAL));
    if (!all_said(group, round.stage, round.deadline))
        return;
    state->owes = false;
    hearing all = { 0 };
    slc_buffer none = { 0 };
    sluice_error verdict = SLUICE_ERROR_INIT;
    sluice_status status = judge(group, &round, &all, &none, &verdict);
    deliver(group, &round, state->owed_tag, &all, status, &verdict, &none);
    slc_arena_clear(&all.arena);
}

sluice_status slc_group_say(slc_group *group, const char *stage, const sluice_error *mine, slc_deadline deadline, sluice_error *error)
{
    slc_group_lock(group);
    struct slc_group_state *state = group->state;
    sluice_status status = settle(group, stage, deadline, error);
    if (status == SLUICE_OK) {
        state->owes = true;
        state->owed_tag = group->rounds++;
        slc_error_copy(&state->owed, mine);
        snprintf(state->owed.stage, sizeof state->owed.stage, "%s", stage);
        slc_round round = owed_round(group, slc_deadline_in(HUGE_VAL)); /* nobody need hurry for its sake */
        if (group->rank == 0)
            slc_group_recall(group, state->owed_tag);
        else if (!state->link[0].left)
            (void)send_envelope(group, &round, state->owed_tag);
        if (group->broken)
            status = slc_group_cause(group, error);
    }
    slc_group_unlock(group);
    return status;
}

sluice_status slc_round_run(slc_group *group, const slc_round *round, slc_buffer *answer, sluice_error *error)
{
    *answer = (slc_buffer){ 0 };
    slc_round held = *round;
    sluice_error mine = SLUICE_ERROR_INIT;
    char stage[SLC_STAGE_LONGEST + 1];
    snprintf(stage, sizeof stage, "%s", round->stage);
    held.stage = stage;
    size_t longest = slc_frame_longest(SLC_FRAME_ENVELOPE) - SLC_ENVELOPE_HEAD;
    if ((held.mine == NULL || held.mine->status == SLUICE_OK) && held.length > longest) {
        slc_fail(&mine, SLUICE_INVALID, stage, "this rank's word (%zu bytes) must have at most %zu bytes", held.length, longest);
        held.mine = &mine;
    }
    slc_group_lock(group);
    sluice_status status = settle(group, stage, round->deadline, error);
    if (status == SLUICE_OK && group->rank == 0)
        status = lead(group, &held, group->rounds++, answer, error);
    else if (status == SLUICE_OK)
        status = follow(group, &held, group->rounds++, answer, error);
    slc_group_unlock(group);
    return status;
}
