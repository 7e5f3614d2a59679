/* address.h: host names and IPv4 and IPv6 addresses, from text to endpoints and back. Opens no connection. */
#ifndef SLC_CONTROL_ADDRESS_H
#define SLC_CONTROL_ADDRESS_H

#include "base/clock.h"
#include "sluice.h"

#define SLC_ADDRESS_TEXT 80 /* "[address%interface]:port" with the terminator */

/* An address and port as the sockets take them: a struct sockaddr_storage, kept opaque so that this header needs no other. */
typedef struct slc_endpoint {
    uint64_t address[16];
    uint32_t length;
} slc_endpoint;

/*
 * All endpoints of `address`, in the order in which the system prefers them; *list is released with slc_release. A literal
 * is taken as it stands; a name is looked up on a thread of its own, so that a dead name server cannot hold the caller
 * beyond its deadline (the thread then ends by itself). INVALID: bad brackets, empty, too long, does not resolve; TIMEOUT;
 * CANCELLED; NO_MEMORY; SYSTEM.
 */
sluice_status slc_address_resolve(const char *address, uint16_t port, slc_deadline deadline, const volatile bool *cancelled,
                                  slc_endpoint **list, size_t *count, sluice_error *error);

bool slc_address_is_loopback(const slc_endpoint *endpoint); /* 127.0.0.0/8, also inside IPv6, and ::1 */

/* "1.2.3.4:5", "[::1]:5", or "a local socket" for other families. An IPv4 address inside IPv6 is shown as IPv4. */
void slc_address_text(const slc_endpoint *endpoint, char text[SLC_ADDRESS_TEXT]);

#endif
