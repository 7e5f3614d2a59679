/*
 * local.h: how two processes of one machine meet: over a Linux abstract socket (nothing in any file system, gone with the
 * process) of which only a card tells. Messages are whole, and carry descriptors. The kernel vouches for user and process of
 * either end. What is said there belongs to each transport.
 */
#ifndef SLC_TRANSPORT_LOCAL_H
#define SLC_TRANSPORT_LOCAL_H

#include "transport/wait.h"

#include <sys/types.h>

enum { SLC_LOCAL_FDS = 32, SLC_LOCAL_NAME = 48 };

/* Who is met: for messages, and to know the process that answers. */
typedef struct slc_local_peer {
    int32_t rank, pid;
    const char *socket; /* as its card says */
} slc_local_peer;

/* Listens under a fresh name, written to `name`. *listener is the caller's, also on failure (-1 where there is none). */
sluice_status slc_local_listen(const char *stage, char name[SLC_LOCAL_NAME], int *listener, sluice_error *error);

/* The next waiting connection of this user or of root, non-blocking; -1 where none waits. Strangers are closed, and logged. */
int slc_local_accept(int listener, const slc_log *log);

/* Connects to a peer and makes sure that it is the process of its card. *connection is the caller's, -1 on failure. */
sluice_status slc_local_dial(const slc_local_peer *peer, int *connection, slc_wait *wait, sluice_error *error);

/* Sends one message with up to SLC_LOCAL_FDS descriptors, which stay the caller's. Never waits. */
bool slc_local_send(int fd, const void *bytes, size_t length, const int *fds, size_t nfds);

/* One message of at most `length` bytes; descriptors that came with it are the caller's. -1 with errno, 0 at the end. Never waits. */
ssize_t slc_local_take(int fd, void *bytes, size_t length, int fds[SLC_LOCAL_FDS], size_t *nfds);
void slc_local_close(const int *fds, size_t nfds);

/* Waits for the answer of a peer to what was sent: at least `least` bytes, or an error that says how it was lost. */
sluice_status slc_local_await(const slc_local_peer *peer, int fd, void *bytes, size_t least, size_t length, int fds[SLC_LOCAL_FDS],
                              size_t *nfds, slc_wait *wait, sluice_error *error);

/* A connection to the side that listens. */
typedef struct slc_local_guest {
    int fd;
    size_t peer; /* whom it showed itself to be; SIZE_MAX before */
} slc_local_guest;

/*
 * The side that listens: answers until `expected` known guests have left. `answer` gets each message (length 0: the guest
 * hung up), sets guest->peer when it knows who that is, and *over to end the connection; before it is known, that cuts off
 * a stranger. `missing` names a rank that has not come, for the deadline's error.
 */
typedef struct slc_local_party {
    int listener;
    size_t expected;
    const slc_log *log;
    void *context;
    sluice_status (*answer)(void *context, slc_local_guest *guest, const void *message, size_t length, bool *over,
                            sluice_error *error);
    int32_t (*missing)(void *context);
} slc_local_party;

enum { SLC_LOCAL_ASK = 512 }; /* bytes of the longest message to the side that listens */

/* Holds the party; closes every guest's connection. */
sluice_status slc_local_serve(const slc_local_party *party, slc_wait *wait, sluice_error *error);

/* PEER, naming the rank: it is lost, and `how`. The second gives the peer's own reason instead, where it tells one. */
sluice_status slc_local_lost(const slc_local_peer *peer, const char *stage, const char *how, sluice_error *error);
sluice_status slc_local_left(const slc_local_peer *peer, slc_wait *wait, const char *how, sluice_error *error);

#endif
