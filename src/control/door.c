/*
 * door.c: see door.h: the thread that serves, and those whom it serves. Owns the thread, the connections and what is shown.
 */
#include "control/door.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "control/door_place.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const char STAGE[] = "attach";
static const double REQUEST_S = 5, STALL_S = 10, LONGEST_S = 120; /* to ask; without taking a byte; for a whole answer */
static const int64_t ACCEPT_PERIOD_NS = 100000000;

enum { AT_ONCE = 256 << 10, LOWEST_PRIORITY = 19 };

typedef struct visitor {
    int fd;
    slc_deadline until, at_most; /* of the next byte, of all */
    unsigned char request[SLC_DOOR_REQUEST];
    size_t asked;
    bool answering;
    char head[128]; /* the answer's first line */
    size_t head_length, sent;
    slc_buffer own;        /* the rest of it, */
    slc_exhibit *exhibit;  /* or this one's body */
} visitor;

struct slc_door {
    slc_door_place place;
    slc_door_status status;
    void *user;
    pthread_t thread;
    int wake; /* readable: the thread is to end */
    pthread_mutex_t lock; /* of `shown` alone */
    slc_exhibit *shown;
    /* the thread's own */
    visitor visitor[SLC_DOOR_VISITORS];
    size_t nvisitors;
    int accepts; /* that are left until `refill` */
    slc_deadline refill;
    uint64_t answered, turned_away;
};

/* ---- exhibits ---- */

slc_exhibit *slc_exhibit_create(void)
{
    slc_exhibit *exhibit = slc_allocate_zeroed(1, sizeof *exhibit);
    if (exhibit != NULL)
        exhibit->users = 1;
    return exhibit;
}

