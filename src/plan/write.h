/* write.h: what a plan writes on one worker, and which bytes that is where live tensors share memory; for coverage.c. */
#ifndef SLC_PLAN_WRITE_H
#define SLC_PLAN_WRITE_H

#include "plan/landing.h"

/* One target's whole window, padding included. */
typedef struct slc_write {
    uint32_t param, target;         /* plan order */
    size_t live;
    int64_t bytes;                  /* of the window */
    slc_range range[SLC_MAX_DIMS];  /* in the live tensor's dims */
} slc_write;

typedef struct slc_write_list {
    slc_write *item; /* in plan order */
    size_t count, capacity;
} slc_write_list;

/* A clash of two writes, by their index in the list; first < second. */
typedef struct slc_clash {
    bool found;
    size_t first, second;
} slc_clash;

/* Keeps the clash that comes first in plan order. */
void slc_clash_note(slc_clash *clash, size_t a, size_t b);

/* What is known of the bytes of each live tensor. */
typedef struct slc_byte_count {
    int64_t *unwritten; /* by live tensor */
    int64_t live_bytes; /* all of them, shared memory once */
} slc_byte_count;

/*
 * Looks at live tensors whose memory overlaps: clashes between writes of different ones, and corrects `count`, which
 * comes in as if no two shared a byte. INVALID past SLC_MAX_SHARED_RUNS runs; NO_MEMORY.
 */
sluice_status slc_shared_memory_check(const slc_write_list *writes, const slc_live_set *live, slc_clash *clash,
                                      slc_byte_count *count, sluice_error *error);

#endif
