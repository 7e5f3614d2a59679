/*
 * load.c: what asks an embed-server, and checks what it says.
 *
 *     embed-load record PORT TEXTS OUT                the answers to every line of TEXTS, for --expect
 *     embed-load run PORT TEXTS [--seconds S] [--connections N] [--rate R] --expect LABEL=FILE ...
 *     embed-load hostile PORT TOKEN_FILE              requests that are no requests; the server must outlive them
 *     embed-load slow PORT                            a request that does not end; the server must end it
 *
 * `run` asks for lines of TEXTS over N connections, R a second in all, and compares each answer bit for bit with the recorded
 * one of the version that the server names (LABEL, LABEL#1, LABEL#2, ...). It prints one line of a table; status 1 where a
 * request failed or an answer was not that of its version, which weights of two versions would not give. A latency counts
 * from the moment at which the request was due.
 */
#include "client.h"
#include "say.h"
#include "token.h"

#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TEXTS = 256, MOST_SIZE = 1024, MOST_CONNECTIONS = 64, MOST_EXPECTED = 8 };

typedef struct answers {
    const char *label;
    float value[MOST_TEXTS][MOST_SIZE];
} answers;

typedef struct load {
    int port, connections;
    double seconds, rate, start;
    char *text[MOST_TEXTS];
    size_t ntexts, nexpected;
    answers *expected[MOST_EXPECTED];
} load;

typedef struct asker {
    pthread_t thread;
    const load *load;
    int number;
    double *latency;
    size_t count, room, failed, mixed;
    unsigned long last_update; /* the number behind the label of the last answer */
    size_t versions;
    char problem[512];
} asker;

static void read_texts(load *l, const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    if (file == NULL)
        die("cannot read %s", path);
    for (ssize_t length; l->ntexts < MOST_TEXTS && (length = getline(&line, &room, file)) > 0;) {
        line[strcspn(line, "\n")] = '\0';
        json_t *object = json_pack("{s:s}", "text", line);
        if (line[0] != '\0' && object != NULL)
            l->text[l->ntexts++] = json_dumps(object, JSON_COMPACT);
        json_decref(object);
    }
    free(line);
    fclose(file);
    if (l->ntexts == 0)
        die("%s has no line", path);
}

/* False where that is no answer of embed-server. */
static bool read_answer(const client *c, float value[MOST_SIZE], char *version, size_t size)
{
    json_t *root = json_loadb(c->reply, c->length, 0, NULL);
    const json_t *list = json_object_get(root, "embedding");
    const char *label = json_string_value(json_object_get(root, "version"));
    size_t count = json_array_size(list);
    bool good = label != NULL && count > 0 && count <= MOST_SIZE;
    memset(value, 0, MOST_SIZE * sizeof *value);
    for (size_t i = 0; good && i < count; i++)
        value[i] = (float)json_number_value(json_array_get(list, i));
    if (good)
        snprintf(version, size, "%s", label);
    json_decref(root);
    return good;
}

/* ---- record ---- */

static int record(load *l, const char *path)
{
    client c = client_create(l->port);
    static answers all;
    char version[256];
    for (size_t i = 0; i < l->ntexts; i++)
        if (client_ask(&c, "/embed", l->text[i]) != 200 || !read_answer(&c, all.value[i], version, sizeof version))
            die("no answer to %s: %s", l->text[i], c.reply);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(all.value, 1, sizeof all.value, file) != sizeof all.value || fclose(file) != 0)
        die("cannot write %s", path);
    printf("recorded %zu answers of %s\n", l->ntexts, version);
    client_destroy(&c);
    return 0;
}

/* ---- run ---- */

static const answers *find_expected(const load *l, const char *version)
{
    for (size_t i = 0; i < l->nexpected; i++) {
        size_t length = strlen(l->expected[i]->label);
        if (strncmp(version, l->expected[i]->label, length) == 0 && (version[length] == '\0' || version[length] == '#'))
            return l->expected[i];
    }
    return NULL;
}

