/* word.c: see word.h; owns nothing. */
#include "control/word.h"

#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { EARLY_MS = 500, EARLY_PART = 10, PATIENCE_NS = 200000000 };

static const int64_t LONGEST_MS = (int64_t)320000000 * 1000; /* as clock.h: ten years */

static bool read_text(slc_reader *reader, char *text, size_t room)
{
    size_t length = slc_read_u32(reader);
    const unsigned char *bytes = length < room ? slc_read_bytes(reader, length) : NULL;
    text[0] = '\0';
    if (bytes == NULL || memchr(bytes, 0, length) != NULL) {
        reader->failed = true;
        return false;
    }
    memcpy(text, bytes, length);
    text[length] = '\0';
    slc_text_tame(text);
    return true;
}

static sluice_status known_status(uint32_t number)
{
    switch (number) {
#define STATUS_CASE(name, value, text) \
    case value: return SLUICE_##name;
        SLUICE_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    default: return SLUICE_PEER;
    }
}

void slc_word_write_error(slc_buffer *buffer, const sluice_error *error)
{
    slc_buffer_u32(buffer, (uint32_t)error->status);
    slc_buffer_u32(buffer, (uint32_t)error->rank);
    slc_buffer_string(buffer, error->stage);
    slc_buffer_string(buffer, error->text);
}

void slc_word_read_error(slc_reader *reader, sluice_error *error)
{
    sluice_status status = known_status(slc_read_u32(reader));
    error->status = status == SLUICE_OK ? SLUICE_PEER : status;
    error->rank = (int32_t)slc_read_u32(reader);
    if (error->rank < -1)
        error->rank = -1;
    if (!read_text(reader, error->stage, sizeof error->stage) || !read_text(reader, error->text, sizeof error->text))
        *error = (sluice_error)SLUICE_ERROR_INIT;
    else if (slc_word_bare(error->stage, error->text)[0] == '\0')
        snprintf(error->text, sizeof error->text, "%s%s%s", error->stage, error->stage[0] == '\0' ? "" : ": ", sluice_status_text(error->status));
}

int64_t slc_word_left_ms(slc_deadline deadline)
{
    int64_t left = (deadline.at_ns - slc_now_ns()) / 1000000;
    return left < 0 ? 0 : left;
}

slc_deadline slc_word_patience(slc_deadline deadline)
{
    deadline.at_ns += PATIENCE_NS;
    return deadline;
}

slc_deadline slc_word_deadline(int64_t left_ms, int64_t total_ms)
{
    if (left_ms < 0 || left_ms > LONGEST_MS)
        left_ms = LONGEST_MS;
    if (total_ms < 0 || total_ms > LONGEST_MS)
        total_ms = LONGEST_MS;
    int64_t early = left_ms / EARLY_PART > EARLY_MS ? EARLY_MS : left_ms / EARLY_PART;
    slc_deadline deadline = slc_deadline_in((double)(left_ms - early) * 1e-3);
    deadline.seconds = (double)total_ms * 1e-3;
    return deadline;
}

void slc_word_write_envelope(slc_buffer *buffer, slc_deadline deadline, uint8_t kind, const char *stage, const sluice_error *mine,
                             const void *body, size_t length)
{
    bool good = mine == NULL || mine->status == SLUICE_OK;
    slc_buffer_u64(buffer, (uint64_t)slc_word_left_ms(deadline));
    slc_buffer_u64(buffer, (uint64_t)(deadline.seconds * 1e3));
    slc_buffer_u8(buffer, kind);
    slc_buffer_string(buffer, stage);
    slc_buffer_u32(buffer, good ? (uint32_t)SLUICE_OK : (uint32_t)mine->status);
    if (good)
        slc_buffer_append(buffer, body, length);
    else
        slc_word_write_error(buffer, mine);
}

bool slc_word_read_envelope(const unsigned char *payload, size_t length, slc_envelope *envelope, sluice_error *error)
{
    slc_reader reader = { .data = payload, .length = length };
    envelope->left_ms = (int64_t)slc_read_u64(&reader);
    envelope->total_ms = (int64_t)slc_read_u64(&reader);
    envelope->kind = slc_read_u8(&reader);
    read_text(&reader, envelope->stage, sizeof envelope->stage);
    envelope->status = known_status(slc_read_u32(&reader));
    envelope->body = NULL;
    envelope->length = 0;
    if (reader.failed)
        return false;
    if (envelope->status == SLUICE_OK) {
        envelope->length = slc_reader_left(&reader);
        envelope->body = payload + reader.offset;
        return true;
    }
    slc_word_read_error(&reader, error);
    return !reader.failed && slc_reader_left(&reader) == 0 && error->status == envelope->status;
}

const char *slc_word_bare(const char *stage, const char *text)
{
    size_t length = strlen(stage);
    return length > 0 && strncmp(text, stage, length) == 0 && strncmp(text + length, ": ", 2) == 0 ? text + length + 2 : text;
}
