/*
 * trainer.c: stands for a training job: some processes that each hold a shard of every parameter, as FSDP cuts them, and bring
 * them to embed-server, checkpoint after checkpoint.
 *
 *     embed-trainer --server PORT [--token-file FILE] [--trainers N] [--every SECONDS] [--updates N] LABEL=FILE [LABEL=FILE ...]
 *
 * Update k takes the values of the k-th file (the first again after the last) and calls them LABEL#k. Rank 0 tells the server
 * over HTTP what comes, so that the server's ranks make the same calls; the weights themselves go by Sluice.
 */
#include "checkpoint.h"
#include "client.h"
#include "say.h"
#include "token.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_FILES = 8, MOST_TRAINERS = 16, WORKERS = 2 };

typedef struct options {
    int server, trainers, updates, workers;
    token token; /* empty: none */
    double every;
    size_t nfiles;
    const char *label[MOST_FILES];
    checkpoint file[MOST_FILES];
} options;

typedef struct trainer {
    const options *options;
    int rank;
    sluice_engine *engine;
    void **shard;       /* by parameter; NULL where this rank holds none of it */
    const char **names; /* of every parameter, in transfer order */
    int session;        /* rank 0: as the server calls this life */
} trainer;

static void must(sluice_status status, const sluice_error *error)
{
    if (status != SLUICE_OK)
        die("%s", error->text);
}

/* Rows [*first, *last) of dim 0 are this rank's, as torch.chunk cuts. */
static void my_rows(const trainer *t, const tensor *whole, int64_t *first, int64_t *last)
{
    int64_t rows = whole->shape[0], piece = (rows + t->options->trainers - 1) / t->options->trainers;
    *first = t->rank * piece < rows ? t->rank * piece : rows;
    *last = *first + piece < rows ? *first + piece : rows;
}

static size_t my_bytes(const trainer *t, const tensor *whole, size_t *offset)
{
    int64_t first, last;
    size_t row = whole->bytes / (size_t)whole->shape[0];
    my_rows(t, whole, &first, &last);
    *offset = (size_t)first * row;
    return (size_t)(last - first) * row;
}

/* ---- what all ranks are told ---- */

static json_t *one_param(const tensor *whole)
{
    json_t *shape = json_array();
    for (uint32_t dim = 0; dim < whole->ndim; dim++)
        json_array_append_new(shape, json_integer(whole->shape[dim]));
    return json_pack("{s:s, s:s, s:o, s:[{s:s, s:i}], s:b}", "name", whole->name, "dtype_name", whole->dtype, "shape", shape,
                     "src_placements", "axis", "fsdp", "shard", 0, "allow_full_fallback", 0);
}

static char *make_init_info(const options *o, int port)
{
    sluice_error error = SLUICE_ERROR_INIT;
    json_t *params = json_array();
    for (size_t i = 0; i < o->file[0].count; i++)
        json_array_append_new(params, one_param(&o->file[0].tensor[i]));
    json_t *info = json_pack("{s:s, s:s, s:i, s:i, s:i, s:[{s:s, s:[[s,i]]}], s:[{s:s, s:[[s,i]]}], s:o}", "schema", "sluice/1",
                             "master_address", "127.0.0.1", "master_port", port, "rank_offset", o->trainers, "world_size",
                             o->trainers + o->workers, "src_meshes", "name", "dense", "axes", "fsdp", o->trainers, "dst_meshes", "name",
                             "dense", "axes", "tp", o->workers, "params", params);
    char *text = info == NULL ? NULL : json_dumps(info, JSON_COMPACT), *sealed;
    if (text == NULL)
        die("out of memory");
    must(sluice_seal_init_info(text, strlen(text), &sealed, &error), &error);
    json_decref(info);
    free(text);
    return sealed;
}

static int listen_anywhere(int *port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 || listen(fd, 16) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        die("no port to listen on");
    *port = ntohs(address.sin_port);
    return fd;
}

/* ---- the server, beside what this rank does itself ---- */