static void check(asker *a, const client *c, size_t text)
{
    static _Thread_local float value[MOST_SIZE];
    char version[256];
    if (!read_answer(c, value, version, sizeof version)) {
        a->failed++;
        snprintf(a->problem, sizeof a->problem, "no answer: %.300s", c->reply);
        return;
    }
    const answers *expected = find_expected(a->load, version);
    const char *sharp = strchr(version, '#');
    unsigned long update = sharp == NULL ? 0 : strtoul(sharp + 1, NULL, 10);
    if (expected == NULL || memcmp(value, expected->value[text], sizeof value) != 0 || update < a->last_update) {
        a->mixed++;
        snprintf(a->problem, sizeof a->problem, "the answer to %s is not that of %s", a->load->text[text], version);
    }
    a->versions += update != a->last_update;
    a->last_update = update;
}

static void keep(asker *a, double latency)
{
    if (a->count == a->room) {
        a->room = a->room == 0 ? 1024 : 2 * a->room;
        a->latency = realloc(a->latency, a->room * sizeof *a->latency);
        if (a->latency == NULL)
            die("out of memory");
    }
    a->latency[a->count++] = latency;
}

static void *ask(void *argument)
{
    asker *a = argument;
    const load *l = a->load;
    const double step = l->rate > 0 ? l->connections / l->rate : 0;
    client c = client_create(l->port);
    double due = l->start + step * a->number / l->connections;
    for (size_t i = (size_t)a->number; due < l->start + l->seconds; i += (size_t)l->connections) {
        double rest = due - now();
        if (rest > 0)
            usleep((useconds_t)(rest * 1e6));
        size_t text = i % l->ntexts;
        int status = client_ask(&c, "/embed", l->text[text]);
        double end = now();
        keep(a, end - due);
        if (status == 200) {
            check(a, &c, text);
        } else {
            a->failed++;
            snprintf(a->problem, sizeof a->problem, "status %d: %.300s", status, status < 0 ? "" : c.reply);
        }
        due = step > 0 ? due + step : end;
    }
    client_destroy(&c);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double one = *(const double *)a, two = *(const double *)b;
    return one < two ? -1 : one > two;
}

static int report(const load *l, asker *all, double seconds)
{
    asker sum = { 0 };
    for (int i = 0; i < l->connections; i++) {
        for (size_t j = 0; j < all[i].count; j++)
            keep(&sum, all[i].latency[j]);
        sum.failed += all[i].failed;
        sum.mixed += all[i].mixed;
        sum.versions = all[i].versions > sum.versions ? all[i].versions : sum.versions;
        if (all[i].problem[0] != '\0')
            say("%s", all[i].problem);
        free(all[i].latency);
    }
    if (sum.count == 0)
        die("nothing was asked");
    qsort(sum.latency, sum.count, sizeof *sum.latency, by_size);
    printf("%8zu  %9.0f  %6zu  %5zu  %7zu  %7.1f  %7.1f  %7.1f  %7.1f\n", sum.count, (double)sum.count / seconds, sum.failed, sum.mixed,
           sum.versions, sum.latency[sum.count / 2] * 1e3, sum.latency[sum.count * 9 / 10] * 1e3,
           sum.latency[sum.count * 99 / 100] * 1e3, sum.latency[sum.count - 1] * 1e3);
    free(sum.latency);
    return sum.failed + sum.mixed == 0 ? 0 : 1;
}

static int run(load *l)
{
    asker all[MOST_CONNECTIONS] = { 0 };
    l->start = now();
    for (int i = 0; i < l->connections; i++) {
        all[i].load = l;
        all[i].number = i;
        if (pthread_create(&all[i].thread, NULL, ask, &all[i]) != 0)
            die("no thread");
    }
    for (int i = 0; i < l->connections; i++)
        pthread_join(all[i].thread, NULL);
    return report(l, all, now() - l->start);
}

