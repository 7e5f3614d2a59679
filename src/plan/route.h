/*
 * route.h: the pieces of one target: which part of which source shard goes to which worker. A worker and a trainer list
 * their own pieces, each in steps that grow with the pieces listed, and come to the same ones.
 */
#ifndef SLC_PLAN_ROUTE_H
#define SLC_PLAN_ROUTE_H

#include "plan/plan.h"
#include "plan/replica.h"

/* One target of a parameter, or a full parameter on its way to every worker. */
typedef struct slc_route {
    const slc_param *param;
    uint32_t target;               /* its number; 0 for a full parameter */
    int ndim;                      /* of the strip */
    int64_t shape[SLC_MAX_DIMS];   /* of the strip */
    int dim_of[SLC_MAX_DIMS];      /* the parameter's dim behind each strip dim */
    slc_range range[SLC_MAX_DIMS]; /* the strip, in the parameter's dims */
    const slc_layout *layout;      /* over the workers */
    slc_schedule schedule;
    slc_cast cast; /* on the way */
    int64_t item;  /* bytes of an element as it travels and lands */
    int64_t unit[SLC_MAX_DIMS]; /* elements of a strip dim that stay together, and have one scale; 1 but for blocks */
    int block[2];               /* the strip's dims that are a block's rows and columns; -1 but for blocks */
} slc_route;

typedef struct slc_piece {
    int32_t peer; /* the other side's rank */
    uint32_t target;
    int32_t part;
    slc_box box;   /* the elements, in the strip */
    slc_box shard; /* the source rank's whole box, in the parameter */
} slc_piece;

/* A growing list. Initialise with {0}; `count` may be set back to 0 to use it again. */
typedef struct slc_piece_list {
    slc_piece *item;
    size_t count, capacity;
} slc_piece_list;

/* Frees the items. */
void slc_piece_list_clear(slc_piece_list *list);

/* The route of target number `target`. No schedule yet. */
void slc_route_direct(const slc_param *param, uint32_t target, slc_route *route);
/* The route of a full parameter over `everyone` (all workers, nothing placed). No schedule yet. */
void slc_route_full(const slc_param *param, const slc_layout *everyone, slc_route *route);

/* False for a target that only clears: it has no pieces, and the scheduler does not see it. */
bool slc_route_brings(const slc_route *route);

/* What the scheduler has to know of it: as the source shard that holds the strip's first element sees it. */
slc_fanout slc_route_fanout(const slc_route *route);

/* Append the pieces of a worker whose box in the strip is `box`, or of a trainer, in no order. NO_MEMORY. */
sluice_status slc_route_to_worker(const slc_route *route, int32_t rank, const slc_box *box, slc_piece_list *list,
                                  sluice_error *error);
sluice_status slc_route_from_trainer(const slc_route *route, int32_t rank, slc_piece_list *list, sluice_error *error);

/* How many numbers a rectangle of strip positions, cut between blocks, brings: its elements, or a scale for each block. */
int64_t slc_route_numbers(const slc_route *route, const slc_box *strip);

/* What of the parameter a rectangle of strip positions spans. */
slc_box slc_route_hull(const slc_route *route, const slc_box *strip);

/* A piece as neither side sees it alone: what one source shard has for one worker shard, whatever the replicas of both. */
typedef struct slc_meeting {
    int32_t shard, there; /* numbers of the source shard and of the workers' shard */
    int32_t part;
    int64_t destination; /* the number of the worker shard's first replica; the others follow */
    slc_box box;         /* the elements, in the strip */
    int64_t numbers; /* that it brings */
} slc_meeting;

typedef void (*slc_meeting_visit)(void *context, const slc_meeting *meeting);

/* Visits all of a route, by source shard. Only the schedule's parts are looked at. Costs a step a source shard and one a meeting. */
void slc_route_meetings(const slc_route *route, slc_meeting_visit visit, void *context);

#endif
