/*
 * exchange.c: the round in which every rank hands out a card and asks for those of others. A word is u32 count, that many
 * u32 ranks, then the card; an answer is, for each rank asked for, u32 length and the card. Owns nothing.
 */
#include "control/agree.h"

#include "base/error.h"
#include "control/round.h"

static slc_reader asked_for(const slc_word *word, uint32_t *count)
{
    slc_reader reader = { .data = word->body, .length = word->length };
    *count = slc_read_u32(&reader);
    if (*count > slc_reader_left(&reader) / 4)
        reader.failed = true;
    return reader;
}

static size_t card_of(const slc_word *word, const unsigned char **card)
{
    uint32_t count;
    slc_reader reader = asked_for(word, &count);
    slc_read_bytes(&reader, (size_t)count * 4);
    *card = reader.data + reader.offset;
    return slc_reader_left(&reader);
}

/* Every list can be read and asks for ranks of this world, and no answer is longer than a frame. */
static sluice_status judge_wants(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)context;
    (void)answer;
    size_t longest = slc_frame_longest(SLC_FRAME_VERDICT) - 4;
    for (int32_t i = 0; i < count; i++) {
        uint32_t wanted;
        size_t bytes = 0;
        slc_reader reader = asked_for(&word[i], &wanted);
        if (reader.failed) {
            slc_fail(error, SLUICE_INVALID, word[i].stage, "the card of rank %d cannot be read", i);
            error->rank = i;
            return SLUICE_INVALID;
        }
        for (uint32_t k = 0; k < wanted; k++) {
            const unsigned char *card;
            uint32_t rank = slc_read_u32(&reader);
            if (rank >= (uint32_t)count) {
                slc_fail(error, SLUICE_INVALID, word[i].stage, "rank %d asks for the card of rank %d, which must be in [0, %d)", i,
                         (int32_t)rank, count);
                error->rank = i;
                return SLUICE_INVALID;
            }
            uint32_t ignored;
            if (asked_for(&word[rank], &ignored).failed)
                continue; /* found when its own turn comes */
            bytes += 4 + card_of(&word[rank], &card);
            if (bytes > longest) {
                slc_fail(error, SLUICE_INVALID, word[i].stage, "the cards that rank %d asks for must have at most %zu bytes together", i,
                         longest);
                error->rank = i;
                return SLUICE_INVALID;
            }
        }
    }
    return SLUICE_OK;
}

static sluice_status answer_wants(void *context, const slc_word *word, int32_t rank, slc_buffer *answer, sluice_error *error)
{
    (void)context;
    uint32_t wanted;
    slc_reader reader = asked_for(&word[rank], &wanted);
    for (uint32_t k = 0; k < wanted; k++) {
        const unsigned char *card;
        size_t length = card_of(&word[slc_read_u32(&reader)], &card);
        slc_buffer_u32(answer, (uint32_t)length);
        slc_buffer_append(answer, card, length);
    }
    if (answer->failed)
        return slc_fail_memory(error, word[rank].stage, "cards", answer->length);
    return SLUICE_OK;
}

sluice_status slc_group_exchange(slc_group *group, const char *stage, const sluice_error *mine, const void *card, size_t length,
                                 const int32_t *wanted, size_t nwanted, slc_buffer *store, const unsigned char **cards, size_t *lengths,
                                 slc_deadline deadline, sluice_error *error)
{
    *store = (slc_buffer){ 0 };
    slc_buffer body = { 0 };
    sluice_error memory = SLUICE_ERROR_INIT;
    slc_buffer_u32(&body, (uint32_t)nwanted);
    for (size_t i = 0; i < nwanted; i++)
        slc_buffer_u32(&body, (uint32_t)wanted[i]);
    slc_buffer_append(&body, card, length);
    if (body.failed && (mine == NULL || mine->status == SLUICE_OK)) {
        slc_fail_memory(&memory, stage, "a card", length + nwanted * 4);
        mine = &memory;
    }
    slc_round round = { .stage = stage, .kind = SLC_ROUND_EXCHANGE, .mine = mine, .body = body.data, .length = body.length,
                        .deadline = deadline, .judge = judge_wants, .answer_each = answer_wants };
    sluice_status status = slc_round_run(group, &round, store, error);
    slc_buffer_clear(&body);
    if (status != SLUICE_OK)
        return status;
    slc_reader reader = { .data = store->data, .length = store->length };
    for (size_t i = 0; i < nwanted; i++) {
        lengths[i] = slc_read_u32(&reader);
        cards[i] = slc_read_bytes(&reader, lengths[i]);
    }
    if (reader.failed || slc_reader_left(&reader) > 0) {
        slc_buffer_clear(store);
        sluice_error unreadable = SLUICE_ERROR_INIT;
        slc_fail(&unreadable, SLUICE_PEER, stage, "the cards from rank 0 cannot be read");
        slc_group_abort(group, &unreadable);
        return slc_error_copy(error, &unreadable);
    }
    return SLUICE_OK;
}
