/*
 * engine_driver.c: two engines in one process, a trainer and a worker on a thread each, through a whole life. Built for
 * specs that need C: the allocator failing at every n-th request, many lives in a row, many plans in one life.
 *
 *     engine_driver sweep STEP [FIRST [KIND]]  request FIRST (1), FIRST + STEP, ... fails, one a life, until a life ends before it
 *     engine_driver cycles N  N lives; prints descriptors and resident pages after the first tenth and at the end
 *     engine_driver cancels N  N lives, in each of which a thread of its own cancels one of the engines, a little later each time
 *     engine_driver reloads N  N reloads of rules in one life, an update after each; prints as cycles does
 *     engine_driver labels N  N updates without a parameter in one life, each with a label of its own, which another thread copies
 *     engine_driver reload_sweep STEP [FIRST]  as sweep, of the requests of one reload; a life goes on as long as its plan works
 *
 * KIND: plain (which has a parameter in place and one through load_weights), secure (with a key), refused (the trainer lacks a
 * source, which a round tells to all), callback (load_weights fails), attached (both may be attached to).
 *
 * Exit 0: each life ended in success or in an error with a text, and nothing else.
 */
#include "base/error.h"
#include "base/memory.h"
#include "driver.h"
#include "sluice.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char PARAMS[] =
    "{\"schema_version\":2,\"master_address\":\"%s\",\"master_port\":%d,\"rank_offset\":1,\"world_size\":2,"
    "\"dst_mesh_dims\":[1,1],\"params\":["
    "{\"name\":\"a.weight\",\"dtype_name\":\"float32\",\"shape\":[4,6],\"src_mesh_dims\":[1,1],\"src_placements\":null},"
    "{\"name\":\"b.bias\",\"dtype_name\":\"float32\",\"shape\":[3],\"src_mesh_dims\":[1,1],\"src_placements\":null}]}";

typedef enum life_kind { PLAIN, SECURE, REFUSED, CALLBACK, ATTACHED, KINDS } life_kind;

static const char *const KIND[KINDS] = { "plain", "secure", "refused", "callback", "attached" };

typedef struct life {
    life_kind kind;
    int64_t cancel_after_ns; /* negative: never */
    int rank, listen_fd;
    double timeout_s;
    const char *init_info, *rules, *label;
    sluice_engine *engine;
    float a[24], b[3]; /* trainer: sources; worker: live a and what load_weights brought */
    pthread_t canceller;
    bool cancels;
    sluice_status status;
    sluice_error error;
} life;

static sluice_status load(void *user, sluice_weights *weights, sluice_error *error)
{
    life *self = user;
    const sluice_tensor *tensor;
    sluice_status status;
    if (self->kind == CALLBACK)
        return slc_fail(error, SLUICE_CALLBACK, "load", "this host loads nothing");
    while ((status = sluice_weights_next(weights, &tensor, error)) == SLUICE_OK && tensor != NULL)
        memcpy(self->b, tensor->data, sizeof self->b);
    return status;
}

static sluice_status own(sluice_engine *engine, life *self)
{
    sluice_error *error = &self->error;
    if (self->rank == 0) {
        sluice_status status = sluice_register_source(engine, "a.weight", "float32", self->a, sizeof self->a, error);
        if (status != SLUICE_OK || self->kind == REFUSED)
            return status;
        return sluice_register_source(engine, "b.bias", "float32", self->b, sizeof self->b, error);
    }
    const int64_t shape[] = { 4, 6 };
    sluice_live live = { .size = sizeof live, .name = "a.weight", .dtype = "float32", .ndim = 2, .shape = shape, .data = self->a,
                         .attributes = "{\"loader\":\"replicated\",\"tp_size\":1}" };
    sluice_status status = sluice_describe_host(engine, "{\"tensor_parallel_size\":1}", 26, error);
    return status != SLUICE_OK ? status : sluice_register_live(engine, &live, error);
}

