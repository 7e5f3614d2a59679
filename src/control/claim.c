/* claim.c: see claim.h; owns nothing. */
#include "control/claim.h"

#include "base/error.h"
#include "control/word.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static void tame_host(char *host)
{
    for (; *host != '\0'; host++)
        if (*host <= 0x20 || *host >= 0x7f)
            *host = '?';
}

sluice_status slc_claim_make(int32_t rank, int32_t world_size, slc_deadline deadline, double beat_s, slc_claim *claim, sluice_error *error)
{
    *claim = (slc_claim){ .rank = rank, .world_size = world_size, .process = (uint64_t)getpid() };
    claim->left_ms = slc_word_left_ms(deadline);
    claim->total_ms = (int64_t)(deadline.seconds * 1e3);
    claim->beat_ms = (uint32_t)(beat_s * 1e3);
    if (gethostname(claim->host, sizeof claim->host - 1) < 0 || claim->host[0] == '\0')
        snprintf(claim->host, sizeof claim->host, "unknown");
    tame_host(claim->host);
    ssize_t drawn;
    do
        drawn = getrandom(claim->nonce, SLC_NONCE, 0);
    while (drawn < 0 && errno == EINTR);
    if (drawn != (ssize_t)SLC_NONCE)
        return slc_fail_errno(error, errno, "rendezvous", "no random bytes");
    return SLUICE_OK;
}

void slc_claim_write(slc_buffer *buffer, const slc_claim *claim)
{
    slc_buffer_u32(buffer, (uint32_t)claim->rank);
    slc_buffer_u32(buffer, (uint32_t)claim->world_size);
    slc_buffer_u64(buffer, (uint64_t)claim->left_ms);
    slc_buffer_u64(buffer, (uint64_t)claim->total_ms);
    slc_buffer_u64(buffer, claim->process);
    slc_buffer_u32(buffer, claim->beat_ms);
    slc_buffer_append(buffer, claim->nonce, SLC_NONCE);
    slc_buffer_string(buffer, claim->host);
}

bool slc_claim_read(const unsigned char *payload, size_t length, slc_claim *claim)
{
    slc_reader reader = { .data = payload, .length = length };
    *claim = (slc_claim){ 0 };
    claim->rank = (int32_t)slc_read_u32(&reader);
    claim->world_size = (int32_t)slc_read_u32(&reader);
    claim->left_ms = (int64_t)slc_read_u64(&reader);
    claim->total_ms = (int64_t)slc_read_u64(&reader);
    claim->process = slc_read_u64(&reader);
    claim->beat_ms = slc_read_u32(&reader);
    const unsigned char *nonce = slc_read_bytes(&reader, SLC_NONCE);
    size_t bytes = slc_read_u32(&reader);
    const unsigned char *host = bytes > 0 && bytes <= SLC_HOST_LONGEST ? slc_read_bytes(&reader, bytes) : NULL;
    if (nonce == NULL || host == NULL || memchr(host, 0, bytes) != NULL || slc_reader_left(&reader) > 0)
        return false;
    memcpy(claim->nonce, nonce, SLC_NONCE);
    memcpy(claim->host, host, bytes);
    tame_host(claim->host);
    return true;
}

void slc_claim_who(const slc_claim *claim, const char *address, char text[SLC_WHO_TEXT])
{
    snprintf(text, SLC_WHO_TEXT, "process %llu on %s, %s", (unsigned long long)claim->process, claim->host, address);
}
