/* socket.h: TCP sockets on endpoints: listening ones for rank 0, connected ones for the others. */
#ifndef SLC_CONTROL_SOCKET_H
#define SLC_CONTROL_SOCKET_H

#include "control/address.h"

/* The endpoints of a socket's own end and of the other one; empty where it has none. */
slc_endpoint slc_socket_here(int fd);
slc_endpoint slc_socket_there(int fd);

/*
 * A non-blocking listening socket on one endpoint. An IPv6 endpoint takes IPv6 only, except the wildcard, which takes both.
 * *code is the errno of a failure (EADDRINUSE, EADDRNOTAVAIL, ...), for the caller to judge.
 */
sluice_status slc_socket_listen(const slc_endpoint *endpoint, int *fd, int *code, sluice_error *error);

/*
 * Lets a later socket bind this one's port while this one lingers closed. A connection takes that over from its listening
 * socket, but those that came before a caller's socket was adopted have not: set it on each accepted one, too.
 */
void slc_socket_let_rebind(int fd);

/* Makes a caller's socket ready to be listened on; INVALID unless it is a listening stream socket of IPv4 or IPv6. */
sluice_status slc_socket_adopt(int fd, sluice_error *error);

/*
 * Connects within the deadline. PEER where nobody listens, TIMEOUT, CANCELLED, SYSTEM. A connection of a socket with
 * itself, which TCP allows on a port that nobody listens on, counts as nobody.
 */
sluice_status slc_socket_connect(const slc_endpoint *endpoint, slc_deadline deadline, const volatile bool *cancelled, int *fd,
                                 sluice_error *error);

#endif