/* A descriptor to read the key from; -1 where there is none. */
static int key_descriptor(const life *self)
{
    static const char KEY[] = "a key of the least bytes there are";
    int end[2];
    if (self->kind != SECURE || pipe(end) != 0)
        return -1;
    (void)!write(end[1], KEY, sizeof KEY);
    close(end[1]);
    return end[0];
}

static void *cancel_later(void *argument)
{
    const life *self = argument;
    const struct timespec pause = { .tv_sec = self->cancel_after_ns / 1000000000, .tv_nsec = self->cancel_after_ns % 1000000000 };
    nanosleep(&pause, NULL);
    sluice_cancel(self->engine);
    return NULL;
}

/* Up to READY; what it made is for close_life, also on failure. */
static sluice_status open_life(life *self)
{
    sluice_options options = SLUICE_OPTIONS_INIT;
    sluice_error *error = &self->error;
    options.rank = self->rank;
    options.listen_fd = self->listen_fd;
    options.timeout_s = self->timeout_s;
    options.beat_s = 60; /* a machine so busy that a thread sleeps for seconds is no fault */
    options.callbacks.user = self;
    options.callbacks.load_weights = load;
    options.key_fd = key_descriptor(self);
    sluice_status status = sluice_engine_create(&options, &self->engine, error);
    if (status != SLUICE_OK) {
        if (self->listen_fd >= 0)
            close(self->listen_fd);
        return status;
    }
    self->cancels = self->cancel_after_ns >= 0 && pthread_create(&self->canceller, NULL, cancel_later, self) == 0;
    status = own(self->engine, self);
    if (status == SLUICE_OK && self->kind == ATTACHED) {
        char name[64];
        snprintf(name, sizeof name, "@sluice-driver-%d-%d", (int)getpid(), self->rank);
        status = sluice_allow_attach(self->engine, name, -1, error);
    }
    /* All the same: it is how the other rank hears of a failure. */
    sluice_status joined = sluice_init(self->engine, self->init_info, strlen(self->init_info), status == SLUICE_OK ? error : NULL);
    return status == SLUICE_OK ? joined : status;
}

static sluice_status update(life *self)
{
    static const char *const names[] = { "a.weight", "b.bias" };
    sluice_recording recording = 0;
    sluice_status status = sluice_record(self->engine, names, 1, &recording, &self->error);
    if (status == SLUICE_OK)
        status = sluice_start_update(self->engine, false, &self->error);
    if (status == SLUICE_OK)
        status = sluice_replay(self->engine, recording, &self->error);
    if (status == SLUICE_OK)
        status = sluice_update(self->engine, names + 1, 1, &self->error);
    if (status == SLUICE_OK)
        status = sluice_finish_update(self->engine, "v1", &self->error);
    return status == SLUICE_OK && strcmp(sluice_version(self->engine), "v1") != 0 ? SLUICE_INTERNAL : status;
}

static void close_life(life *self)
{
    if (self->cancels)
        pthread_join(self->canceller, NULL);
    self->cancels = false;
    sluice_engine_destroy(self->engine);
    self->engine = NULL;
}

static sluice_status live_once(life *self)
{
    sluice_status status = open_life(self);
    if (status == SLUICE_OK)
        status = update(self);
    close_life(self);
    return status;
}

static sluice_status reload(life *self)
{
    return sluice_reload_rules(self->engine, self->rules, &self->error);
}

/* The same on a trainer here and on a worker in a thread of its own. */
typedef struct act {
    life *self;
    sluice_status (*take)(life *self);
} act;

static void *run(void *argument)
{
    const act *one = argument;
    one->self->error = (sluice_error)SLUICE_ERROR_INIT;
    one->self->status = one->take(one->self);
    return NULL;
}

static bool together(life pair[2], sluice_status (*take)(life *self))
{
    act trainer = { .self = &pair[0], .take = take }, worker = { .self = &pair[1], .take = take };
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &worker) != 0)
        return false;
    run(&trainer);
    pthread_join(thread, NULL);
    return true;
}

/*
 * A port of an address that other processes have not: a worker of theirs that still looks for a trainer that is gone would join
 * this one, where it got the same port.
 */
