/*
 * channel.h: one connection that carries frames: a non-blocking stream socket, what was read of the next frame, and what
 * is still to be written. TLS sits under the same calls where there is a key. No call waits beyond its deadline.
 */
#ifndef SLC_CONTROL_CHANNEL_H
#define SLC_CONTROL_CHANNEL_H

#include "base/clock.h"
#include "control/frame.h"

typedef struct slc_channel slc_channel;
struct slc_secure;

typedef struct slc_frame {
    slc_frame_header header;
    unsigned char *payload; /* header.length bytes; released with slc_frame_clear */
} slc_frame;

/* Releases the payload and empties the frame; may be called again. */
void slc_frame_clear(slc_frame *frame);

/*
 * Takes over `fd` (made non-blocking, close-on-exec, TCP_NODELAY where it applies), also on failure. `longest` bounds any
 * payload below the type's own bound; 0 for none.
 */
sluice_status slc_channel_open(int fd, uint32_t longest, slc_channel **channel, sluice_error *error);
void slc_channel_close(slc_channel *channel); /* NULL is allowed */

/* Puts TLS under it, before anything was read or written; the context gets one more user. See secure.h. */
sluice_status slc_channel_secure(slc_channel *channel, struct slc_secure *secure, sluice_error *error);
/* Waits until the handshake is done. Nothing to do without TLS. */
sluice_status slc_channel_handshake(slc_channel *channel, slc_deadline deadline, const volatile bool *cancelled, sluice_error *error);
/* The rank and world that the other end proved to be; -1 and 0 where nothing was proved. */
void slc_channel_proved(const slc_channel *channel, int32_t *rank, int32_t *world_size);

int slc_channel_fd(const slc_channel *channel); /* to be watched, not to be read or written */
void slc_channel_bound(slc_channel *channel, uint32_t longest); /* changes `longest` once the peer is known */
const char *slc_channel_peer(const slc_channel *channel); /* "address:port", for messages */

uint32_t slc_channel_peer_version(const slc_channel *channel); /* of the last header that came, also a refused one; 0 before */
void slc_channel_speak(slc_channel *channel, uint32_t version); /* what later frames say: only to refuse a peer of another version */

/* Bytes that several channels send, counted by users; not for two threads at once. */
typedef struct slc_payload slc_payload;

/* Takes over the buffer's bytes (also on failure, when it returns NULL). One user, who releases. */
slc_payload *slc_payload_of(slc_buffer *buffer);
void slc_payload_release(slc_payload *payload); /* NULL is allowed */

/* Queues one frame; the payload is not copied and gets one more user. INVALID for more than the type's bound, NO_MEMORY. */
sluice_status slc_channel_put_payload(slc_channel *channel, slc_frame_type type, uint32_t tag, slc_payload *payload, sluice_error *error);
size_t slc_channel_queued(const slc_channel *channel); /* bytes put and not yet flushed */

/* Queues one frame with a copy of the payload. INVALID for more than the type's bound, NO_MEMORY. */
sluice_status slc_channel_put(slc_channel *channel, slc_frame_type type, uint32_t tag, const void *payload, size_t length, sluice_error *error);
/* Writes what can be written without waiting, at most a few MiB a call; *left is what stays queued. PEER when the other end is gone. */
sluice_status slc_channel_flush(slc_channel *channel, size_t *left, sluice_error *error);
/*
 * Reads what is there, at most about 1 MiB a call, so that one fast peer never keeps the others waiting; *got says whether
 * *frame was filled. Memory for a payload grows as bytes arrive. PEER at end of file, INVALID on a bad header: close it then.
 * UNSUPPORTED where one end has a key and the other has none: TLS is off then, so that a frame can still tell that.
 */
sluice_status slc_channel_take(slc_channel *channel, slc_frame *frame, bool *got, sluice_error *error);

/*
 * Bytes that TLS holds, which no poller sees: after slc_channel_take, frames may be left there. With `dry` taking reads
 * these only and leaves the socket alone, so that what a fast peer sends meanwhile does not count.
 */
bool slc_channel_pending(const slc_channel *channel);
void slc_channel_dry(slc_channel *channel, bool dry);

/* The same, waiting until done or the deadline (TIMEOUT), or until *cancelled (may be NULL) is true (CANCELLED). */
sluice_status slc_channel_send(slc_channel *channel, slc_frame_type type, uint32_t tag, const void *payload, size_t length,
                               slc_deadline deadline, const volatile bool *cancelled, sluice_error *error);
sluice_status slc_channel_receive(slc_channel *channel, slc_frame *frame, slc_deadline deadline, const volatile bool *cancelled,
                                  sluice_error *error);

#endif
