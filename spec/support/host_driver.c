/*
 * host_driver.c: runs the host transport between real processes, with a parent in the engine's place: it carries cards,
 * holds the rounds around batches and ends waits when a rank is lost.
 *
 *     host_driver check SCENE ROAD [OPTION...]   moves a scene's tensors, compares every live byte with the element's formula
 *     host_driver bench --json                   measures each road against its own limit, alternately, in one run
 *
 * The programs of a scene (host_scene.c) are made from shapes alone, so that this does not rest on the planner. One JSON
 * object is printed; the exit status is 0 when every rank ended well.
 *
 * Options of check: seed=N (of the scene "random"), batches=N, cycles=N (lives from open to close), timeout=SECONDS,
 * kill=RANK at=BATCH (SIGKILL between the batch's first round and its bytes), stop (then SIGSTOP instead), silent (the
 * parent does not tell of a rank that is lost), move_sources (new addresses for every batch), forbid (no rank may read
 * another's memory), read_only (the first live tensor), lose_source (of rank 0, after connect), strangers (others come to
 * the trainers' sockets), fail=N of=RANK (that rank's N-th allocation from open on).
 */
#include "base/error.h"
#include "base/memory.h"
#include "driver.h"
#include "host_scene.h"
#include "transport/host/card.h"
#include "transport/host/host.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct options {
    int batches, cycles;
    uint64_t seed;
    int kill_rank, kill_batch;
    int failing_rank, failing_allocation;
    bool move_sources, forbid, one_in_read_only, lose_source, stop, strangers, silent;
    double timeout;
} options;

/* ---- a rank ---- */

typedef enum kind { CARD, READY, CARDS, GO, ABORT } kind;

typedef struct message {
    kind kind;
    int32_t rank;
    sluice_status status;
    uint32_t length;
    char text[60000];
} message;

typedef struct rank {
    const scene *scene;
    const options *options;
    const char *road;
    int32_t number;
    int fd;
    slc_plan *plan;
    slc_program program;
    slc_transport *transport;
    /* trainer */
    const void **source;
    slc_region *region;
    size_t nregions;
    /* worker */
    slc_live_set live;
    unsigned char *staging;
    int64_t wrong;
} rank;

static bool is_worker(const rank *r)
{
    return r->number >= r->scene->trainers;
}

static void say(int fd, const message *m)
{
    if (send(fd, m, offsetof(message, text) + m->length, MSG_NOSIGNAL) < 0)
        exit(4);
}

static message *hear(int fd)
{
    static message m;
    if (recv(fd, &m, sizeof m, 0) <= 0)
        exit(4);
    return &m;
}

static sluice_status from_message(const message *m, sluice_error *error)
{
    slc_fail(error, SLUICE_PEER, "round", "%.*s", (int)m->length, m->text);
    error->rank = m->rank;
    return SLUICE_PEER;
}

static sluice_status watch_parent(void *context, sluice_error *error)
{
    const rank *r = context;
    static message m;
    ssize_t got = recv(r->fd, &m, sizeof m, MSG_DONTWAIT | MSG_PEEK);
    return got > 0 && m.kind == ABORT ? from_message(&m, error) : SLUICE_OK;
}

static sluice_status hold_round(rank *r, sluice_error *error)
{
    message m = { .kind = READY, .rank = r->number };
    say(r->fd, &m);
    const message *verdict = hear(r->fd);
    return verdict->kind == ABORT ? from_message(verdict, error) : SLUICE_OK;
}

static void *fresh(rank *r, const tensor *t, size_t bytes)
{
    if (t->where == IN_HEAP)
        return need(malloc(bytes + 1));
    sluice_error error = SLUICE_ERROR_INIT;
    r->region = need(realloc(r->region, (r->nregions + 1) * sizeof *r->region));
    if (slc_region_create(bytes, &r->region[r->nregions], &error) != SLUICE_OK)
        die(error.text);
    return r->region[r->nregions++].data;
}

static void make_sources(rank *r)
{
    const scene *s = r->scene;
    r->source = need(calloc(s->count + 1, sizeof *r->source));
    for (size_t i = 0; i < s->count; i++) {
        rect box = held(&s->tensor[i], s->tensor[i].cut_source, s->trainers, r->number);
        int64_t bytes = elements(&s->tensor[i], &box) * s->tensor[i].element;
        if (bytes > 0)
            r->source[i] = fresh(r, &s->tensor[i], (size_t)bytes);
    }
}

