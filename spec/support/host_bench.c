/*
 * host_bench.c: the speed of each road of the host transport against its own limit, with 2 trainers and 2 workers: both
 * workers at once, ours and the limit in turn, in one run, over the same memory. A sample is the bytes of both workers by
 * the time of the slower one.
 */
#include "base/error.h"
#include "base/memory.h"
#include "host_scene.h"
#include "transport/host/host.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, TRAINERS = 2, WORKERS = 2, MOST_SAMPLES = 101, MOST_PARAMS = 10000, VECTORS = 1024 };
enum { OURS, LIMIT, SIDES };

/* What a worker does in the limit's turn. READ_SAME reads what its program reads, READ_PACKED as many bytes in one piece. */
typedef enum limit { READ_SAME, READ_PACKED, COPY } limit;

typedef struct course {
    const char *name, *road;
    limit limit;
    place where;
    void (*fill)(scene *s, int64_t bytes); /* `bytes` for each worker */
} course;

typedef struct shared {
    pthread_barrier_t barrier;
    pid_t pid[TRAINERS];
    const void *source[TRAINERS][MOST_PARAMS];
    unsigned char card[RANKS][1024];
    size_t length[RANKS];
    double seconds[WORKERS];
    double sample[SIDES][MOST_SAMPLES];
    char road[32];
} shared;

static void meet_all(shared *all)
{
    pthread_barrier_wait(&all->barrier);
}

static void check(sluice_status status, const sluice_error *error)
{
    if (status != SLUICE_OK) {
        fprintf(stderr, "host_driver: %s\n", error->text);
        exit(1);
    }
}

/* ---- courses ---- */

enum { TENSORS = 8 };

static void fill_contiguous(scene *s, int64_t bytes)
{
    for (int i = 0; i < TENSORS; i++)
        add(s, 1, SHAPE(bytes / TENSORS / 2), 2, -1, -1);
}

static void fill_rows(scene *s, int64_t bytes)
{
    for (int i = 0; i < TENSORS; i++)
        add(s, 2, SHAPE(bytes / TENSORS / 4096, 4096), 2, 0, 1);
}

static void fill_short_rows(scene *s, int64_t bytes)
{
    for (int i = 0; i < TENSORS; i++)
        add(s, 2, SHAPE(bytes / TENSORS / 128, 128), 2, 0, 1);
}

static void fill_permuted(scene *s, int64_t bytes)
{
    for (int i = 0; i < TENSORS; i++) {
        tensor *t = add(s, 2, SHAPE(bytes / TENSORS / 4096, 4096), 2, 0, 1);
        t->order[0] = 1, t->order[1] = 0;
    }
}

static void fill_many(scene *s, int64_t bytes)
{
    (void)bytes;
    for (int i = 0; i < MOST_PARAMS; i++)
        add(s, 1, SHAPE(512), 2, -1, -1);
}

static const course courses[] = {
    { "pull_contiguous", "pull", READ_SAME, IN_HEAP, fill_contiguous },
    { "pull_rows_4k", "pull", READ_SAME, IN_HEAP, fill_rows },
    { "pull_rows_128", "pull", READ_PACKED, IN_HEAP, fill_short_rows },
    { "pull_permuted", "pull", READ_PACKED, IN_HEAP, fill_permuted },
    { "pull_10000_of_1k", "pull", READ_SAME, IN_HEAP, fill_many },
    { "map_contiguous", "map", COPY, IN_REGION, fill_contiguous },
    { "map_rows_4k", "map", COPY, IN_REGION, fill_rows },
    { "map_permuted", "map", COPY, IN_REGION, fill_permuted },
    { "ring_contiguous", "ring", COPY, IN_HEAP, fill_contiguous },
    { "ring_rows_4k", "ring", COPY, IN_HEAP, fill_rows },
    { "ring_10000_of_1k", "ring", COPY, IN_HEAP, fill_many },
};

/* ---- a rank ---- */

typedef struct racer {
    const scene *scene;
    const course *course;
    shared *all;
    int32_t rank;
    slc_program program;
    const void **source;
    slc_region *region;
    size_t nregions;
    slc_live_set live;
    unsigned char *other; /* worker: ordinary memory of its own, to copy from */
    struct iovec *local[TRAINERS], *remote[TRAINERS];
    size_t nlocal[TRAINERS], nremote[TRAINERS];
    slc_transport *transport;
} racer;