static int listener(char text[INET_ADDRSTRLEN], int *port)
{
    const uint32_t address = INADDR_LOOPBACK | ((uint32_t)getpid() & 0xFFFF) << 8;
    const struct in_addr name = { .s_addr = htonl(address) };
    inet_ntop(AF_INET, &name, text, INET_ADDRSTRLEN);
    return listen_at(address, port);
}

/* A trainer and a worker that know where to meet; what they hold of it is for part. */
static bool meet(life pair[2], life_kind kind, double timeout_s, char *why, size_t size)
{
    char address[INET_ADDRSTRLEN], text[sizeof PARAMS + INET_ADDRSTRLEN + 16], *sealed = NULL;
    int port = 0, fd = listener(address, &port);
    snprintf(text, sizeof text, PARAMS, address, port);
    sluice_error error = SLUICE_ERROR_INIT;
    if (fd < 0 || sluice_seal_init_info(text, strlen(text), &sealed, &error) != SLUICE_OK)
        return snprintf(why, size, "set-up failed: %s", error.text), false;
    for (int rank = 0; rank < 2; rank++)
        pair[rank] = (life){ .kind = kind, .cancel_after_ns = -1, .rank = rank, .listen_fd = rank == 0 ? fd : -1,
                             .timeout_s = timeout_s, .init_info = sealed };
    for (int i = 0; i < 24; i++)
        pair[0].a[i] = (float)(i + 1);
    for (int i = 0; i < 3; i++)
        pair[0].b[i] = (float)(100 + i);
    return true;
}

static void part(life pair[2])
{
    sluice_free((void *)pair[0].init_info);
    pair[0].init_info = pair[1].init_info = NULL;
}

/* Whether what came of a step may come: values where both succeeded, else a text of its own where one failed. */
static bool may_be(const life pair[2], bool moved, char *why, size_t size)
{
    bool good = pair[0].status == SLUICE_OK && pair[1].status == SLUICE_OK;
    if (good && moved && (memcmp(pair[0].a, pair[1].a, sizeof pair[0].a) != 0 || memcmp(pair[0].b, pair[1].b, sizeof pair[0].b) != 0))
        return snprintf(why, size, "both succeeded and the values differ"), false;
    for (int i = 0; i < 2; i++)
        if (pair[i].status != SLUICE_OK && (pair[i].error.text[0] == '\0' || pair[i].error.status != pair[i].status))
            return snprintf(why, size, "rank %d failed (%s) without a text of its own", i, sluice_status_text(pair[i].status)), false;
    return true;
}

static void note_ends(const life pair[2], char *why, size_t size)
{
    snprintf(why, size, "trainer: %.2000s; worker: %.2000s", pair[0].status == SLUICE_OK ? "ok" : pair[0].error.text,
             pair[1].status == SLUICE_OK ? "ok" : pair[1].error.text);
}

/* One life of both; *why is how it ended, or a complaint where it ended as none may. */
static bool both(life_kind kind, uint64_t failing, double timeout_s, uint64_t *requests, bool *succeeded, char *why, size_t size)
{
    life pair[2];
    if (!meet(pair, kind, timeout_s, why, size))
        return false;
    slc_fail_allocation(failing, false);
    bool ran = together(pair, live_once);
    *requests = slc_fail_allocation(0, false);
    part(pair);
    *succeeded = pair[0].status == SLUICE_OK && pair[1].status == SLUICE_OK;
    note_ends(pair, why, size);
    return ran ? may_be(pair, true, why, size) : (snprintf(why, size, "no thread"), false);
}

