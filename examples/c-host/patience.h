/*
 * patience.h: how long a client may take to send a whole request, and to take its answer. libmicrohttpd's own timeout counts from
 * the last byte, so a few clients that send one now and then would hold every connection. How long an answer is in the making
 * does not count.
 */
#ifndef PATIENCE_H
#define PATIENCE_H

#include <microhttpd.h>

typedef struct patience patience;

/* A thread of its own, which ends connections whose time is up. */
patience *patience_start(double seconds);
/* When the daemon has stopped. */
void patience_stop(patience *patience);

/* For MHD_OPTION_NOTIFY_CONNECTION, with the patience as its argument. */
void patience_meet(void *patience, struct MHD_Connection *connection, void **own, enum MHD_ConnectionNotificationCode code);
/* The client's time begins anew, or stands still. */
void patience_count(struct MHD_Connection *connection);
void patience_rest(struct MHD_Connection *connection);

#endif
