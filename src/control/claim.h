/* claim.h: who a rank says it is (the payloads of JOIN and WELCOME). */
#ifndef SLC_CONTROL_CLAIM_H
#define SLC_CONTROL_CLAIM_H

#include "base/clock.h"
#include "base/memory.h"
#include "control/address.h"

#define SLC_NONCE 16u
#define SLC_HOST_LONGEST 255u
#define SLC_WHO_TEXT (SLC_HOST_LONGEST + SLC_ADDRESS_TEXT + 32u)

/*
 * JOIN: u32 rank, u32 world size, u64 and u64 the milliseconds left and in all, u64 process, u32 beat, 16 bytes nonce, string host.
 * WELCOME: the same, of rank 0.
 */
typedef struct slc_claim {
    int32_t rank, world_size;
    int64_t left_ms, total_ms;
    uint64_t process;
    uint32_t beat_ms; /* how often it wants to hear of others; 0 for never. That of rank 0 holds for all. */
    unsigned char nonce[SLC_NONCE]; /* drawn once a join: tells a rank that comes again from another that claims its rank */
    char host[SLC_HOST_LONGEST + 1];
} slc_claim;

/* This process. SYSTEM where there is no randomness. */
sluice_status slc_claim_make(int32_t rank, int32_t world_size, slc_deadline deadline, double beat_s, slc_claim *claim, sluice_error *error);
void slc_claim_write(slc_buffer *buffer, const slc_claim *claim);
/* False for a payload that is none; a host name is printable ASCII afterwards. */
bool slc_claim_read(const unsigned char *payload, size_t length, slc_claim *claim);

/* "process 12 on a.example, 10.0.0.1:4711" */
void slc_claim_who(const slc_claim *claim, const char *address, char text[SLC_WHO_TEXT]);

#endif
