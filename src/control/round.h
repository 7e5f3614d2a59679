/*
 * round.h: one round as both ends run it: envelopes to rank 0, a judgement, verdicts back. agree.c and exchange.c say what
 * is judged. Private to control.
 */
#ifndef SLC_CONTROL_ROUND_H
#define SLC_CONTROL_ROUND_H

#include "control/agree.h"

enum { SLC_ROUND_AGREE = 0, SLC_ROUND_EXCHANGE = 1 };

typedef struct slc_round {
    const char *stage;
    uint8_t kind;
    const sluice_error *mine; /* NULL or OK: `body` is this rank's word */
    const void *body;
    size_t length;
    slc_deadline deadline;
    slc_judge judge; /* rank 0: one answer for all, or the error of all */
    /* Rank 0, NULL for none: in place of the judge's, an answer for each rank. Called for every rank after the judge said OK. */
    sluice_status (*answer_each)(void *context, const slc_word *word, int32_t rank, slc_buffer *answer, sluice_error *error);
    void *context;
    int32_t readers; /* 0: all ranks; else ranks from this on get the first `head` bytes of the judge's answer and no more */
    size_t head;
} slc_round;

/* Runs it; *answer is this rank's answer, to be cleared by the caller, empty unless the result is OK. */
sluice_status slc_round_run(slc_group *group, const slc_round *round, slc_buffer *answer, sluice_error *error);

/*
 * Rank 0, without waiting: ends the round that it went on from (see slc_group_say) as soon as every word is there. Wants the
 * lock held; the keeper calls it while the host is elsewhere.
 */
void slc_round_settle(slc_group *group);

#endif