static unsigned char *touched(size_t bytes)
{
    unsigned char *memory = need(aligned_alloc(64, (bytes + 127) / 64 * 64));
    memset(memory, 1, bytes);
    return memory;
}

static void make_memory(racer *r)
{
    const scene *s = r->scene;
    bool worker = r->rank >= TRAINERS;
    r->source = need(calloc(s->count, sizeof *r->source));
    r->region = need(calloc(s->count, sizeof *r->region));
    r->live.item = need(calloc(s->count, sizeof *r->live.item));
    r->live.count = worker ? s->count : 0;
    int64_t largest = 0;
    for (size_t i = 0; i < s->count; i++) {
        const tensor *t = &s->tensor[i];
        rect box = worker ? held(t, t->cut_live, WORKERS, r->rank - TRAINERS) : held(t, t->cut_source, TRAINERS, r->rank);
        int64_t bytes = elements(t, &box) * t->element;
        sluice_error error = SLUICE_ERROR_INIT;
        if (worker) {
            r->live.item[i] = (slc_live){ .name = "live",
                                          .dtype = slc_dtype_find("uint8"),
                                          .ndim = 1,
                                          .shape = { bytes },
                                          .stride = { 1 },
                                          .data = touched((size_t)bytes) };
        } else if (r->course->where == IN_REGION) {
            check(slc_region_create((size_t)bytes, &r->region[r->nregions], &error), &error);
            memset(r->region[r->nregions].data, 1, (size_t)bytes);
            r->source[i] = r->region[r->nregions++].data;
        } else {
            r->source[i] = touched((size_t)bytes);
        }
        if (!worker)
            r->all->source[r->rank][i] = r->source[i];
        largest = bytes > largest ? bytes : largest;
    }
    if (worker)
        r->other = touched((size_t)r->program.bytes);
}

static void append(struct iovec **list, size_t *count, void *base, size_t bytes)
{
    struct iovec *last = *count > 0 ? &(*list)[*count - 1] : NULL;
    if (last != NULL && (unsigned char *)last->iov_base + last->iov_len == base) {
        last->iov_len += bytes;
        return;
    }
    if ((*count & (*count - 1)) == 0)
        *list = need(realloc(*list, (*count == 0 ? 1 : *count * 2) * sizeof **list));
    (*list)[(*count)++] = (struct iovec){ .iov_base = base, .iov_len = bytes };
}

/* The vectors of the bare calls, made ahead of time. */
static void make_vectors(racer *r)
{
    for (size_t i = 0; i < r->program.count; i++)
        for (uint32_t j = 0; j < r->program.segment[i].ncopies; j++) {
            const slc_copy *copy = &r->program.segment[i].copy[j];
            unsigned char *from = (unsigned char *)(uintptr_t)r->all->source[copy->peer][i] + copy->source;
            unsigned char *to = r->live.item[i].data + copy->destination;
            bool packed = r->course->limit == READ_PACKED;
            int64_t count = packed || copy->ndim == 0 ? 1 : copy->dim[0].count;
            for (int64_t k = 0; k < count; k++) {
                size_t bytes = (size_t)(packed ? copy->bytes : copy->run);
                append(&r->local[copy->peer], &r->nlocal[copy->peer], packed ? r->live.item[i].data : to, bytes);
                append(&r->remote[copy->peer], &r->nremote[copy->peer],
                       packed ? (void *)(uintptr_t)r->all->source[copy->peer][i] : from, bytes);
                if (count > 1)
                    to += copy->dim[0].destination, from += copy->dim[0].source;
            }
        }
}

/* One bare call; both lists advance by what it moved. */
static void read_once(pid_t pid, struct iovec *local, size_t *at, size_t nlocal, struct iovec *remote, size_t *from,
                      size_t nremote)
{
    size_t most = nremote - *from < VECTORS ? nremote - *from : VECTORS, wanted = 0, given = 0, count = 0;
    for (size_t i = 0; i < most; i++)
        wanted += remote[*from + i].iov_len;
    while (given < wanted && count < VECTORS && *at + count < nlocal)
        given += local[*at + count++].iov_len;
    ssize_t got = process_vm_readv(pid, local + *at, count, remote + *from, most, 0);
    if (got <= 0)
        die("process_vm_readv");
    for (size_t left = (size_t)got; left > 0;) {
        size_t part = remote[*from].iov_len < left ? remote[*from].iov_len : left;
        left -= part;
        remote[*from].iov_base = (unsigned char *)remote[*from].iov_base + part;
        if ((remote[*from].iov_len -= part) == 0)
            ++*from;
    }
    for (size_t left = (size_t)got; left > 0;) {
        size_t part = local[*at].iov_len < left ? local[*at].iov_len : left;
        left -= part;
        local[*at].iov_base = (unsigned char *)local[*at].iov_base + part;
        if ((local[*at].iov_len -= part) == 0)
            ++*at;
    }
}

