/*
 * word.h: what stands in the payloads of the group's frames, little endian, strings as slc_buffer_string writes them.
 *
 *     error      u32 status, u32 rank (all ones: none), string stage, string text      REFUSE, ABORT
 *     envelope   u64 milliseconds left, u64 milliseconds in all, of the rank's deadline; u8 kind; string stage;
 *                u32 status; then, when OK, the body, else the error                   ENVELOPE
 *     verdict    u32 status; then, when OK, the answer, else the error                 VERDICT
 */
#ifndef SLC_CONTROL_WORD_H
#define SLC_CONTROL_WORD_H

#include "base/clock.h"
#include "base/memory.h"
#include "control/text.h"
#include "sluice.h"

#define SLC_STAGE_LONGEST 31u

/* Writes an error, whole. */
void slc_word_write_error(slc_buffer *buffer, const sluice_error *error);
/*
 * The error, tamed; a payload that is none sets reader->failed. A status of OK or beyond the list becomes PEER, an empty text
 * that of the status.
 */
void slc_word_read_error(slc_reader *reader, sluice_error *error);

typedef struct slc_envelope {
    int64_t left_ms, total_ms;
    uint8_t kind;
    char stage[SLC_STAGE_LONGEST + 1];
    sluice_status status;
    const unsigned char *body; /* OK: the rest of the payload */
    size_t length;
} slc_envelope;

#define SLC_ENVELOPE_HEAD (8u + 8u + 1u + 4u + SLC_STAGE_LONGEST + 4u) /* at most this in front of a body */

/* Writes this rank's word: the body, or `mine` where that is an error. */
void slc_word_write_envelope(slc_buffer *buffer, slc_deadline deadline, uint8_t kind, const char *stage, const sluice_error *mine,
                             const void *body, size_t length);
/* False for a payload that is none. error is filled for a status other than OK, and has that status. */
bool slc_word_read_envelope(const unsigned char *payload, size_t length, slc_envelope *envelope, sluice_error *error);

/* The deadline that a rank named, seen from here, a little early so that rank 0's word reaches it in time. */
slc_deadline slc_word_deadline(int64_t left_ms, int64_t total_ms);
int64_t slc_word_left_ms(slc_deadline deadline);
/* The deadline of a rank that waits for rank 0, and a moment more: what rank 0 has to say (who is missing) beats silence. */
slc_deadline slc_word_patience(slc_deadline deadline);

/* The text without "stage: " in front, where it stands there. */
const char *slc_word_bare(const char *stage, const char *text);

#endif
