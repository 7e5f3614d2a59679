/*
 * board.h: where an engine stands, for another thread that looks at any moment. Whoever uses the engine writes and never
 * waits; who looks tries again where it came in between. One writer at a time.
 */
#ifndef SLC_ENGINE_BOARD_H
#define SLC_ENGINE_BOARD_H

#include "sluice.h"

typedef struct slc_standing {
    sluice_state state;
    bool dirty;
    const char *stage; /* of the init or reload under way, a text that lives for ever; NULL for none */
    char version[SLUICE_LABEL_BYTES];
    uint64_t batch;    /* agreed on since init */
    uint64_t bytes_total, params_total; /* of the batch under way, or the last one */
} slc_standing;

enum { SLC_BOARD_WORDS = (sizeof(slc_standing) + 7) / 8 };

typedef struct slc_board {
    uint64_t sequence; /* odd while it is written */
    uint64_t word[SLC_BOARD_WORDS];
    uint64_t bytes_done, params_done; /* of that batch: by themselves, since they change all the time */
} slc_board;

/* Writes all but the last two fields; and those. */
void slc_board_post(slc_board *board, const slc_standing *standing);
void slc_board_done(slc_board *board, uint64_t bytes, uint64_t params);
/* False where the writer came in between each of many times. */
bool slc_board_look(const slc_board *board, slc_standing *standing, uint64_t *bytes_done, uint64_t *params_done);

#endif