/* Ends at a life that ended before the request came: with success, unless it is of a kind that is refused anyway. */
static int sweep(life_kind kind, uint64_t step, uint64_t first)
{
    char why[SLUICE_ERROR_TEXT + 64];
    uint64_t failed = 0, passed = 0;
    bool wanted = kind == PLAIN || kind == SECURE || kind == ATTACHED;
    for (uint64_t nth = first;; nth += step) {
        uint64_t requests;
        bool succeeded, good = both(kind, nth, 0.5, &requests, &succeeded, why, sizeof why);
        if (good && requests < nth && succeeded != wanted) /* a busy machine was too slow for so short a deadline */
            good = both(kind, nth, 60, &requests, &succeeded, why, sizeof why);
        if (!good) {
            fprintf(stderr, "request %" PRIu64 ": %s\n", nth, why);
            return 1;
        }
        failed += !succeeded;
        passed += succeeded;
        if (requests < nth) {
            printf("%" PRIu64 " requests in a life, every %" PRIu64 ". failed in turn: %" PRIu64 " lives ended in an error, %" PRIu64
                   " did without\n", requests, step, failed, passed);
            if (succeeded != wanted)
                fprintf(stderr, "the last life, in which nothing was refused, ended so: %s\n", why);
            return succeeded == wanted ? 0 : 1;
        }
    }
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

/* The first life tells how long one takes here; the cancels of the others go through all of that, and a little beyond. */
static int cancels(long count)
{
    char why[SLUICE_ERROR_TEXT + 64];
    int64_t began = now_ns(), takes_ns = 0;
    double timeout_s = 60; /* of a rank whose peer was cancelled before it came: not long, after the first life */
    long cancelled = 0;
    for (long i = 0; i <= count; i++) {
        life pair[2];
        bool good = meet(pair, i % 3 == 2 ? SECURE : PLAIN, timeout_s, why, sizeof why);
        if (good) {
            pair[i % 2].cancel_after_ns = i == 0 ? -1 : takes_ns / count * i;
            good = together(pair, live_once) && may_be(pair, true, why, sizeof why);
            part(pair);
        }
        if (!good) {
            fprintf(stderr, "life %ld: %s\n", i, why);
            return 1;
        }
        if (i == 0) {
            takes_ns = (now_ns() - began) / 4 * 5;
            timeout_s = 0.5 + (double)takes_ns * 2e-9;
        }
        cancelled += pair[0].status != SLUICE_OK || pair[1].status != SLUICE_OK;
    }
    printf("%ld lives, %ld ended in an error, %ld did without\n", count, cancelled, count - cancelled);
    return 0;
}

static long resident_pages(void)
{
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &size, &resident) != 2)
        resident = -1;
    if (file != NULL)
        fclose(file);
    return resident;
}

static int cycles(long count)
{
    char why[SLUICE_ERROR_TEXT + 64];
    for (long i = 0; i < count; i++) {
        uint64_t requests;
        bool succeeded;
        if (!both(PLAIN, 0, 10, &requests, &succeeded, why, sizeof why) || !succeeded) {
            fprintf(stderr, "life %ld did not succeed: %s\n", i, why);
            return 1;
        }
        if (i + 1 == (count + 9) / 10 || i + 1 == count)
            printf("%ld lives: %d descriptors, %ld pages\n", i + 1, descriptors(), resident_pages());
    }
    return 0;
}

/* ---- reloads ---- */

static const char RULES[] = "return { rules = { rule \"a.weight\" { layout = replicate }, rule \"b.bias\" { full = \"the host loads it\" } } }";

static bool write_rules(char path[])
{
    int fd = mkstemp(path);
    bool good = fd >= 0 && write(fd, RULES, sizeof RULES - 1) == (ssize_t)(sizeof RULES - 1);
    if (fd >= 0)
        close(fd);
    return good;
}

static bool is_ready(const life *self)
{
    return sluice_engine_state(self->engine) == SLUICE_STATE_READY;
}

static bool opened(life pair[2], char *why, size_t size)
{
    if (!meet(pair, PLAIN, 10, why, size))
        return false;
    bool good = together(pair, open_life) && pair[0].status == SLUICE_OK && pair[1].status == SLUICE_OK;
    if (!good)
        snprintf(why, size, "init failed: %s", pair[0].error.text);
    return good;
}

static void closed(life pair[2])
{
    close_life(&pair[0]);
    close_life(&pair[1]);
    part(pair);
}

