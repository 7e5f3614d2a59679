/* patience.c: see patience.h. */
#include "patience.h"

#include "say.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

/* A connection; in a list from accept to close. */
typedef struct guest {
    struct guest *next, *previous;
    patience *host;
    int fd;
    double until; /* INFINITY while its time stands still */
} guest;

struct patience {
    pthread_t thread;
    pthread_mutex_t lock; /* over the list and what is in it */
    pthread_cond_t ended;
    guest *first;
    double seconds;
    bool stopping;
};

static void *watch(void *argument)
{
    patience *p = argument;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        struct timespec next;
        for (guest *g = p->first; g != NULL; g = g->next)
            if (now() > g->until)
                (void)shutdown(g->fd, SHUT_RDWR);
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec++;
        (void)pthread_cond_timedwait(&p->ended, &p->lock, &next);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

patience *patience_start(double seconds)
{
    patience *p = must_allocate(1, sizeof *p);
    p->seconds = seconds;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->ended, NULL);
    if (pthread_create(&p->thread, NULL, watch, p) != 0)
        die("no thread for deadlines");
    return p;
}

void patience_stop(patience *p)
{
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    free(p);
}

static void add(patience *p, struct MHD_Connection *connection, void **own)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    guest *g = must_allocate(1, sizeof *g);
    *g = (guest){ .host = p, .fd = info->connect_fd, .until = now() + p->seconds };
    pthread_mutex_lock(&p->lock);
    g->next = p->first;
    if (g->next != NULL)
        g->next->previous = g;
    p->first = g;
    pthread_mutex_unlock(&p->lock);
    *own = g;
}

static void drop(patience *p, guest *g)
{
    pthread_mutex_lock(&p->lock);
    *(g->previous == NULL ? &p->first : &g->previous->next) = g->next;
    if (g->next != NULL)
        g->next->previous = g->previous;
    pthread_mutex_unlock(&p->lock);
    free(g);
}

void patience_meet(void *host, struct MHD_Connection *connection, void **own, enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        add(host, connection, own);
    else
        drop(host, *own);
}

static void set(struct MHD_Connection *connection, bool counts)
{
    guest *g = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    pthread_mutex_lock(&g->host->lock);
    g->until = counts ? now() + g->host->seconds : (double)INFINITY;
    pthread_mutex_unlock(&g->host->lock);
}

void patience_count(struct MHD_Connection *connection)
{
    set(connection, true);
}

void patience_rest(struct MHD_Connection *connection)
{
    set(connection, false);
}