static void read_bare(racer *r, struct iovec *local[TRAINERS], struct iovec *remote[TRAINERS])
{
    for (int t = 0; t < TRAINERS; t++)
        for (size_t at = 0, from = 0; from < r->nremote[t];)
            read_once(r->all->pid[t], local[t], &at, r->nlocal[t], remote[t], &from, r->nremote[t]);
}

static struct iovec *copied(const struct iovec *list, size_t count)
{
    struct iovec *copy = need(malloc((count + 1) * sizeof *copy));
    if (count > 0)
        memcpy(copy, list, count * sizeof *copy);
    return copy;
}

static double limit_turn(racer *r)
{
    struct iovec *local[TRAINERS], *remote[TRAINERS];
    for (int t = 0; t < TRAINERS; t++)
        local[t] = copied(r->local[t], r->nlocal[t]), remote[t] = copied(r->remote[t], r->nremote[t]);
    double started = slc_now_s();
    if (r->course->limit == COPY)
        for (size_t i = 0, at = 0; i < r->live.count; at += (size_t)r->live.item[i].shape[0], i++)
            memcpy(r->live.item[i].data, r->other + at, (size_t)r->live.item[i].shape[0]);
    else
        read_bare(r, local, remote);
    double seconds = slc_now_s() - started;
    for (int t = 0; t < TRAINERS; t++)
        free(local[t]), free(remote[t]);
    return seconds;
}

static double our_turn(racer *r)
{
    const slc_transport_ops *ops = &slc_host_transport;
    slc_deadline deadline = slc_deadline_in(120);
    slc_watch watch = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    double started = slc_now_s();
    check(ops->begin(r->transport, deadline, watch, &error), &error);
    for (size_t i = 0; i < r->program.count; i++)
        check(ops->run(r->transport, &r->program.segment[i], NULL, deadline, watch, &error), &error);
    check(ops->end(r->transport, deadline, watch, &error), &error);
    return slc_now_s() - started;
}

static void connect_all(racer *r)
{
    const slc_transport_ops *ops = &slc_host_transport;
    sluice_error error = SLUICE_ERROR_INIT;
    slc_transport_config config = { .rank = r->rank,
                                    .trainers = TRAINERS,
                                    .workers = WORKERS,
                                    .program = &r->program,
                                    .live = r->rank < TRAINERS ? NULL : &r->live,
                                    .source = r->source,
                                    .region = r->region,
                                    .nregions = r->nregions,
                                    .road = r->course->road };
    slc_buffer card = { 0 };
    check(ops->open(&config, &r->transport, &error), &error);
    check(ops->card(r->transport, &card, &error), &error);
    memcpy(r->all->card[r->rank], card.data, card.length);
    r->all->length[r->rank] = card.length;
    slc_buffer_clear(&card);
    meet_all(r->all);
    const unsigned char *cards[RANKS];
    size_t lengths[RANKS];
    for (size_t i = 0; i < r->program.npeers; i++) {
        cards[i] = r->all->card[r->program.peer[i]];
        lengths[i] = r->all->length[r->program.peer[i]];
    }
    check(ops->connect(r->transport, cards, lengths, slc_deadline_in(60), (slc_watch){ 0 }, &error), &error);
    if (r->rank == TRAINERS)
        snprintf(r->all->road, sizeof r->all->road, "%s", ops->road(r->transport, 0));
    meet_all(r->all);
}

/* Turns alternate, and so does who begins; the first of each warms up and does not count. */
static void race(racer *r, int samples)
{
    for (int i = -1; i < samples; i++)
        for (int turn = 0; turn < SIDES; turn++) {
            int side = (i & 1) == 0 ? turn : SIDES - 1 - turn;
            bool worker = r->rank >= TRAINERS;
            meet_all(r->all);
            double seconds = 0;
            if (side == OURS)
                seconds = our_turn(r);
            else if (worker)
                seconds = limit_turn(r);
            if (worker)
                r->all->seconds[r->rank - TRAINERS] = seconds;
            meet_all(r->all);
            if (r->rank == TRAINERS && i >= 0)
                r->all->sample[side][i] = r->all->seconds[0] > r->all->seconds[1] ? r->all->seconds[0] : r->all->seconds[1];
        }
}