static void write_sources(rank *r, int batch)
{
    const scene *s = r->scene;
    for (size_t i = 0; i < s->count; i++) {
        const tensor *t = &s->tensor[i];
        rect box = held(t, t->cut_source, s->trainers, r->number);
        int64_t stride[MAX_DIMS], bytes = elements(t, &box) * t->element;
        row_major(t, &box, stride);
        if (batch > 0 && r->options->move_sources && t->where == IN_HEAP && bytes > 0) {
            void *moved =
                need(malloc((size_t)bytes + 64)); /* the old one stays allocated until the new one is, so it lies elsewhere */
            free((void *)(uintptr_t)r->source[i]);
            r->source[i] = moved;
        }
        if (bytes > 0 && r->source[i] != NULL)
            each_element(s, i, batch, &box, stride, (unsigned char *)(uintptr_t)r->source[i], false);
    }
}

static void make_live(rank *r)
{
    const scene *s = r->scene;
    int64_t largest = 1;
    r->live.item = need(calloc(s->count + 1, sizeof *r->live.item));
    r->live.count = s->count;
    for (size_t i = 0; i < s->count; i++) {
        const tensor *t = &s->tensor[i];
        rect box = held(t, t->full ? -1 : t->cut_live, s->workers, r->number - s->trainers);
        int64_t stride[MAX_DIMS], bytes;
        live_strides(t, &box, stride, &bytes);
        if (t->full && bytes > largest)
            largest = bytes;
        if (t->full)
            bytes = 0;
        static char name[] = "live";
        slc_live *live = &r->live.item[i];
        *live = (slc_live){ .name = name, .dtype = slc_dtype_find("uint8"), .ndim = 1, .shape = { bytes }, .stride = { 1 } };
        live->data = need(malloc((size_t)bytes + 1));
        memset(live->data, UNTOUCHED, (size_t)bytes);
    }
    r->staging = need(malloc((size_t)largest));
    if (r->options->one_in_read_only) {
        r->live.item[0].data = mmap(NULL, (size_t)r->live.item[0].shape[0] + 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (r->live.item[0].data == MAP_FAILED)
            die("mmap");
    }
}

static void check_direct(rank *r, int batch)
{
    const scene *s = r->scene;
    for (size_t i = 0; i < s->count; i++) {
        const tensor *t = &s->tensor[i];
        if (t->full)
            continue;
        rect box = held(t, t->cut_live, s->workers, r->number - s->trainers);
        int64_t stride[MAX_DIMS], bytes;
        live_strides(t, &box, stride, &bytes);
        int64_t wrong = each_element(s, i, batch, &box, stride, r->live.item[i].data, true);
        if (elements(t, &box) > 0)
            wrong += wrong_padding(s, i, &box, r->live.item[i].data);
        if (wrong > 0)
            fprintf(stderr, "worker rank %d: tensor %zu, batch %d: %" PRId64 " wrong\n", (int)r->number, i, batch, wrong);
        r->wrong += wrong;
    }
}

static void check_staged(rank *r, size_t param, int batch)
{
    const tensor *t = &r->scene->tensor[param];
    rect box = held(t, -1, 1, 0);
    int64_t stride[MAX_DIMS], bytes;
    live_strides(t, &box, stride, &bytes);
    r->wrong += each_element(r->scene, param, batch, &box, stride, r->staging, true);
}

static sluice_status open_rank(rank *r, sluice_error *error)
{
    const scene *s = r->scene;
    slc_transport_config config = { .rank = r->number,
                                    .trainers = s->trainers,
                                    .workers = s->workers,
                                    .plan = r->plan,
                                    .program = &r->program,
                                    .live = is_worker(r) ? &r->live : NULL,
                                    .source = r->source,
                                    .region = r->region,
                                    .nregions = r->nregions,
                                    .road = r->road };
    return slc_host_transport.open(&config, &r->transport, error);
}

/* Gives this rank's card (or its error), gets all cards, connects. */
static sluice_status meet(rank *r, sluice_error *error)
{
    slc_buffer card = { 0 };
    static message m;
    sluice_status status = open_rank(r, error);
    if (status != SLUICE_OK || (status = slc_host_transport.card(r->transport, &card, error)) != SLUICE_OK)
        return status;
    m = (message){ .kind = CARD, .rank = r->number, .length = (uint32_t)card.length };
    memcpy(m.text, card.data, card.length);
    slc_buffer_clear(&card);
    say(r->fd, &m);
    static unsigned char cards[MAX_RANKS][1024];
    const unsigned char *pointer[MAX_RANKS];
    size_t length[MAX_RANKS], all_lengths[MAX_RANKS];
    for (int32_t i = 0; i < r->scene->trainers + r->scene->workers; i++) {
        const message *one = hear(r->fd);
        if (one->kind == ABORT)
            return from_message(one, error);
        memcpy(cards[i], one->text, one->length);
        all_lengths[i] = one->length;
    }
    for (size_t i = 0; i < r->program.npeers; i++) {
        pointer[i] = cards[r->program.peer[i]];
        length[i] = all_lengths[r->program.peer[i]];
    }
    slc_watch watch = { watch_parent, r };
    return slc_host_transport.connect(r->transport, pointer, length, slc_deadline_in(r->options->timeout), watch, error);
}

static sluice_status run_batch(rank *r, int batch, sluice_error *error)
{
    const slc_transport_ops *ops = &slc_host_transport;
    slc_watch watch = { watch_parent, r };
    if (!is_worker(r))
        write_sources(r, batch);
    slc_deadline deadline = slc_deadline_in(r->options->timeout);
    sluice_status status = ops->begin(r->transport, deadline, watch, error);
    if (status == SLUICE_OK)
        status = hold_round(r, error);
    bool killing = r->options->kill_rank >= 0 && r->options->kill_batch == batch;
    if (killing && status == SLUICE_OK) {
        if (r->options->kill_rank == r->number)
            raise(r->options->stop ? SIGSTOP : SIGKILL);
        if ((r->options->kill_rank >= r->scene->trainers) != is_worker(r))
            poll(NULL, 0, 100); /* the other side comes upon a rank that is gone for certain */
    }
    for (size_t i = 0; status == SLUICE_OK && i < r->program.count; i++) {
        bool full = is_worker(r) && r->scene->tensor[i].full;
        if (full)
            memset(r->staging, UNTOUCHED, 1);
        status = ops->run(r->transport, &r->program.segment[i], full ? r->staging : NULL, deadline, watch, error);
        if (full && status == SLUICE_OK)
            check_staged(r, i, batch);
    }
    if (status == SLUICE_OK)
        status = ops->end(r->transport, deadline, watch, error);
    if (status == SLUICE_OK)
        status = hold_round(r, error);
    if (status == SLUICE_OK && is_worker(r))
        check_direct(r, batch);
    return status;
}

static void report(rank *r, sluice_status status, const sluice_error *error, const char *roads)
{
    message m = { .kind = READY, .rank = r->number, .status = status };
    m.length = (uint32_t)snprintf(m.text, sizeof m.text, "%s", status == SLUICE_OK ? roads : error->text);
    say(r->fd, &m);
}

static void forbid_reading(void)
{
    /* Without capabilities and not dumpable, a process cannot be read by others of its own user. */
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
        die("setuid");
    prctl(PR_SET_DUMPABLE, 0);
}

static int run_rank(rank *r)
{
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_status status = SLUICE_OK;
    char roads[256] = "";
    if (is_worker(r))
        make_live(r);
    else
        make_sources(r);
    if (r->options->forbid)
        forbid_reading();
    r->plan = make_plan(r->scene);
    r->program = make_program(r->scene, r->number);
    int before = descriptors();
    if (r->options->failing_rank == r->number)
        slc_fail_allocation((uint64_t)r->options->failing_allocation, false);
    for (int cycle = 0; status == SLUICE_OK && cycle < r->options->cycles; cycle++) {
        status = meet(r, &error);
        if (status == SLUICE_OK && r->options->lose_source && !is_worker(r) && r->number == 0)
            r->source[0] = NULL;
        if (status == SLUICE_OK)
            status = hold_round(r, &error);
        for (int batch = 0; status == SLUICE_OK && batch < r->options->batches; batch++)
            status = run_batch(r, batch, &error);
        roads[0] = '\0';
        for (size_t i = 0; status == SLUICE_OK && i < r->program.npeers && i < 8; i++)
            snprintf(roads + strlen(roads), sizeof roads - strlen(roads), "%s%s", i == 0 ? "" : " ",
                     slc_host_transport.road(r->transport, i));
        if (status != SLUICE_OK && r->transport != NULL)
            slc_host_transport.abort(r->transport);
        slc_host_transport.close(r->transport);
        r->transport = NULL;
    }
    slc_fail_allocation(0, false);
    if (descriptors() != before)
        status = slc_fail(&error, SLUICE_INTERNAL, "driver", "%d descriptors before, %d after", before, descriptors());
    if (status == SLUICE_OK && r->wrong > 0)
        status = slc_fail(&error, SLUICE_INTERNAL, "driver", "%" PRId64 " elements or bytes are wrong", r->wrong);
    report(r, status, &error, roads);
    return status == SLUICE_OK ? 0 : 1;
}

/* ---- the parent ---- */

typedef struct child {
    pid_t pid;
    int fd;
    bool gone, waiting, told;
    sluice_status status;
    message last;
} child;

static void tell(child *c, const message *m)
{
    if (!c->gone && !c->told)
        (void)!send(c->fd, m, offsetof(message, text) + m->length, MSG_NOSIGNAL);
}

static void abort_all(child *c, int n, int32_t who, const char *text)
{
    static message m;
    m = (message){ .kind = ABORT, .rank = who };
    m.length = (uint32_t)snprintf(m.text, sizeof m.text, "%s", text);
    for (int i = 0; i < n; i++)
        if (i != who) {
            tell(&c[i], &m);
            c[i].told = true;
        }
}

/* Comes to a trainer's socket as one that has no business there: says nothing, nonsense, or a long nothing. */
static void intrude(const message *card)
{
    sluice_error error = SLUICE_ERROR_INIT;
    slc_host_card read;
    if (slc_host_card_read((const unsigned char *)card->text, card->length, card->rank, &read, &error) != SLUICE_OK)
        die(error.text);
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    memcpy(address.sun_path + 1, read.socket, strlen(read.socket));
    for (size_t bytes = 0; read.socket[0] != '\0' && bytes < 200; bytes += 40) {
        static const char nonsense[200] = { 1, 0, 0, 0, 1 };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); /* kept: gone with this process */
        if (connect(fd, (struct sockaddr *)&address,
                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(read.socket))) != 0)
            die("connect");
        if (bytes > 0 && send(fd, nonsense, bytes, MSG_NOSIGNAL) < 0)
            die("send");
    }
}

