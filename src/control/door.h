/*
 * door.h: a Unix socket through which processes of this user, or root, ask what an engine has to say while it works. Nothing
 * that is asked changes anything. A connection brings one request and gets one answer:
 *
 *     request   "sluice attach 1 status\n" or "sluice attach 1 plan\n"
 *     answer    "ok BYTES\n" and that many bytes, or "no REASON\n"
 *
 * A thread of its own serves, at the lowest priority, and shares one lock with the engine, which neither holds for longer than
 * it takes to exchange a pointer. Whoever is slow, silent or talks nonsense is dropped; no more than SLC_DOOR_VISITORS are
 * served at a time, and no more than SLC_DOOR_ACCEPTS come in a tenth of a second.
 */
#ifndef SLC_CONTROL_DOOR_H
#define SLC_CONTROL_DOOR_H

#include "base/memory.h"
#include "sluice.h"

enum { SLC_DOOR_VISITORS = 16, SLC_DOOR_ACCEPTS = 32, SLC_DOOR_REQUEST = 64 };

typedef struct slc_door slc_door;

/* What a door shows: never changed once it is shown. `head` stands in the answer to `status`, `body` is that to `plan`. */
typedef struct slc_exhibit {
    uint32_t users; /* of door.c */
    slc_buffer head, body;
    size_t init_info, init_info_length; /* the owner's: where in `body` it lies */
} slc_exhibit;

slc_exhibit *slc_exhibit_create(void); /* NULL when there is no memory */
void slc_exhibit_release(slc_exhibit *exhibit);

/* Writes the answer to `status` into `text`. Runs on the door's thread; `exhibit` is what is shown, NULL for nothing. */
typedef void (*slc_door_status)(void *user, const slc_exhibit *exhibit, slc_buffer *text);

/*
 * Opens a door at `path`, or on a listening Unix socket `fd` (-1 for none), which it takes over, also on failure. INVALID: the
 * path, what is there, the descriptor; SYSTEM.
 */
sluice_status slc_door_open(const char *path, int fd, slc_door_status status, void *user, slc_door **door, sluice_error *error);
/* Shows another exhibit (NULL: nothing) from now on; takes it over. */
void slc_door_show(slc_door *door, slc_exhibit *exhibit);
/* What is shown; stays valid until the next slc_door_show. For who calls that. */
const slc_exhibit *slc_door_shown(const slc_door *door);
/* Drops whoever is there, ends the thread, removes the file. Answers and those turned away so far; may be NULL. */
void slc_door_close(slc_door *door, uint64_t *answered, uint64_t *turned_away);

/* ---- for door.c and specs ---- */

typedef enum slc_door_request { SLC_DOOR_UNFINISHED, SLC_DOOR_STATUS, SLC_DOOR_PLAN, SLC_DOOR_NONSENSE } slc_door_request;

/* What came so far of a request, at most SLC_DOOR_REQUEST bytes. */
slc_door_request slc_door_read(const unsigned char *data, size_t length);

#endif
