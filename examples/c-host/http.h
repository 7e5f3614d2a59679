/*
 * http.h: what the server says to the network: libmicrohttpd, a thread a connection. Requests are bounded in size, number and
 * time. Handlers only queue; who takes from the queue computes. Where the server has a token, /weights wants it: "Authorization:
 * Bearer TOKEN", else 401.
 *
 *     GET  /health           {"version", "answered", "waiting", "updates"}
 *     POST /embed            {"text": ...} or {"ids": [...]} -> {"version", "tokens", "embedding": [...]}
 *     POST /weights/init     a sealed init info: all ranks join the trainers -> {"ranks", "session"}
 *     POST /weights/update   {"session": ..., "version": ...}: all ranks take an update, then swap ->
 *                            {"version", "seconds", "swap_seconds"}
 *     POST /weights/leave    {"session": ...}: all ranks leave the trainers
 *
 * A session is from one init to the next: a call that a trainer sent before it died does not reach the next trainer's.
 */
#ifndef HTTP_H
#define HTTP_H

#include "group.h"
#include "patience.h"
#include "token.h"
#include "tokens.h"

enum { LONGEST_VERSION = 256 };

/* One sentence to compute; it lives in its handler, which waits until it is `done`, woken by itself. */
typedef struct job {
    struct job *next;
    int count;
    int32_t ids[MOST_TOKENS];
    float embedding[MOST_HIDDEN];
    char version[LONGEST_VERSION];
    pthread_cond_t ready;
    bool done, good;
} job;

typedef struct server {
    group *group;
    const token *token; /* NULL: whoever can connect may bring weights */
    const model *model;
    const vocabulary *words;
    pthread_mutex_t lock; /* over what follows */
    pthread_cond_t work, done;
    job *first, *last;
    int waiting;
    bool swap, stopping;
    char version[LONGEST_VERSION], next_version[LONGEST_VERSION];
    double swap_seconds;
    unsigned long answered, updates;
    pthread_mutex_t updating; /* held over a /weights call */
    int session;              /* under it */
    patience *patience;       /* http_start's */
} server;

/* On an IPv4 address; *port 0: any; it becomes the one taken. Ends the program where that cannot be. */
struct MHD_Daemon *http_start(server *server, const char *address, int *port);
/* Answers what is in hand and takes no more; the queue must still be served meanwhile. */
void http_stop(server *server, struct MHD_Daemon *daemon);

#endif