/* Everyone waits: hands cards around, or lets all go on. */
static void release(child *c, int n, const options *o)
{
    message go = { .kind = GO };
    for (int i = 0; i < n && o->strangers && c[0].last.kind == CARD; i++)
        intrude(&c[i].last);
    for (int i = 0; i < n; i++) {
        c[i].waiting = false;
        for (int j = 0; c[0].last.kind == CARD && j < n; j++)
            tell(&c[i], &c[j].last);
        if (c[0].last.kind != CARD)
            tell(&c[i], &go);
    }
}

static void listen_to(child *c, int n, int i, const options *o)
{
    ssize_t got = recv(c[i].fd, &c[i].last, sizeof c[i].last, 0);
    if (got < 0 && errno == ECONNRESET)
        return; /* it left without reading everything; its last words come with the next call */
    if (got <= 0) {
        c[i].gone = true;
        if (c[i].status == SLUICE_OK && c[i].last.length == 0 && !o->silent) {
            char text[64];
            snprintf(text, sizeof text, "rank %d was lost", i);
            abort_all(c, n, i, text);
        }
        return;
    }
    c[i].status = c[i].last.status;
    c[i].last.text[c[i].last.length] = '\0';
    c[i].waiting = true;
    if (c[i].status != SLUICE_OK)
        abort_all(c, n, i, c[i].last.text);
}

