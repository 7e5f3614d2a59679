/*
 * rendezvous.h: how all ranks of a world find each other: a star around rank 0, which listens. The group that comes out
 * carries the agreement rounds (agree.h) and every later word between ranks. One thread at a time uses a group, beside the
 * thread that the group has of its own.
 */
#ifndef SLC_CONTROL_RENDEZVOUS_H
#define SLC_CONTROL_RENDEZVOUS_H

#include "base/clock.h"
#include "base/log.h"
#include "control/channel.h"
#include "control/key.h"

typedef struct slc_rendezvous_options {
    const char *address; /* host name, IPv4 or IPv6, brackets allowed; rank 0 binds it */
    uint16_t port;
    int listen_fd;       /* rank 0: use this listening socket instead (taken over, also on failure); -1 for none */
    int32_t rank, world_size;
    slc_deadline deadline;
    const volatile bool *cancelled; /* may be NULL */
    slc_log log;
    const slc_key *key; /* NULL: plain connections; else TLS 1.3 on all of them. Borrowed until the join is over. */
    bool insecure;      /* plain connections are allowed off the loopback interface, too */
    double beat_s;      /* how often ranks say that they live, see keeper.h; 0 for never. Rank 0's holds for all. */
    double last_words_s; /* how long leaving may take to hand over what is queued; 0 and more than 1 s mean 1 s */
} slc_rendezvous_options;

typedef struct slc_group {
    int32_t rank, world_size;
    slc_channel **channel; /* rank 0: by rank, own slot NULL; others: channel[0] leads to rank 0 */
    uint32_t rounds;       /* rounds begun, the next one's tag */
    bool broken;           /* a word was lost or refused: every later call fails with `cause` */
    sluice_error cause;
    const volatile bool *cancelled;
    slc_log log;
    struct slc_group_state *state; /* group.h: private to control */
} slc_group;

/*
 * Joins. Rank 0 accepts until every rank of the world has joined, others connect (again and again until the deadline while
 * nobody listens yet). Strangers, other versions, other world sizes, ranks outside the world and bad frames are dropped
 * with a logged reason and the rest go on waiting. A second claim to a rank is refused within a second on the claimant,
 * naming the rank and both claimants (host, process, address); once as many ranks have come as the world has, refused ones
 * counted, nobody is left to wait for and all are refused with the same list. A rank whose own deadline passes is told
 * TIMEOUT, who came and who did not; the others wait on for theirs, and its place is free again. Rank 0's ends it for all.
 * Immediate, named errors: a port that is taken, a name that does not resolve, an address off the loopback interface
 * without a key, another key than rank 0's, a key on one side only. With a key, a rank that joins under another
 * number than its handshake proved is refused.
 * With beats, a rank that is not heard for three of them breaks the group: PEER, on every rank, in its current or next call.
 */
sluice_status slc_rendezvous_join(const slc_rendezvous_options *options, slc_group **group, sluice_error *error);

/* Whether the group still stands; agree.h has the calls that say why not. */
bool slc_group_broken(slc_group *group);

/* Says LEAVE where the group is whole, ends the thread of beats, closes everything. NULL is allowed. */
void slc_group_leave(slc_group *group);

#endif
