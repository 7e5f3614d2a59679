/*
 * server.c: answers embedding requests with a BERT encoder that is cut over a few processes, and takes new weights meanwhile.
 *
 *     embed-server MODEL [--weights FILE] [--label TEXT] [--address A] [--port N] [--token-file FILE] [--tp N]
 *
 * MODEL is a folder with config.json, vocab.txt and model.safetensors. Prints "listening on ADDRESS:PORT" and serves until
 * SIGTERM or SIGINT; exit 0 then. Who brings weights must show the token of that file; off the loopback there must be one.
 * Each rank is a process with one thread that computes and one that holds the Sluice engine.
 * The swap to new weights is between two batches, on all ranks at once: no answer is of mixed weights.
 */
#include "forward.h"
#include "http.h"
#include "say.h"
#include "updates.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern void openblas_set_num_threads(int count);

typedef struct options {
    const char *folder, *weights, *label, *address, *token_file;
    int port, tp;
} options;

static const char USAGE[] =
    "usage: embed-server MODEL [--weights FILE] [--label TEXT] [--address A] [--port N] [--token-file FILE] [--tp N]\n"
    "Example: embed-server build/minilm --label base --port 8080 --token-file token";

static int read_number(const char *text, int most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0 || value > most)
        die("%s must be a number up to %d", text, most);
    return (int)value;
}

static options read_options(int argc, char **argv)
{
    static const struct option LONG[] = { { "weights", 1, NULL, 'w' }, { "label", 1, NULL, 'l' },      { "address", 1, NULL, 'a' },
                                          { "port", 1, NULL, 'p' },    { "token-file", 1, NULL, 'f' }, { "tp", 1, NULL, 't' },
                                          { "help", 0, NULL, 'h' },    { NULL, 0, NULL, 0 } };
    options o = { .label = "start", .address = "127.0.0.1", .port = 0, .tp = 2 };
    for (int c; (c = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        if (c == 'w')
            o.weights = optarg;
        else if (c == 'l')
            o.label = optarg;
        else if (c == 'a')
            o.address = optarg;
        else if (c == 'f')
            o.token_file = optarg;
        else if (c == 'p')
            o.port = read_number(optarg, 65535);
        else if (c == 't')
            o.tp = read_number(optarg, MOST_RANKS);
        else if (c == 'h' && puts(USAGE) >= 0)
            exit(0);
        else
            die("%s", USAGE);
    }
    if (optind + 1 != argc || o.tp < 1 || strlen(o.label) >= LONGEST_VERSION)
        die("%s", USAGE);
    o.folder = argv[optind];
    return o;
}

static char *path_in(const char *folder, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        die("out of memory");
    return path;
}

static model *load(const options *o, int rank)
{
    char *path = path_in(o->folder, "config.json"), *weights = path_in(o->folder, "model.safetensors");
    config c = config_read(path);
    checkpoint file = checkpoint_open(o->weights == NULL ? weights : o->weights);
    model *m = model_create(&c, rank, o->tp);
    model_load(m, &file);
    checkpoint_close(&file);
    free(path);
    free(weights);
    return m;
}

/* ---- the other ranks ---- */

static void follow(group *g, model *m)
{
    for (;;) {
        group_wait(g);
        if (g->order == STOP)
            return;
        if (g->order == SWAP) {
            model_swap(m);
            group_wait(g);
        } else {
            forward(m, g, NULL);
        }
    }
}

static void start_rank(const options *o, group *g, int rank)
{
    pid_t leader = getpid(), child = fork();
    if (child < 0)
        die("cannot start a process for rank %d", rank);
    if (child > 0)
        return;
    /* Without rank 0 there is nothing to do; and a Ctrl-C is rank 0's, which stops the others. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != leader)
        _exit(1);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    model *m = load(o, rank);
    updater *u = updater_start(g, m);
    follow(g, m);
    updater_stop(u);
    model_destroy(m);
    exit(0);
}

/* ---- rank 0 ---- */

typedef struct leader {
    server *server;
    model *model;
    bool ended; /* the ranks were told to stop */
} leader;

static void give_order(group *g, order next)
{
    g->order = next;
    group_wait(g);
}

static void do_swap(leader *lead)
{
    server *s = lead->server;
    double start = now();
    give_order(s->group, SWAP);
    model_swap(lead->model);
    group_wait(s->group);
    pthread_mutex_lock(&s->lock);
    memcpy(s->version, s->next_version, sizeof s->version);
    s->swap_seconds = now() - start;
    s->swap = false;
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->lock);
}

/* As many of the sentences that wait as fit a batch, the oldest first; none where a swap is due. The lock is held. */
static int take_jobs(server *s, job *taken[MOST_SENTENCES])
{
    batch *b = &s->group->batch;
    b->sentences = b->tokens = 0;
    for (job *j = s->first; !s->swap && j != NULL && b->sentences < MOST_SENTENCES && b->tokens + j->count <= MOST_ROWS; j = s->first) {
        memcpy(b->ids + b->tokens, j->ids, (size_t)j->count * sizeof j->ids[0]);
        b->tokens += j->count;
        b->count[b->sentences] = j->count;
        taken[b->sentences++] = j;
        s->first = j->next;
        s->last = s->first == NULL ? NULL : s->last;
    }
    return b->sentences;
}

static void do_jobs(leader *lead, job *taken[MOST_SENTENCES], int count)
{
    static float embedding[MOST_SENTENCES][MOST_HIDDEN];
    server *s = lead->server;
    give_order(s->group, COMPUTE);
    forward(lead->model, s->group, embedding);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < count; i++) {
        memcpy(taken[i]->embedding, embedding[i], sizeof embedding[i]);
        memcpy(taken[i]->version, s->version, sizeof s->version);
        taken[i]->good = taken[i]->done = true;
        pthread_cond_signal(&taken[i]->ready);
    }
    s->waiting -= count;
    pthread_mutex_unlock(&s->lock);
}

