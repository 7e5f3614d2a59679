/* attendance.c: see attendance.h; changes nothing. */
#include "control/attendance.h"

#include "base/error.h"
#include "control/text.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_ROOM = 600 };

static const char STAGE[] = "rendezvous";

const char *slc_attendance_holder(const slc_attendance *at, int32_t rank)
{
    if (rank == 0)
        return at->own_who;
    return at->member[rank] == NULL || at->member[rank]->who == NULL ? "unknown" : at->member[rank]->who;
}

static int by_rank(const void *a, const void *b)
{
    const slc_visitor *x = *(slc_visitor *const *)a, *y = *(slc_visitor *const *)b;
    return x->claim.rank < y->claim.rank ? -1 : x->claim.rank > y->claim.rank;
}

/* "rank 2 is claimed by (...) and (...); rank 3 ..."; *first is the lowest such rank. */
static void add_rivals(const slc_attendance *at, slc_line *line, int32_t *first)
{
    const slc_visitor_list *rivals = &at->visitors.list[SLC_RIVAL];
    size_t count = (size_t)rivals->count, filled = 0;
    slc_visitor **rival = slc_allocate(count * sizeof *rival);
    slc_visitor *only = rivals->first, **sorted = rival == NULL ? &only : rival;
    for (slc_visitor *one = rivals->first; rival != NULL && one != NULL; one = one->next)
        rival[filled++] = one;
    if (rival == NULL)
        filled = count > 0;
    else
        qsort(rival, filled, sizeof *rival, by_rank);
    for (size_t i = 0, claimants; i < filled; i += claimants) {
        int32_t rank = sorted[i]->claim.rank;
        for (claimants = 1; i + claimants < filled && sorted[i + claimants]->claim.rank == rank;)
            claimants++;
        if (i > 0 && slc_line_left(line) < 2 * NAME_ROOM) {
            slc_line_add(line, "; and %zu more claims", filled - i);
            break;
        }
        slc_line_add(line, "%srank %d is claimed by (%s)", i == 0 ? "" : "; ", rank, slc_attendance_holder(at, rank));
        size_t named = 0;
        for (; named < claimants && slc_line_left(line) > NAME_ROOM; named++)
            slc_line_add(line, " and (%s)", sorted[i + named]->who == NULL ? "unknown" : sorted[i + named]->who);
        if (named < claimants)
            slc_line_add(line, " and %zu more", claimants - named);
    }
    *first = filled > 0 ? sorted[0]->claim.rank : -1;
    slc_release(rival);
}

typedef enum presence { HERE, MISSING, GAVE_UP } presence;

/* Deadlines that were meant to be one pass within this time: ranks start apart, and are told a little early. */
static const int64_t ONE_DEADLINE_NS = 1000000000;

/* Who gave up at about this time waited as long as the others did. */
static presence presence_of(const slc_attendance *at, int32_t rank)
{
    if (rank == 0 || at->member[rank] != NULL)
        return HERE;
    if (at->gave_up_ns[rank] == 0)
        return MISSING;
    return slc_now_ns() - at->gave_up_ns[rank] < ONE_DEADLINE_NS ? HERE : GAVE_UP;
}

/* "ranks 0-2"; who gave up earlier is missing, too. Returns how many. */
static size_t add_present(const slc_attendance *at, slc_line *line, presence which)
{
    int32_t world = at->world_size;
    int32_t *rank = slc_allocate((size_t)world * sizeof *rank);
    size_t count = 0;
    for (int32_t i = 0; rank != NULL && i < world; i++) {
        presence found = presence_of(at, i);
        if (found == which || (which == MISSING && found == GAVE_UP))
            rank[count++] = i;
    }
    if (count > 0)
        slc_line_add_ranks(line, rank, count, NAME_ROOM);
    else if (which != GAVE_UP)
        slc_line_add(line, rank == NULL ? "too many to say without memory" : "none");
    slc_release(rank);
    return count;
}

static slc_line line_after(sluice_error *error)
{
    return (slc_line){ .text = error->text, .room = sizeof error->text, .length = strlen(error->text) };
}

void slc_attendance_overfull(const slc_attendance *at, sluice_error *error)
{
    slc_fail(error, SLUICE_DISAGREE, STAGE, "refused: as many processes came as the world of %d has ranks, but ",
             at->world_size);
    /* The missing ranks come last, so they get their room first. */
    char missing[NAME_ROOM + 64];
    slc_line tail = slc_line_in(missing, sizeof missing);
    (void)add_present(at, &tail, MISSING);
    slc_line line = line_after(error);
    line.room -= tail.length + 16;
    int32_t first;
    add_rivals(at, &line, &first);
    line.room = sizeof error->text;
    slc_line_add(&line, "; missing: %s", missing);
    error->rank = first;
}

void slc_attendance_rivals(const slc_attendance *at, sluice_error *error)
{
    slc_fail(error, SLUICE_DISAGREE, STAGE, "refused: ");
    slc_line line = line_after(error);
    add_rivals(at, &line, &error->rank);
}

void slc_attendance_late(const slc_attendance *at, slc_deadline deadline, sluice_error *error)
{
    int32_t came = 0, first;
    for (int32_t i = 0; i < at->world_size; i++)
        came += presence_of(at, i) == HERE;
    slc_fail(error, SLUICE_TIMEOUT, STAGE, "%d of %d ranks came within %.3g s: ", came, at->world_size, deadline.seconds);
    slc_line line = line_after(error);
    (void)add_present(at, &line, HERE);
    slc_line_add(&line, "; missing: ");
    (void)add_present(at, &line, MISSING);
    size_t before = line.length;
    slc_line_add(&line, "; before that, ");
    if (add_present(at, &line, GAVE_UP) > 0)
        slc_line_add(&line, " came and gave up");
    else
        line.text[line.length = before] = '\0';
    slc_line_add(&line, "; rank 0 listens on %s", at->listening);
    if (at->visitors.list[SLC_RIVAL].count > 0) {
        slc_line_add(&line, "; ");
        add_rivals(at, &line, &first);
    }
    if (at->turned_away > 0)
        slc_line_add(&line, "; %llu connection%s turned away, the last: %s", (unsigned long long)at->turned_away,
                     at->turned_away == 1 ? " was" : "s were", at->last_turned_away);
    for (int32_t i = 1; i < at->world_size && error->rank < 0; i++)
        if (presence_of(at, i) != HERE)
            error->rank = i;
}