/* ---- hostile ---- */

#define RAW(expected, text) { expected, text, sizeof text - 1 }
#define POST(path, size) "POST /" path " HTTP/1.1\r\nHost: x\r\nContent-Length: " size "\r\n\r\n"
#define SHOWS(what) "POST /weights/leave HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nAuthorization: " what "\r\n\r\n{}"

/* What a trainer that is none asks; with the token it hears why not, without it nothing. */
static size_t ask_for_weights(client *c, const char *shown)
{
    static const struct {
        int status;
        const char *path, *body;
    } CASE[] = { { 400, "/weights/update", "{}" },
                 { 409, "/weights/update", "{\"session\":99,\"version\":\"x\"}" },
                 { 409, "/weights/leave", "{\"session\":99}" },
                 { 409, "/weights/init", "{\"params\":[{\"name\":\"a\"}]}" },
                 { 400, "/weights/init", "[]" } };
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof CASE / sizeof CASE[0]; i++) {
        for (int known = 0; known < 2; known++) {
            c->token = known ? shown : "0123456789abcdef0123456789abcdef";
            int status = client_ask(c, CASE[i].path, CASE[i].body), expected = known ? CASE[i].status : 401;
            if (status != expected) {
                say("%s %s: status %d, expected %d", CASE[i].path, CASE[i].body, status, expected);
                wrong++;
            }
        }
    }
    c->token = NULL;
    return wrong;
}

static int hostile(const load *l, const token *shown)
{
    /* -1: no answer is one, too. */
    static const struct {
        int status;
        const char *bytes;
        size_t length;
    } CASE[] = {
        RAW(-1, "\0\0\0\0"),
        RAW(-1, "GET"),
        RAW(400, "\x16\x03\x01\x02\x00 hello\r\n\r\n"),
        RAW(404, "GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"),
        RAW(404, "GET /health%00x HTTP/1.1\r\nHost: x\r\n\r\n"),
        RAW(405, "DELETE /embed HTTP/1.1\r\nHost: x\r\n\r\n"),
        RAW(405, "POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
        RAW(400, POST("embed", "0")),
        RAW(400, POST("embed", "1") "{"),
        RAW(400, POST("embed", "2") "{}"),
        RAW(400, POST("embed", "4") "null"),
        RAW(400, POST("embed", "12") "{\"text\":1.5}"),
        RAW(400, POST("embed", "10") "{\"ids\":[]}"),
        RAW(400, POST("embed", "12") "{\"ids\":[-1]}"),
        RAW(400, POST("embed", "15") "{\"ids\":[30522]}"),
        RAW(400, POST("embed", "24") "{\"text\":\"a\",\"ids\":[101]}"),
        RAW(400, POST("embed", "13") "{\"text\":\"\xff\xfe\"}"),
        RAW(400, POST("embed", "21") "{\"ids\":[1e999,2,3,4]}"),
        RAW(-1, POST("embed", "99999999999999999999")),
        RAW(-1, POST("embed", "-5")),
        RAW(-1, POST("embed", "1000") "{\"text\":"),
        RAW(401, POST("weights/init", "0")),
        RAW(401, POST("weights/update", "2") "{}"),
        RAW(401, SHOWS("Bearer")),
        RAW(401, SHOWS("Bearer ")),
        RAW(401, SHOWS("Basic MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")),
        RAW(401, SHOWS("\xff\xfe")),
    };
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof CASE / sizeof CASE[0]; i++) {
        int status = client_raw(l->port, CASE[i].bytes, CASE[i].length);
        if (status != CASE[i].status && !(CASE[i].status < 0 && status >= 400)) {
            say("%.*s: status %d, expected %d", (int)CASE[i].length, CASE[i].bytes, status, CASE[i].status);
            wrong++;
        }
    }
    client c = client_create(l->port);
    wrong += ask_for_weights(&c, shown->text);
    char *many = must_allocate(1 << 20, 1);
    memset(many, '[', (1 << 20) - 1);
    if (client_ask(&c, "/weights/init", many) != 401)
        say("1 MiB without the token is not refused with 401: %s", c.reply), wrong++;
    if (client_ask(&c, "/embed", many) != 413)
        say("a body of 1 MiB is not refused with 413: %s", c.reply), wrong++;
    many[16000] = '\0';
    if (client_ask(&c, "/embed", many) != 400)
        say("16,000 nested lists are not refused with 400: %s", c.reply), wrong++;
    if (client_ask(&c, "/health", NULL) != 200)
        say("the server did not outlive it"), wrong++;
    else
        printf("%zu hostile requests, the server answers: %s\n", sizeof CASE / sizeof CASE[0] + 13, c.reply);
    client_destroy(&c);
    free(many);
    return wrong == 0 ? 0 : 1;
}