static int run_racer(racer *r, int samples)
{
    alarm(600); /* nobody waits for ever at a barrier for a rank that died */
    r->program = make_program(r->scene, r->rank);
    if (r->rank < TRAINERS)
        r->all->pid[r->rank] = getpid();
    make_memory(r);
    meet_all(r->all);
    if (r->rank >= TRAINERS)
        make_vectors(r);
    connect_all(r);
    race(r, samples);
    slc_host_transport.close(r->transport);
    return 0;
}

/* ---- the parent ---- */

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static void print_rates(const char *name, const double *seconds, int samples, double bytes)
{
    double rate[MOST_SAMPLES];
    for (int i = 0; i < samples; i++)
        rate[i] = bytes / seconds[i] * 1e-9;
    qsort(rate, (size_t)samples, sizeof *rate, by_value);
    printf("\"%s\": {\"median\": %.3f, \"least\": %.3f, \"most\": %.3f}", name, rate[samples / 2], rate[0], rate[samples - 1]);
}

static double median(const double *list, int count)
{
    double sorted[MOST_SAMPLES];
    memcpy(sorted, list, (size_t)count * sizeof *list);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    return sorted[count / 2];
}

static bool run_course(const course *c, int64_t bytes, int samples, bool first)
{
    shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        die("mmap");
    pthread_barrierattr_t attribute;
    pthread_barrierattr_init(&attribute);
    pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->barrier, &attribute, RANKS);
    scene s = { .trainers = TRAINERS, .workers = WORKERS };
    c->fill(&s, bytes);
    pid_t child[RANKS];
    fflush(stdout);
    for (int i = 0; i < RANKS; i++) {
        child[i] = fork();
        if (child[i] < 0)
            die("fork");
        if (child[i] == 0) {
            racer r = { .scene = &s, .course = c, .all = all, .rank = i };
            exit(run_racer(&r, samples));
        }
    }
    bool good = true;
    for (int i = 0; i < RANKS; i++) {
        int status;
        pid_t ended = wait(&status);
        good = good && ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        for (int j = 0; !good && j < RANKS; j++)
            if (child[j] != ended)
                kill(child[j], SIGKILL);
    }
    if (good) {
        slc_program program = make_program(&s, TRAINERS);
        double moved = (double)program.bytes * WORKERS;
        printf("%s\n  \"%s\": {\"road\": \"%s\", \"bytes\": %.0f, \"samples\": %d, ", first ? "" : ",", c->name, all->road, moved,
               samples);
        print_rates("gb_per_s", all->sample[OURS], samples, moved);
        printf(", \"limit\": \"%s\", ", c->limit == COPY        ? "memcpy"
                                        : c->limit == READ_SAME ? "process_vm_readv"
                                                                : "process_vm_readv, packed");
        print_rates("limit_gb_per_s", all->sample[LIMIT], samples, moved);
        double ratio[MOST_SAMPLES]; /* of neighbours in time, so that a machine that is busy with other things moves both */
        for (int i = 0; i < samples; i++)
            ratio[i] = all->sample[LIMIT][i] / all->sample[OURS][i];
        printf(", \"of_limit\": %.3f, \"us_per_tensor\": %.3f}", median(ratio, samples),
               median(all->sample[OURS], samples) / (double)s.count * 1e6);
    }
    pthread_barrier_destroy(&all->barrier);
    munmap(all, sizeof *all);
    return good;
}

int bench(int argc, char **argv)
{
    int64_t mib = 1024;
    int samples = 7;
    const char *only = NULL;
    bool json = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strncmp(argv[i], "--mib=", 6) == 0)
            mib = atoll(argv[i] + 6);
        else if (strncmp(argv[i], "--samples=", 10) == 0)
            samples = atoi(argv[i] + 10);
        else
            only = argv[i];
    }
    if (!json || mib < 1 || samples < 1 || samples > MOST_SAMPLES) {
        fprintf(stderr, "usage: host_driver bench --json [--mib=N for each worker] [--samples=N] [COURSE]\n");
        return 3;
    }
    bool good = true, first = true;
    printf("{");
    for (size_t i = 0; good && i < sizeof courses / sizeof courses[0]; i++)
        if (only == NULL || strstr(courses[i].name, only) != NULL) {
            good = run_course(&courses[i], mib << 20, samples, first);
            first = false;
        }
    printf("\n}\n");
    return good ? 0 : 1;
}
