/* listener.h: all the sockets that rank 0 listens on: every endpoint of its address, or one that the caller brought. */
#ifndef SLC_CONTROL_LISTENER_H
#define SLC_CONTROL_LISTENER_H

#include "control/rendezvous.h"

typedef struct slc_listener {
    int *fd;
    size_t count;
    char text[256]; /* "127.0.0.1:4711, [::1]:4711", cut where that is too long */
} slc_listener;

/*
 * Opens them and takes over options->listen_fd, also on failure. An endpoint that this machine does not have is passed
 * over as long as another one works; a port that is taken is an error at once.
 */
sluice_status slc_listener_open(const slc_rendezvous_options *options, slc_listener *listener, sluice_error *error);
void slc_listener_close(slc_listener *listener);

#endif