/* ---- slow ---- */

static int slow(const load *l)
{
    enum { LONGEST = 30 };
    double seconds = client_trickle(l->port, LONGEST);
    if (seconds < LONGEST)
        printf("a request that does not end was ended after %.0f s\n", seconds);
    else
        say("a request that does not end held its connection for %d s", LONGEST);
    return seconds < LONGEST ? 0 : 1;
}

/* ---- the command line ---- */

static void add_expected(load *l, char *given)
{
    char *equals = strchr(given, '=');
    if (equals == NULL || l->nexpected == MOST_EXPECTED)
        die("%s must be LABEL=FILE, of at most %d", given, MOST_EXPECTED);
    *equals = '\0';
    answers *expected = must_allocate(1, sizeof *expected);
    FILE *file = fopen(equals + 1, "rb");
    if (file == NULL || fread(expected->value, 1, sizeof expected->value, file) != sizeof expected->value)
        die("%s is no record of answers", equals + 1);
    fclose(file);
    expected->label = given;
    l->expected[l->nexpected++] = expected;
}

static void read_options(load *l, int argc, char **argv)
{
    static const struct option LONG[] = { { "seconds", 1, NULL, 's' }, { "connections", 1, NULL, 'c' }, { "rate", 1, NULL, 'r' },
                                          { "expect", 1, NULL, 'e' },  { NULL, 0, NULL, 0 } };
    l->seconds = 10;
    l->connections = 8;
    for (int c; (c = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        if (c == 's')
            l->seconds = strtod(optarg, NULL);
        else if (c == 'c')
            l->connections = atoi(optarg);
        else if (c == 'r')
            l->rate = strtod(optarg, NULL);
        else if (c == 'e')
            add_expected(l, optarg);
        else
            exit(2);
    }
    if (l->connections < 1 || l->connections > MOST_CONNECTIONS)
        die("--connections must be 1 to %d", MOST_CONNECTIONS);
}

int main(int argc, char **argv)
{
    static load l;
    const char *what = argc > 2 ? argv[1] : "";
    l.port = argc > 2 ? atoi(argv[2]) : 0;
    if (l.port < 1 || l.port > 65535)
        die("usage: embed-load record PORT TEXTS OUT | run PORT TEXTS [OPTION ...] | hostile PORT TOKEN_FILE | slow PORT");
    if (strcmp(what, "slow") == 0)
        return slow(&l);
    if (strcmp(what, "hostile") == 0 && argc == 4) {
        static token shown;
        token_read(argv[3], &shown);
        return hostile(&l, &shown);
    }
    if (argc < 4)
        die("%s wants a file of texts", what);
    read_texts(&l, argv[3]);
    if (strcmp(what, "record") == 0 && argc == 5)
        return record(&l, argv[4]);
    if (strcmp(what, "run") != 0)
        die("unknown: %s", what);
    read_options(&l, argc - 3, argv + 3);
    return run(&l);
}