typedef struct call {
    pthread_t thread;
    client client;
    const char *path;
    char *body;
    int status;
    sluice_engine *engine; /* cancelled where the server refuses: it would be waited for in vain */
} call;

static void *run_call(void *argument)
{
    call *c = argument;
    c->status = client_ask(&c->client, c->path, c->body);
    if (c->status != 200 && c->engine != NULL)
        sluice_cancel(c->engine);
    return NULL;
}

static void begin_call(call *c, const trainer *t, const char *path, char *body)
{
    c->path = path;
    c->body = body;
    c->engine = t->engine;
    if (t->rank == 0 && pthread_create(&c->thread, NULL, run_call, c) != 0)
        die("no thread");
}

static void end_call(call *c, const trainer *t, sluice_status status, const sluice_error *error)
{
    if (t->rank == 0) {
        pthread_join(c->thread, NULL);
        if (c->status != 200)
            die("the server answers %s with %d: %s", c->path, c->status, c->client.reply);
    }
    must(status, error);
}

static int read_session(const call *c)
{
    json_t *root = json_loads(c->client.reply, 0, NULL);
    int session = (int)json_integer_value(json_object_get(root, "session"));
    json_decref(root);
    return session;
}

/* ---- a trainer's life ---- */

static void own_shards(trainer *t)
{
    sluice_error error = SLUICE_ERROR_INIT;
    const checkpoint *file = &t->options->file[0];
    t->shard = must_allocate(file->count, sizeof *t->shard);
    t->names = must_allocate(file->count, sizeof *t->names);
    for (size_t i = 0; i < file->count; i++) {
        const tensor *whole = &file->tensor[i];
        size_t offset, bytes = my_bytes(t, whole, &offset);
        t->names[i] = whole->name;
        if (bytes == 0)
            continue;
        must(sluice_memory_alloc(t->engine, bytes, &t->shard[i], &error), &error);
        must(sluice_register_source(t->engine, whole->name, whole->dtype, t->shard[i], bytes, &error), &error);
    }
}

/* What a step of training would leave behind. */
static void take_values(trainer *t, const checkpoint *file)
{
    for (size_t i = 0; i < file->count; i++) {
        size_t offset, bytes = my_bytes(t, &file->tensor[i], &offset);
        if (bytes > 0)
            memcpy(t->shard[i], file->tensor[i].data + offset, bytes);
    }
}

static void do_update(trainer *t, call *c, int number)
{
    const options *o = t->options;
    const size_t which = (size_t)(number - 1) % o->nfiles;
    char version[256], body[320];
    sluice_error error = SLUICE_ERROR_INIT;
    snprintf(version, sizeof version, "%s#%d", o->label[which], number);
    snprintf(body, sizeof body, "{\"session\":%d,\"version\":\"%s\"}", t->session, version);
    take_values(t, &o->file[which]);
    double start = now();
    begin_call(c, t, "/weights/update", body);
    sluice_status status = sluice_start_update(t->engine, false, &error);
    if (status == SLUICE_OK)
        status = sluice_update(t->engine, t->names, o->file[0].count, &error);
    if (status == SLUICE_OK)
        status = sluice_finish_update(t->engine, version, &error);
    end_call(c, t, status, &error);
    if (t->rank == 0)
        printf("update %s in %.3f s: %s\n", version, now() - start, c->client.reply);
    fflush(stdout);
}