void slc_exhibit_release(slc_exhibit *exhibit)
{
    if (exhibit == NULL || __atomic_sub_fetch(&exhibit->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    slc_buffer_clear(&exhibit->head);
    slc_buffer_clear(&exhibit->body);
    slc_release(exhibit);
}

static slc_exhibit *take_exhibit(slc_door *door)
{
    pthread_mutex_lock(&door->lock);
    slc_exhibit *shown = door->shown;
    if (shown != NULL)
        (void)__atomic_add_fetch(&shown->users, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&door->lock);
    return shown;
}

void slc_door_show(slc_door *door, slc_exhibit *exhibit)
{
    pthread_mutex_lock(&door->lock);
    slc_exhibit *before = door->shown;
    door->shown = exhibit;
    pthread_mutex_unlock(&door->lock);
    slc_exhibit_release(before);
}

const slc_exhibit *slc_door_shown(const slc_door *door)
{
    return door->shown; /* nobody else changes it */
}

/* ---- one who asks ---- */

slc_door_request slc_door_read(const unsigned char *data, size_t length)
{
    static const struct {
        const char *line;
        slc_door_request request;
    } known[] = { { "sluice attach 1 status\n", SLC_DOOR_STATUS }, { "sluice attach 1 plan\n", SLC_DOOR_PLAN } };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t whole = strlen(known[i].line);
        if (length <= whole && memcmp(data, known[i].line, length) == 0)
            return length == whole ? known[i].request : SLC_DOOR_UNFINISHED;
    }
    return SLC_DOOR_NONSENSE;
}

static void begin_answer(visitor *v, size_t length)
{
    v->answering = true;
    v->head_length = (size_t)snprintf(v->head, sizeof v->head, "ok %zu\n", length);
    v->until = slc_deadline_in(STALL_S);
}

static void refuse(visitor *v, const char *why)
{
    v->answering = true;
    v->head_length = (size_t)snprintf(v->head, sizeof v->head, "no %s\n", why);
    v->until = slc_deadline_in(STALL_S);
}

static void answer(slc_door *door, visitor *v, slc_door_request request)
{
    slc_exhibit *exhibit = take_exhibit(door);
    if (request == SLC_DOOR_STATUS) {
        door->status(door->user, exhibit, &v->own);
        slc_exhibit_release(exhibit);
        if (v->own.failed)
            slc_buffer_clear(&v->own);
        if (v->own.length == 0)
            refuse(v, "out of memory");
        else
            begin_answer(v, v->own.length);
    } else if (exhibit == NULL) {
        refuse(v, "there is no plan: the engine is not ready");
    } else {
        v->exhibit = exhibit;
        begin_answer(v, exhibit->body.length);
    }
    door->answered++;
}

/* Each of these two says whether the visitor stays. */
static bool hear(slc_door *door, visitor *v)
{
    ssize_t got = recv(v->fd, v->request + v->asked, sizeof v->request - v->asked, MSG_DONTWAIT);
    if (got <= 0)
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    v->asked += (size_t)got;
    slc_door_request request = slc_door_read(v->request, v->asked);
    if (request == SLC_DOOR_NONSENSE) {
        door->turned_away++;
        refuse(v, "a request is \"sluice attach 1 status\" or \"sluice attach 1 plan\" and a newline");
    } else if (request != SLC_DOOR_UNFINISHED) {
        answer(door, v, request);
    }
    return true;
}

static bool tell(visitor *v)
{
    const slc_buffer *rest = v->exhibit != NULL ? &v->exhibit->body : &v->own;
    size_t all = v->head_length + rest->length;
    bool in_head = v->sent < v->head_length;
    const void *from = in_head ? (const void *)(v->head + v->sent) : (const void *)(rest->data + (v->sent - v->head_length));
    size_t left = in_head ? v->head_length - v->sent : all - v->sent;
    ssize_t sent = send(v->fd, from, left < AT_ONCE ? left : AT_ONCE, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR;
    v->sent += (size_t)sent;
    v->until = slc_deadline_in(STALL_S);
    return v->sent < all;
}

static void drop(slc_door *door, size_t i)
{
    visitor *v = &door->visitor[i];
    close(v->fd);
    slc_buffer_clear(&v->own);
    slc_exhibit_release(v->exhibit);
    door->visitor[i] = door->visitor[--door->nvisitors];
}

/* ---- who comes ---- */

static bool may_ask(int fd)
{
    struct ucred who;
    socklen_t size = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && (who.uid == geteuid() || who.uid == 0);
}

static void turn_away(slc_door *door, int fd, const char *why)
{
    door->turned_away++;
    (void)send(fd, why, strlen(why), MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
}

static void admit(slc_door *door)
{
    while (door->accepts > 0) {
        int fd = accept4(door->place.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                door->accepts = 0; /* no descriptor is left, say: later */
            return;
        }
        door->accepts--;
        if (!may_ask(fd)) {
            turn_away(door, fd, "no only the user of this engine and root may ask\n");
        } else if (door->nvisitors == SLC_DOOR_VISITORS) {
            turn_away(door, fd, "no others are asking; try again\n");
            return; /* who has gone meanwhile makes room for the next one */
        } else {
            visitor *v = &door->visitor[door->nvisitors++];
            *v = (visitor){ .fd = fd, .until = slc_deadline_in(REQUEST_S), .at_most = slc_deadline_in(LONGEST_S) };
        }
    }
}

/* ---- the thread ---- */

static int patience_ms(const slc_door *door)
{
    int longest = 60000;
    if (door->accepts == 0)
        longest = slc_deadline_poll_ms(door->refill, longest);
    for (size_t i = 0; i < door->nvisitors; i++)
        longest = slc_deadline_poll_ms(slc_deadline_sooner(door->visitor[i].until, door->visitor[i].at_most), longest);
    return longest;
}

static void serve_visitors(slc_door *door, const struct pollfd *wanted)
{
    for (size_t i = door->nvisitors; i-- > 0;) { /* backwards: the last takes the place of one who goes */
        visitor *v = &door->visitor[i];
        bool stays = !slc_deadline_passed(v->until) && !slc_deadline_passed(v->at_most);
        if (!stays)
            door->turned_away++;
        if (stays && wanted[i].revents != 0)
            stays = v->answering ? tell(v) : hear(door, v);
        if (!stays)
            drop(door, i);
    }
}

static void *serve(void *argument)
{
    enum { WAKE, LISTENER, FIRST };
    slc_door *door = argument;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LOWEST_PRIORITY); /* on Linux a thread has its own */
    for (;;) {
        struct pollfd wanted[FIRST + SLC_DOOR_VISITORS];
        if (door->accepts < SLC_DOOR_ACCEPTS && slc_deadline_passed(door->refill)) {
            door->accepts = SLC_DOOR_ACCEPTS;
            door->refill = (slc_deadline){ .at_ns = slc_now_ns() + ACCEPT_PERIOD_NS };
        }
        wanted[WAKE] = (struct pollfd){ .fd = door->wake, .events = POLLIN };
        wanted[LISTENER] = (struct pollfd){ .fd = door->accepts > 0 ? door->place.fd : -1, .events = POLLIN };
        for (size_t i = 0; i < door->nvisitors; i++)
            wanted[FIRST + i] = (struct pollfd){ .fd = door->visitor[i].fd, .events = door->visitor[i].answering ? POLLOUT : POLLIN };
        if (poll(wanted, FIRST + (nfds_t)door->nvisitors, patience_ms(door)) < 0)
            continue; /* interrupted: what revents say counts for nothing */
        if (wanted[WAKE].revents != 0)
            return NULL;
        serve_visitors(door, &wanted[FIRST]);
        if (wanted[LISTENER].revents != 0)
            admit(door);
    }
}

static int start_thread(slc_door *door)
{
    int code = slc_thread_start(&door->thread, false, serve, door);
    if (code == 0)
        pthread_setname_np(door->thread, "sluice-attach");
    return code;
}

static void free_door(slc_door *door)
{
    slc_door_leave(&door->place);
    if (door->wake >= 0)
        close(door->wake);
    slc_exhibit_release(door->shown);
    pthread_mutex_destroy(&door->lock);
    slc_release(door);
}

sluice_status slc_door_open(const char *path, int fd, slc_door_status status, void *user, slc_door **door, sluice_error *error)
{
    *door = NULL;
    slc_door_place place;
    sluice_status result = slc_door_listen(path, fd, &place, error);
    if (result != SLUICE_OK)
        return result;
    slc_door *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL) {
        slc_door_leave(&place);
        return slc_fail_memory(error, STAGE, "a door", sizeof *made);
    }
    made->place = place;
    made->status = status;
    made->user = user;
    pthread_mutex_init(&made->lock, NULL);
    made->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int code = made->wake < 0 ? errno : start_thread(made);
    if (code == 0) {
        *door = made;
        return SLUICE_OK;
    }
    free_door(made);
    return slc_fail_errno(error, code, STAGE, "no thread that answers");
}

void slc_door_close(slc_door *door, uint64_t *answered, uint64_t *turned_away)
{
    if (door == NULL)
        return;
    (void)eventfd_write(door->wake, 1);
    pthread_join(door->thread, NULL);
    while (door->nvisitors > 0)
        drop(door, door->nvisitors - 1);
    if (answered != NULL)
        *answered = door->answered;
    if (turned_away != NULL)
        *turned_away = door->turned_away;
    free_door(door);
}
