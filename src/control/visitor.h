/*
 * visitor.h: the connections that rank 0 holds while it waits for its world: strangers, who have not said who they are,
 * members, who have a rank, and rivals, who claim a rank that has a member. Keeps the books; admission.c decides.
 */
#ifndef SLC_CONTROL_VISITOR_H
#define SLC_CONTROL_VISITOR_H

#include "control/channel.h"
#include "control/claim.h"

typedef enum slc_visitor_kind { SLC_STRANGER, SLC_MEMBER, SLC_RIVAL, SLC_VISITOR_KINDS } slc_visitor_kind;

typedef struct slc_visitor {
    struct slc_visitor *next, *previous; /* among its kind, oldest first */
    slc_visitor_kind kind;
    slc_channel *channel; /* NULL once it is gone; a rival's record stays */
    slc_claim claim;      /* of members and rivals */
    char *who;            /* the same as a text */
    slc_deadline until;   /* stranger: when to drop it; member: its own deadline; rival: when to refuse it */
} slc_visitor;

typedef struct slc_visitor_list {
    slc_visitor *first, *last;
    int32_t count;
} slc_visitor_list;

typedef struct slc_visitors {
    int poller;
    slc_visitor_list list[SLC_VISITOR_KINDS];
    slc_visitor *gone; /* freed by slc_visitors_sweep: events of theirs may still be at hand */
} slc_visitors;

/* Watches a new stranger; takes the channel over, also on failure. */
sluice_status slc_visitors_add(slc_visitors *visitors, slc_channel *channel, slc_deadline until, slc_visitor **visitor, sluice_error *error);
void slc_visitor_becomes(slc_visitors *visitors, slc_visitor *visitor, slc_visitor_kind kind, slc_deadline until);
/* Gives the channel up to the caller, unwatched. */
slc_channel *slc_visitor_release(slc_visitors *visitors, slc_visitor *visitor);
void slc_visitor_hang_up(slc_visitors *visitors, slc_visitor *visitor); /* closes the connection, keeps the record */
/* Sends REFUSE with the error, as far as it goes without waiting, in the version that the other side speaks; then hangs up. */
void slc_visitor_refuse(slc_visitors *visitors, slc_visitor *visitor, const sluice_error *why);
void slc_visitor_drop(slc_visitors *visitors, slc_visitor *visitor); /* hangs up and strikes it from the list */
void slc_visitors_sweep(slc_visitors *visitors);
void slc_visitors_clear(slc_visitors *visitors);

#endif