static void live(const options *o, int rank, int listen_fd, char *init_info)
{
    trainer t = { .options = o, .rank = rank };
    call c = { .client = client_create(o->server) };
    c.client.token = o->token.text[0] == '\0' ? NULL : o->token.text;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_options given = SLUICE_OPTIONS_INIT;
    given.rank = rank;
    given.timeout_s = 60;
    given.listen_fd = rank == 0 ? listen_fd : -1;
    must(sluice_engine_create(&given, &t.engine, &error), &error);
    own_shards(&t);
    begin_call(&c, &t, "/weights/init", init_info);
    sluice_status status = sluice_init(t.engine, init_info, strlen(init_info), &error);
    end_call(&c, &t, status, &error);
    t.session = read_session(&c);
    double next = now();
    for (int number = 1; number <= o->updates; number++) {
        do_update(&t, &c, number);
        next += o->every;
        double rest = number < o->updates ? next - now() : 0;
        if (rest > 0)
            usleep((useconds_t)(rest * 1e6));
    }
    char body[64];
    snprintf(body, sizeof body, "{\"session\":%d}", t.session);
    if (rank == 0 && client_ask(&c.client, "/weights/leave", body) != 200)
        die("the server does not leave: %s", c.client.reply);
    must(sluice_shutdown(t.engine, &error), &error);
    for (size_t i = 0; i < o->file[0].count; i++)
        sluice_memory_free(t.engine, t.shard[i]);
    sluice_engine_destroy(t.engine);
    client_destroy(&c.client);
    free(t.shard);
    free(t.names);
}

static int read_number(const char *text, int least, int most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < least || value > most)
        die("%s must be a number from %d to %d", text, least, most);
    return (int)value;
}

static const char USAGE[] =
    "usage: embed-trainer --server PORT [--token-file FILE] [--trainers N] [--workers N] [--every SECONDS] [--updates N] LABEL=FILE ...\n"
    "Example: embed-trainer --server 8080 --token-file token --updates 3 step=build/minilm/model.safetensors";

static void read_options(int argc, char **argv, options *o)
{
    static const struct option LONG[] = { { "server", 1, NULL, 's' },  { "trainers", 1, NULL, 't' }, { "every", 1, NULL, 'e' },
                                          { "updates", 1, NULL, 'u' }, { "workers", 1, NULL, 'w' },  { "token-file", 1, NULL, 'f' },
                                          { "help", 0, NULL, 'h' },    { NULL, 0, NULL, 0 } };
    *o = (options){ .trainers = 2, .updates = 2, .workers = WORKERS, .every = 5 };
    for (int c; (c = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        if (c == 's')
            o->server = read_number(optarg, 1, 65535);
        else if (c == 't')
            o->trainers = read_number(optarg, 1, MOST_TRAINERS);
        else if (c == 'e')
            o->every = strtod(optarg, NULL);
        else if (c == 'u')
            o->updates = read_number(optarg, 1, 1000000);
        else if (c == 'f')
            token_read(optarg, &o->token);
        else if (c == 'w')
            o->workers = read_number(optarg, 1, 64);
        else if (c == 'h' && puts(USAGE) >= 0)
            exit(0);
        else
            die("%s", USAGE);
    }
    for (; optind < argc && o->nfiles < MOST_FILES; optind++, o->nfiles++) {
        char *equals = strchr(argv[optind], '=');
        if (equals == NULL || equals - argv[optind] > 200)
            die("%s must be LABEL=FILE", argv[optind]);
        *equals = '\0';
        o->label[o->nfiles] = argv[optind];
        o->file[o->nfiles] = checkpoint_open(equals + 1);
    }
    if (o->server == 0 || o->nfiles == 0)
        die("%s", USAGE);
    for (size_t i = 1; i < o->nfiles; i++)
        if (o->file[i].count != o->file[0].count || o->file[i].size != o->file[0].size)
            die("%s has other tensors than %s", o->label[i], o->label[0]);
}

int main(int argc, char **argv)
{
    static options o;
    int port, failed = 0, status;
    read_options(argc, argv, &o);
    int listen_fd = listen_anywhere(&port);
    char *init_info = make_init_info(&o, port);
    for (int rank = 1; rank < o.trainers; rank++) {
        pid_t child = fork();
        if (child < 0)
            die("no process for rank %d", rank);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            live(&o, rank, -1, init_info);
            exit(0);
        }
    }
    live(&o, 0, listen_fd, init_info);
    while (wait(&status) > 0)
        failed |= status;
    sluice_free(init_info);
    for (size_t i = 0; i < o.nfiles; i++)
        checkpoint_close(&o.file[i]);
    return failed == 0 ? 0 : 1;
}
