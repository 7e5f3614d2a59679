/*
 * agree.h: rounds. In a round every rank sends one envelope to rank 0; rank 0 judges them all and every rank ends the
 * round with the same verdict. Rounds are numbered; all ranks must call the same rounds in the same order.
 */
#ifndef SLC_CONTROL_AGREE_H
#define SLC_CONTROL_AGREE_H

#include "control/rendezvous.h"

/* One rank's word. With a status other than OK, `text` is its error and the body is ignored. */
typedef struct slc_word {
    int32_t rank;
    sluice_status status;
    const char *stage; /* of the error; where there is none, of the round */
    const char *text;
    const void *body;
    size_t length;
} slc_word;

/*
 * The judge runs on rank 0 only, with all words in rank order, none of them an error. It returns OK and may write an answer
 * that every rank gets, or fills *error: the verdict of every rank. Pure: no I/O, no waiting.
 */
typedef sluice_status (*slc_judge)(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error);

/*
 * One round named `stage` ("source", "destination", "data plane", "runtime", "batch", ...). `mine` NULL or OK: `body` is
 * this rank's word; otherwise this rank's error is. On OK *answer (may be NULL) holds the judge's answer, to be cleared by
 * the caller. If any rank said an error, the verdict on every rank has the status of the first such rank, its rank, and a
 * text that lists every failing rank with its cause. Body bound: 1 GiB a rank.
 * Ranks that are in different rounds get DISAGREE, naming each rank's round. A refused round leaves the group whole: the
 * next one works.
 * A rank that is lost, has left, is silent beyond the deadline or aborts breaks the group: PEER or TIMEOUT or CANCELLED,
 * naming the ranks, on all. The soonest deadline of the ranks in the round holds for all;
 * other ranks than 0 give rank 0 a fifth of a second more to say who is missing. Once rank 0 has judged, its own
 * result is the verdict, also when a rank is lost while it is sent: the next round then says so.
 */
sluice_status slc_group_round(slc_group *group, const char *stage, const sluice_error *mine, const void *body, size_t length,
                              slc_judge judge, void *context, slc_buffer *answer, slc_deadline deadline, sluice_error *error);

/* The same, where of the judge's answer only the ranks below `readers` (at least 1) get more than its first `head` bytes. */
sluice_status slc_group_round_to(slc_group *group, const char *stage, const sluice_error *mine, const void *body, size_t length,
                                 slc_judge judge, void *context, int32_t readers, size_t head, slc_buffer *answer, slc_deadline deadline,
                                 sluice_error *error);

/*
 * This rank's word of one round, an error, without waiting for the others: they hear it when they come to that round, which
 * ends for them as any refused round. Waits only for an earlier round that this rank went on from so; OK once the word is
 * said, else what broke the group. Whoever waits inside slc_group_check is told to come, see slc_group_recalled.
 */
sluice_status slc_group_say(slc_group *group, const char *stage, const sluice_error *mine, slc_deadline deadline, sluice_error *error);

/* Whether the next round of this rank will be refused whatever it says, since another rank said an error for it. */
bool slc_group_recalled(slc_group *group);

/*
 * Each rank gives a card and lists the ranks whose cards it wants; each gets just those. cards[i] and lengths[i] answer
 * wanted[i] and point into *store, which the caller clears. Counts as one round.
 */
sluice_status slc_group_exchange(slc_group *group, const char *stage, const sluice_error *mine, const void *card, size_t length,
                                 const int32_t *wanted, size_t nwanted, slc_buffer *store, const unsigned char **cards, size_t *lengths,
                                 slc_deadline deadline, sluice_error *error);

/*
 * Tells all ranks that this one gives up; they find it in their current or next round. Does not wait for answers. Logs why, as an
 * error, unless that is what broke the group, which was logged then.
 */
void slc_group_abort(slc_group *group, const sluice_error *why);

/*
 * Without waiting: whether the group still stands, for use inside long waits of a transport. Any rank: an ABORT that came,
 * a connection that ended. Rank 0 also passes aborts on. OK, or the cause. Words for the next round that come early are
 * kept; a rank that left in good order is no error before the next round. Costs one system call when nothing came.
 */
sluice_status slc_group_check(slc_group *group, sluice_error *error);

#endif
