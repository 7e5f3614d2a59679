/*
 * board.c: see board.h. A word is stored with release and read with acquire, so that who reads a new word also sees that the
 * sequence was odd, and then even but another one.
 */
#include "engine/board.h"

#include <string.h>

void slc_board_post(slc_board *board, const slc_standing *standing)
{
    uint64_t word[SLC_BOARD_WORDS] = { 0 };
    memcpy(word, standing, sizeof *standing);
    uint64_t sequence = __atomic_load_n(&board->sequence, __ATOMIC_RELAXED);
    __atomic_store_n(&board->sequence, sequence + 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < SLC_BOARD_WORDS; i++)
        __atomic_store_n(&board->word[i], word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&board->sequence, sequence + 2, __ATOMIC_RELEASE);
}

void slc_board_done(slc_board *board, uint64_t bytes, uint64_t params)
{
    __atomic_store_n(&board->bytes_done, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&board->params_done, params, __ATOMIC_RELAXED);
}

bool slc_board_look(const slc_board *board, slc_standing *standing, uint64_t *bytes_done, uint64_t *params_done)
{
    enum { TRIES = 1000 };
    uint64_t word[SLC_BOARD_WORDS];
    bool good = false;
    for (int tries = 0; tries < TRIES && !good; tries++) {
        uint64_t before = __atomic_load_n(&board->sequence, __ATOMIC_ACQUIRE);
        for (size_t i = 0; i < SLC_BOARD_WORDS; i++)
            word[i] = __atomic_load_n(&board->word[i], __ATOMIC_ACQUIRE);
        good = before % 2 == 0 && __atomic_load_n(&board->sequence, __ATOMIC_RELAXED) == before;
    }
    memcpy(standing, word, sizeof *standing);
    *bytes_done = __atomic_load_n(&board->bytes_done, __ATOMIC_RELAXED);
    *params_done = __atomic_load_n(&board->params_done, __ATOMIC_RELAXED);
    return good;
}
