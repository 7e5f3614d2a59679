/*
 * habit.c: an update asks, as a rule, for what the one before it asked for: the same names, in the same batches. What was looked
 * up and computed of them then is kept, so that a batch which comes again costs a comparison: its names stand side by side
 * here, and all else that would be touched for each of them is cold after gigabytes have moved. Owns what is kept.
 */
#include "engine/engine.h"

#include <string.h>

typedef struct slc_usual {
    slc_known list;
    size_t names; /* where its names begin */
} slc_usual;

void slc_habit_clear(slc_habit *habit)
{
    slc_buffer_clear(&habit->names);
    slc_release(habit->param);
    slc_release(habit->batch);
    *habit = (slc_habit){ 0 };
}

void slc_habit_begin(slc_session *session)
{
    if (session->habit.plan != session->plans)
        slc_habit_clear(&session->habit);
    session->habit.plan = session->plans;
    session->habit.next = 0;
}

const slc_known *slc_habit_find(slc_session *session, const char *const *names, size_t count)
{
    const slc_habit *habit = &session->habit;
    if (count == 0 || habit->next == habit->count || habit->batch[habit->next].list.count != count)
        return NULL;
    const slc_usual *usual = &habit->batch[habit->next];
    const char *name = (const char *)habit->names.data + usual->names;
    for (size_t i = 0; i < count; i++) {
        if (names[i] == NULL || strcmp(names[i], name) != 0)
            return NULL;
        name += strlen(name) + 1;
    }
    return &usual->list;
}

/* What the last update asked for from here on is another thing now. */
static void drop_rest(slc_habit *habit)
{
    if (habit->next == habit->count)
        return;
    habit->names.length = habit->batch[habit->next].names;
    habit->nparams = (size_t)(habit->batch[habit->next].list.param - habit->param);
    habit->count = habit->next;
}

static bool has_room(slc_habit *habit, size_t nplan, size_t count)
{
    if (habit->param == NULL)
        habit->param = slc_allocate_zeroed(nplan, sizeof *habit->param);
    if (habit->param == NULL || count > nplan - habit->nparams)
        return false;
    return SLC_ROOM(habit->batch, habit->capacity, habit->count, 4);
}

void slc_habit_keep(slc_session *session, const slc_known *known, bool full, const char names[SLC_DIGEST_TEXT])
{
    slc_habit *habit = &session->habit;
    const slc_plan *plan = session->build->plan;
    if (known != NULL) {
        habit->next++;
        return;
    }
    drop_rest(habit);
    if (session->nasked == 0 || !has_room(habit, slc_plan_count(plan), session->nasked))
        return;
    slc_usual usual = { .list = { .param = habit->param + habit->nparams, .count = session->nasked, .full = full }, .names = habit->names.length };
    memcpy(usual.list.names, names, SLC_DIGEST_TEXT);
    for (size_t i = 0; i < session->nasked; i++) {
        const char *name = slc_plan_at(plan, session->asked[i])->name;
        usual.list.param[i] = session->asked[i];
        slc_buffer_append(&habit->names, name, strlen(name) + 1);
    }
    if (habit->names.failed) {
        slc_habit_clear(habit);
        habit->plan = session->plans;
        return;
    }
    habit->nparams += session->nasked;
    habit->batch[habit->count++] = usual;
    habit->next = habit->count;
}
