/*
 * group.h: what a group is inside: its links, what came over them, and how it breaks. Private to control: rendezvous.c
 * makes groups, round.c runs rounds on them. On rank 0 a link's number is the rank at its end; other ranks have link 0.
 */
#ifndef SLC_CONTROL_GROUP_H
#define SLC_CONTROL_GROUP_H

#include "control/claim.h"
#include "control/rendezvous.h"

#include <pthread.h>

typedef struct slc_link {
    char *who;      /* see slc_claim_who; NULL for rank 0 itself */
    slc_frame word; /* the envelope (rank 0) or verdict (others) that came and is not yet used */
    bool has_word;
    bool watches_output;
    bool left;          /* said LEAVE */
    uint32_t next;      /* tag of the next word */
    uint64_t heard_tick, sent_tick; /* when something came and went last; see keeper.h */
    int64_t heard_ns;
} slc_link;

struct slc_group_state {
    int poller; /* epoll over all links */
    int32_t nlinks;
    slc_link *link;
    int32_t words;   /* links with a word */
    slc_deadline until; /* rank 0, with words: the soonest deadline that one named */
    uint32_t recalled;  /* rounds below this one are refused; rank 0 has told so, others have heard so */
    bool owes;          /* a round is unfinished in which this rank said an error and went on, see slc_group_say */
    uint32_t owed_tag;
    sluice_error owed;  /* rank 0: that error */
    int32_t leavers; /* links that left */
    int32_t unsent;  /* links with frames queued */

    pthread_mutex_t lock; /* of everything in a group but its rank, size and log */
    bool kept;            /* the keeper holds the lock: it calls nothing of the host */
    bool unsaid;          /* it saw the group break; the next one to take the lock logs that */
    double last_words_s;
    int64_t beat_ns;      /* 0: no beats */
    int64_t next_tick_ns;
    uint64_t tick;
    struct slc_keeper *keeper;
};

/* Everything below but create, link and free wants the lock held. The keeper only tries. */
void slc_group_lock(slc_group *group);
bool slc_group_try_lock(slc_group *group);
void slc_group_unlock(slc_group *group);

/* An empty group; takes nothing over. Its links are given with slc_group_link. */
sluice_status slc_group_create(const slc_rendezvous_options *options, slc_group **group, sluice_error *error);
/* Takes over a channel, also on failure. */
sluice_status slc_group_link(slc_group *group, int32_t link, slc_channel *channel, const slc_claim *claim, sluice_error *error);
void slc_group_free(slc_group *group); /* closes without a word; NULL is allowed */

/* "rank 3 (process 12 on a, 10.0.0.1:4711)" */
void slc_group_name(const slc_group *group, int32_t link, char *text, size_t room);

/* Queues a frame on a link and writes what can be written; a link that turns out to be dead is lost, see below. */
sluice_status slc_group_put(slc_group *group, const char *stage, int32_t link, slc_frame_type type, uint32_t tag,
                            slc_payload *payload, sluice_error *error);

/* Waits up to wait_ms, takes in what came, writes what can be written. Losses, aborts and nonsense break the group; `stage` is theirs. */
void slc_group_pump(slc_group *group, const char *stage, int wait_ms);

/* How long a wait may poll: to the deadline, in slices where somebody may cancel. */
int slc_group_slice(const slc_group *group, slc_deadline deadline);

/* Rank 0: somebody said an error for this round; tells every rank that has not said its word. */
void slc_group_recall(slc_group *group, uint32_t round);

/* The word of a link is used up. */
void slc_group_drop_word(slc_group *group, int32_t link);

/*
 * Breaks the group with `cause`, which is logged as an error; a broken one keeps its first cause. Tells the other side `told`
 * (NULL: the cause): rank 0 every rank, other ranks rank 0.
 */
void slc_group_break(slc_group *group, const sluice_error *cause, const sluice_error *told);

/* The cause, into *error. */
sluice_status slc_group_cause(const slc_group *group, sluice_error *error);

/* slc_group_abort, holding the lock. */
void slc_group_give_up(slc_group *group, const sluice_error *why);

/* Breaks the group when the host has cancelled. */
bool slc_group_cancelled(slc_group *group, const char *stage);

#endif
