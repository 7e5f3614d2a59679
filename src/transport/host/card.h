/*
 * card.h: what a process of the host transport says about itself, so that another one can tell whether it is on the same
 * machine, find it, and know it again.
 */
#ifndef SLC_TRANSPORT_HOST_CARD_H
#define SLC_TRANSPORT_HOST_CARD_H

#include "base/memory.h"
#include "sluice.h"

#define SLC_MARK_BYTES 32
#define SLC_TOKEN_BYTES 16

typedef struct slc_host_card {
    char machine[80];       /* the kernel's boot id */
    char processes[40];     /* pid namespace */
    char network[40];       /* network namespace: abstract sockets are known within one */
    int32_t pid;
    uint64_t started;       /* start time in clock ticks since boot, against a pid that is used again */
    uint64_t mark_address;  /* of SLC_MARK_BYTES bytes in that process, equal to `mark` */
    unsigned char mark[SLC_MARK_BYTES];
    char socket[48];        /* trainer: abstract name of its meeting socket, without the leading zero; else "" */
    unsigned char token[SLC_TOKEN_BYTES]; /* a secret: who meets there must know it */
} slc_host_card;

/* Describes this process, with a fresh mark and token; socket is "" and mark_address 0. */
sluice_status slc_host_card_make(slc_host_card *card, sluice_error *error);

/* Appends the card as bytes. */
sluice_status slc_host_card_write(const slc_host_card *card, slc_buffer *buffer, sluice_error *error);
/* Reads what rank `rank` wrote, trusting nothing: INVALID when damaged, DISAGREE from another version. */
sluice_status slc_host_card_read(const unsigned char *bytes, size_t length, int32_t rank, slc_host_card *card, sluice_error *error);

/* Whether `peer` is reachable from here: same machine and namespaces, its pid alive and still that process. PEER where it is gone. */
sluice_status slc_host_card_check(const slc_host_card *mine, const slc_host_card *peer, int32_t rank, sluice_error *error);

#endif