/* Both went over, or neither did and both say why; either way the plan in use moves the right bytes. */
static bool whole(life pair[2], bool *succeeded, char *why, size_t size)
{
    *succeeded = pair[0].status == SLUICE_OK && pair[1].status == SLUICE_OK;
    if (!may_be(pair, false, why, size))
        return false;
    if (!*succeeded && (pair[0].status == SLUICE_OK || strcmp(pair[0].error.text, pair[1].error.text) != 0))
        return snprintf(why, size, "one rank came to '%.200s', the other to '%.200s'", pair[0].error.text, pair[1].error.text), false;
    memset(pair[1].a, 0, sizeof pair[1].a);
    memset(pair[1].b, 0, sizeof pair[1].b);
    if (!together(pair, update) || pair[0].status != SLUICE_OK || pair[1].status != SLUICE_OK)
        return snprintf(why, size, "the update afterwards failed: %s", pair[0].error.text), false;
    return may_be(pair, true, why, size);
}

/* One reload with request `failing` refused. A life whose group broke is ended, and another one begun. */
static bool reload_once(life pair[2], const char *rules, uint64_t failing, uint64_t *requests, bool *succeeded, bool *broke, char *why,
                        size_t size)
{
    pair[0].rules = pair[1].rules = rules;
    slc_fail_allocation(failing, false);
    bool ran = together(pair, reload);
    *requests = slc_fail_allocation(0, false);
    *succeeded = false;
    *broke = ran && (!is_ready(&pair[0]) || !is_ready(&pair[1]));
    if (!ran)
        return snprintf(why, size, "no thread"), false;
    if (!*broke)
        return whole(pair, succeeded, why, size);
    bool good = may_be(pair, false, why, size);
    closed(pair);
    return opened(pair, why, size) && good;
}

static int reload_sweep(uint64_t step, uint64_t first, const char *rules)
{
    char why[SLUICE_ERROR_TEXT + 64];
    life pair[2] = { 0 };
    uint64_t requests = 0, count[3] = { 0 }; /* went over, refused, broke */
    bool good = opened(pair, why, sizeof why), succeeded = false, broke;
    uint64_t nth = first;
    for (; good; nth += step) {
        good = reload_once(pair, nth / step % 2 == 0 ? rules : NULL, nth, &requests, &succeeded, &broke, why, sizeof why);
        count[broke ? 2 : !succeeded]++;
        if (good && requests < nth)
            break;
    }
    closed(pair);
    if (!good) {
        fprintf(stderr, "request %" PRIu64 ": %s\n", nth, why);
        return 1;
    }
    printf("%" PRIu64 " requests in a reload, every %" PRIu64 ". failed in turn: %" PRIu64 " went over, %" PRIu64 " were refused, %" PRIu64
           " broke the group\n", requests, step, count[0], count[1], count[2]);
    return succeeded ? 0 : 1;
}

static int reloads(long count, const char *rules)
{
    char why[SLUICE_ERROR_TEXT + 64];
    life pair[2] = { 0 };
    bool good = opened(pair, why, sizeof why);
    long i = 0;
    for (; good && i < count; i++) {
        uint64_t requests;
        bool succeeded, broke;
        good = reload_once(pair, i % 2 == 0 ? rules : NULL, 0, &requests, &succeeded, &broke, why, sizeof why);
        if (good && !succeeded)
            good = (snprintf(why, sizeof why, "%s", pair[0].error.text), false);
        if (good && (i + 1 == (count + 9) / 10 || i + 1 == count))
            printf("%ld reloads: %d descriptors, %ld pages\n", i + 1, descriptors(), resident_pages());
    }
    closed(pair);
    if (!good)
        fprintf(stderr, "reload %ld: %s\n", i, why);
    return good ? 0 : 1;
}

/* One letter many times; letter and length say which label it is, and no mixture of two is one. */
static size_t write_label(long k, char text[SLUICE_LABEL_BYTES])
{
    size_t length = 1 + (size_t)k * 7 % (SLUICE_LABEL_BYTES - 1);
    memset(text, 'a' + (int)(k % 23), length);
    text[length] = '\0';
    return length;
}

