/*
 * secure.h: TLS 1.3 under a channel, from a shared key alone: no certificates, tickets, early data or older versions. A
 * rank's name ("sluice/1 rank 3 of 8") is its identity in the handshake, and the key of that identity is derived from the
 * deployment's, so that rank 0 knows afterwards which rank it speaks with. Private to control.
 */
#ifndef SLC_CONTROL_SECURE_H
#define SLC_CONTROL_SECURE_H

#include "control/address.h"
#include "control/key.h"

typedef struct slc_secure slc_secure;           /* what all connections of a rank share; counted by users */
typedef struct slc_secure_link slc_secure_link; /* one connection */

/* The side of `rank`: rank 0 answers, others begin. The key is borrowed until the last handshake ended. One user, who releases. */
sluice_status slc_secure_create(const slc_key *key, int32_t rank, int32_t world_size, slc_secure **secure, sluice_error *error);
void slc_secure_release(slc_secure *secure); /* NULL is allowed */

/* Over a non-blocking socket and with a name for the peer, both borrowed. Nothing is sent yet. One more user of `secure`. */
sluice_status slc_secure_open(slc_secure *secure, int fd, const char *peer, slc_secure_link **link, sluice_error *error);
void slc_secure_close(slc_secure_link *link); /* leaves the socket open; NULL is allowed */

/*
 * One step of the handshake; *wanted is POLLIN or POLLOUT while it waits, 0 once it is done. Reading does such steps, too.
 * PEER: the other end is gone. INVALID: it has another key, or talks no TLS. UNSUPPORTED: it talks frames, without a key.
 */
sluice_status slc_secure_handshake(slc_secure_link *link, short *wanted, sluice_error *error);

/* *bytes is 0 where nothing can be done now. Errors as above. */
sluice_status slc_secure_read(slc_secure_link *link, void *into, size_t room, size_t *bytes, sluice_error *error);
sluice_status slc_secure_write(slc_secure_link *link, const void *from, size_t length, size_t *bytes, sluice_error *error);
size_t slc_secure_pending(const slc_secure_link *link); /* bytes that can be read although the socket has none */

/* Rank 0, once the handshake is done: which rank of how large a world the other end proved to be. -1 and 0 before. */
void slc_secure_proved(const slc_secure_link *link, int32_t *rank, int32_t *world_size);

/* OK where a key is there, control may be insecure, or all endpoints are on the loopback interface; INVALID names the first that is not. */
sluice_status slc_secure_rule(bool has_key, bool insecure, const slc_endpoint *endpoint, size_t count, sluice_error *error);

#endif
