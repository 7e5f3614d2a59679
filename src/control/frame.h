/*
 * frame.h: what crosses the control connection: a fixed header and a bounded payload, little endian.
 *
 *     0  4  magic "SLCE"          8  4  type          16  4  payload length
 *     4  4  protocol version     12  4  tag          20  4  reserved, 0
 */
#ifndef SLC_CONTROL_FRAME_H
#define SLC_CONTROL_FRAME_H

#include "base/memory.h"
#include "sluice.h"

#define SLC_PROTOCOL_VERSION 1u
#define SLC_FRAME_HEADER 24u

/* X(NAME, number, text, longest payload in bytes) */
#define SLC_FRAME_LIST(X)                                                                                              \
    X(JOIN, 1, "join", 1024u)            /* a rank says who it is */                                                   \
    X(REFUSE, 2, "refuse", 65536u)       /* rank 0 turns it away, with the reason */                                   \
    X(WELCOME, 3, "welcome", 4096u)      /* everyone came */                                                           \
    X(ENVELOPE, 4, "envelope", 1u << 30) /* a rank's word in a round; the tag is the round's number */                 \
    X(VERDICT, 5, "verdict", 1u << 30)   /* rank 0's answer, the same tag */                                           \
    X(ABORT, 6, "abort", 65536u)         /* a rank gives up, with its error; rank 0 passes it on to all */             \
    X(LEAVE, 7, "leave", 64u)            /* a rank ends in good order */                                               \
    X(BEAT, 8, "beat", 0u)               /* a rank lives */                                                            \
    X(RECALL, 9, "recall", 0u)           /* rank 0: the round of that tag will be refused, nobody need do more for it */

typedef enum slc_frame_type {
#define SLC_FRAME_ENUM(name, number, text, longest) SLC_FRAME_##name = (number),
    SLC_FRAME_LIST(SLC_FRAME_ENUM)
#undef SLC_FRAME_ENUM
} slc_frame_type;

typedef struct slc_frame_header {
    uint32_t version, type, tag, length;
} slc_frame_header;

/* Writes a header as it stands, unchecked. */
void slc_frame_encode(const slc_frame_header *header, unsigned char bytes[SLC_FRAME_HEADER]);

/*
 * Checks magic, version, type, reserved and length before anything is allocated. INVALID says which and what was found;
 * *header then holds what came (zeros behind a wrong magic), so that a peer of another version can be answered in its own.
 * Magic, version, type and the payload of REFUSE (see word.h) keep their place and shape in every version.
 */
sluice_status slc_frame_decode(const unsigned char bytes[SLC_FRAME_HEADER], slc_frame_header *header, sluice_error *error);
bool slc_frame_known(uint32_t type);
const char *slc_frame_text(uint32_t type); /* "unknown" for others */
uint32_t slc_frame_longest(uint32_t type); /* the longest payload of that type; 0 for a type that does not exist */

#endif