static int mind(child *c, int n, const options *o)
{
    struct pollfd p[MAX_RANKS];
    for (;;) {
        int left = 0, waiting = 0;
        for (int i = 0; i < n; i++) {
            p[i] = (struct pollfd){ .fd = c[i].gone ? -1 : c[i].fd, .events = POLLIN };
            left += !c[i].gone;
            waiting += c[i].waiting;
        }
        if (left == 0)
            break;
        if (left == 1 && o->stop && !c[o->kill_rank].gone)
            kill(c[o->kill_rank].pid, SIGKILL); /* a stopped rank does not leave by itself */
        if (waiting == n && c[0].last.kind == READY && c[0].last.length > 0) {
            /* the last words of all: they leave by themselves */
        } else if (waiting == n) {
            release(c, n, o);
        }
        if (poll(p, (nfds_t)n, -1) < 0 && errno != EINTR)
            die("poll");
        for (int i = 0; i < n; i++)
            if (p[i].revents != 0)
                listen_to(c, n, i, o);
    }
    int bad = 0;
    for (int i = 0; i < n; i++) {
        int status;
        waitpid(c[i].pid, &status, 0);
        if (WIFSIGNALED(status)) {
            c[i].status = SLUICE_INTERNAL;
            snprintf(c[i].last.text, sizeof c[i].last.text, "signal %d", WTERMSIG(status));
        }
        bad += c[i].status != SLUICE_OK || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return bad;
}

static int check(const char *name, const char *road, const options *o)
{
    static scene s;
    static child *c;
    static rank r; /* static as are the two above: what they hold is no leak */
    s = make_scene(name, o->seed);
    int n = s.trainers + s.workers;
    if (strcmp(road, "map") == 0)
        for (size_t i = 0; i < s.count && strcmp(name, "mixed") != 0; i++)
            s.tensor[i].where = IN_REGION;
    c = need(calloc((size_t)n, sizeof *c));
    for (int i = 0; i < n; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            die("socketpair");
        int size = 1 << 20;
        setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        c[i].pid = fork();
        if (c[i].pid < 0)
            die("fork");
        if (c[i].pid == 0) {
            for (int j = 0; j < i; j++)
                close(c[j].fd);
            close(pair[0]);
            r = (rank){ .scene = &s, .options = o, .road = strcmp(road, "any") == 0 ? NULL : road, .number = i, .fd = pair[1] };
            exit(run_rank(&r));
        }
        close(pair[1]);
        c[i].fd = pair[0];
    }
    int bad = mind(c, n, o);
    printf("{\"ok\": %s, \"trainers\": %d, \"workers\": %d, \"ranks\": [", bad == 0 ? "true" : "false", (int)s.trainers,
           (int)s.workers);
    for (int i = 0; i < n; i++) {
        printf("%s{\"status\": ", i == 0 ? "" : ", ");
        print_text(sluice_status_text(c[i].status), strlen(sluice_status_text(c[i].status)));
        printf(", \"text\": ");
        print_text(c[i].last.text, strlen(c[i].last.text));
        printf("}");
    }
    printf("]}\n");
    return bad == 0 ? 0 : 1;
}

/* A number behind "name=", or what it was. */
static double number_of(const char *argument, const char *name, double was)
{
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 && argument[length] == '=' ? atof(argument + length + 1) : was;
}

int main(int argc, char **argv)
{
    options o = { .batches = 2, .cycles = 1, .seed = 1, .kill_rank = -1, .failing_rank = -1, .timeout = 20 };
    if (argc >= 2 && strcmp(argv[1], "bench") == 0)
        return bench(argc - 2, argv + 2);
    if (argc < 4 || strcmp(argv[1], "check") != 0) {
        fprintf(stderr, "usage: host_driver check SCENE ROAD [OPTION...] | bench --json\n");
        return 3;
    }
    for (int i = 4; i < argc; i++) {
        o.batches = (int)number_of(argv[i], "batches", o.batches);
        o.cycles = (int)number_of(argv[i], "cycles", o.cycles);
        o.seed = (uint64_t)number_of(argv[i], "seed", (double)o.seed);
        o.kill_rank = (int)number_of(argv[i], "kill", o.kill_rank);
        o.kill_batch = (int)number_of(argv[i], "at", o.kill_batch);
        o.failing_rank = (int)number_of(argv[i], "of", o.failing_rank);
        o.failing_allocation = (int)number_of(argv[i], "fail", o.failing_allocation);
        o.timeout = number_of(argv[i], "timeout", o.timeout);
        o.move_sources = o.move_sources || strcmp(argv[i], "move_sources") == 0;
        o.stop = o.stop || strcmp(argv[i], "stop") == 0;
        o.silent = o.silent || strcmp(argv[i], "silent") == 0;
        o.strangers = o.strangers || strcmp(argv[i], "strangers") == 0;
        o.forbid = o.forbid || strcmp(argv[i], "forbid") == 0;
        o.one_in_read_only = o.one_in_read_only || strcmp(argv[i], "read_only") == 0;
        o.lose_source = o.lose_source || strcmp(argv[i], "lose_source") == 0;
    }
    return check(argv[2], argv[3], &o);
}