typedef struct watcher {
    const sluice_engine *engine;
    atomic_bool ends, mixed;
    atomic_long changes;
} watcher;

static void *watch_labels(void *argument)
{
    watcher *self = argument;
    char text[SLUICE_LABEL_BYTES], last[SLUICE_LABEL_BYTES] = "", one[SLUICE_LABEL_BYTES];
    while (!self->ends) {
        sluice_copy_version(self->engine, text);
        if (strcmp(text, last) == 0)
            continue;
        bool known = false;
        for (long k = 0; k < 23 * (SLUICE_LABEL_BYTES - 1) && !known; k++)
            known = text[0] == 'a' + (int)(k % 23) && write_label(k, one) == strlen(text) && strcmp(one, text) == 0;
        self->mixed = self->mixed || !known;
        self->changes++;
        snprintf(last, sizeof last, "%s", text);
    }
    return NULL;
}

static sluice_status label(life *self)
{
    sluice_status status = sluice_start_update(self->engine, true, &self->error);
    return status == SLUICE_OK ? sluice_finish_update(self->engine, self->label, &self->error) : status;
}

static int labels(long count)
{
    char why[SLUICE_ERROR_TEXT + 64] = "", text[SLUICE_LABEL_BYTES];
    life pair[2] = { 0 };
    bool good = opened(pair, why, sizeof why);
    watcher other = { .engine = pair[1].engine };
    pthread_t thread;
    good = good && pthread_create(&thread, NULL, watch_labels, &other) == 0;
    if (good) {
        for (long k = 0; good && k < count; k++) {
            write_label(k, text);
            pair[0].label = pair[1].label = text;
            good = together(pair, label) && pair[0].status == SLUICE_OK && pair[1].status == SLUICE_OK;
        }
        other.ends = true;
        pthread_join(thread, NULL);
    }
    if (!good || other.mixed)
        fprintf(stderr, "labels: %s\n", other.mixed ? "a copy was none of them" : pair[0].error.text);
    else
        printf("%ld labels, of which another thread saw %s\n", count, other.changes > 1 ? "many" : "few");
    good = good && !other.mixed;
    closed(pair);
    return good ? 0 : 1;
}

static int with_rules(int argc, char **argv)
{
    char path[] = "/tmp/sluice-rules-XXXXXX";
    int status = 1;
    if (write_rules(path))
        status = strcmp(argv[1], "reloads") == 0 ? reloads(atol(argv[2]), path)
                                                 : reload_sweep((uint64_t)atol(argv[2]), argc == 4 ? (uint64_t)atol(argv[3]) : 1, path);
    unlink(path);
    return status;
}

static int sweep_of(int argc, char **argv)
{
    for (int kind = PLAIN; kind < KINDS; kind++)
        if (argc < 5 || strcmp(argv[4], KIND[kind]) == 0)
            return sweep((life_kind)kind, (uint64_t)atol(argv[2]), argc > 3 ? (uint64_t)atol(argv[3]) : 1);
    fprintf(stderr, "engine_driver: a life of kind %s is not known\n", argv[4]);
    return 2;
}

int main(int argc, char **argv)
{
    bool numbered = argc >= 3 && argc <= 5 && atol(argv[2]) > 0;
    if (numbered && strcmp(argv[1], "sweep") == 0)
        return sweep_of(argc, argv);
    if (numbered && (strcmp(argv[1], "reloads") == 0 || strcmp(argv[1], "reload_sweep") == 0))
        return with_rules(argc, argv);
    if (numbered && strcmp(argv[1], "cycles") == 0)
        return cycles(strtol(argv[2], NULL, 10));
    if (numbered && strcmp(argv[1], "cancels") == 0)
        return cancels(strtol(argv[2], NULL, 10));
    if (numbered && strcmp(argv[1], "labels") == 0)
        return labels(strtol(argv[2], NULL, 10));
    fprintf(stderr, "usage: engine_driver sweep STEP [FIRST [KIND]] | cycles N | cancels N | labels N | reloads N | reload_sweep STEP "
                    "[FIRST]\n");
    return 2;
}