/* The thread that computes: one batch after the other, a swap before the next. */
static void *work(void *argument)
{
    leader *lead = argument;
    server *s = lead->server;
    for (;;) {
        job *taken[MOST_SENTENCES];
        pthread_mutex_lock(&s->lock);
        while (s->first == NULL && !s->swap && !lead->ended)
            pthread_cond_wait(&s->work, &s->lock);
        bool swap = s->swap;
        int count = take_jobs(s, taken);
        pthread_mutex_unlock(&s->lock);
        if (swap)
            do_swap(lead);
        else if (count > 0)
            do_jobs(lead, taken, count);
        else
            break;
    }
    give_order(s->group, STOP);
    return NULL;
}

/* A rank that is gone would be waited for without an end. */
static void *watch(void *argument)
{
    const leader *lead = argument;
    int status;
    pid_t gone = wait(&status);
    if (gone > 0 && !__atomic_load_n(&lead->ended, __ATOMIC_ACQUIRE)) {
        say("process %d of a rank ended (status %d); the server stops", (int)gone, status);
        _exit(1);
    }
    return NULL;
}

static void stop(leader *lead, updater *u, struct MHD_Daemon *daemon)
{
    server *s = lead->server;
    updater_stop(u);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->lock);
    http_stop(s, daemon);
    pthread_mutex_lock(&s->lock);
    __atomic_store_n(&lead->ended, true, __ATOMIC_RELEASE);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static void serve(const options *o, leader *lead)
{
    pthread_t worker, watcher;
    sigset_t ends;
    int port = o->port, received;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    updater *u = updater_start(lead->server->group, lead->model);
    if (pthread_create(&worker, NULL, work, lead) != 0 || pthread_create(&watcher, NULL, watch, lead) != 0)
        die("no threads");
    struct MHD_Daemon *daemon = http_start(lead->server, o->address, &port);
    printf("listening on %s:%d, %d ranks, version %s\n", o->address, port, o->tp, lead->server->version);
    fflush(stdout);
    sigwait(&ends, &received);
    stop(lead, u, daemon);
    pthread_join(worker, NULL);
    pthread_join(watcher, NULL);
    while (wait(NULL) > 0)
        ;
    printf("stopped after %lu answers and %lu updates\n", lead->server->answered, lead->server->updates);
}

int main(int argc, char **argv)
{
    options o = read_options(argc, argv);
    openblas_set_num_threads(1);
    char *words = path_in(o.folder, "vocab.txt");
    server s = { .lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER,
                 .updating = PTHREAD_MUTEX_INITIALIZER };
    leader lead = { .server = &s };
    static token held;
    if (o.token_file != NULL) {
        token_read(o.token_file, &held);
        s.token = &held;
    }
    s.group = group_create(o.tp);
    for (int rank = 1; rank < o.tp; rank++)
        start_rank(&o, s.group, rank);
    vocabulary *vocab = vocabulary_open(words);
    s.words = vocab;
    s.model = lead.model = load(&o, 0);
    if (s.model->config.vocabulary < vocabulary_size(s.words))
        die("%s has more words than the model", words);
    snprintf(s.version, sizeof s.version, "%s", o.label);
    serve(&o, &lead);
    vocabulary_close(vocab);
    model_destroy(lead.model);
    free(words);
    return 0;
}
