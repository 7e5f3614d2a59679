/*
 * main.c: shards_bench, for scripts/bench-shards: what a sharded update is held against. Prints one JSON object.
 *
 *     shards_bench count                                          GPUs of this machine, their names and free bytes
 *     shards_bench links [--samples N] [--bytes N]                each GPU pushes N bytes to its partner, alone and with all
 *     shards_bench peers --init-info FILE [--samples N] [--bytes N] [--nccl FILE]      N: of a packed broadcast's buffer
 *     ... --kernels FILE                                          fills and checks by the GPU instead of by processors
 *
 * Exit: 0 all verified, 1 a fault, 2 usage, 3 it cannot be measured here.
 */
#include "bench.h"
#include "moves.h"

#include "driver.h"

#include <inttypes.h>
#include <stdlib.h>

enum { LONGEST_S = 600 };

/* ---- processes ---- */

static void run(place *p, const moves *m)
{
    char why[512];
    int each = (p->count - 1) / p->options->gpus + 1;
    if (!gpu_open(&p->gpu, p->number / each, p->options->kernels, why, sizeof why))
        leave(3, "%s", why);
    snprintf(p->all->gpu[p->gpu.ordinal], sizeof p->all->gpu[0], "%s", p->gpu.name);
    p->all->driver = p->gpu.cuda.driver;
    if (m == NULL)
        links_run(p);
    else
        peers_run(p, m);
    _exit(0);
}

static int start_all(const options *o, shared *all, int count, const moves *m)
{
    pid_t pid[MOST_RANKS];
    for (int i = 0; i < count; i++) {
        pid[i] = crew_start(&all->crew, i);
        if (pid[i] == 0)
            run(&(place){ .options = o, .all = all, .number = i, .count = count }, m);
    }
    int code = crew_await(&all->crew, pid, count, LONGEST_S, 0);
    if (code != 0 && all->crew.blamed > 0)
        fprintf(stderr, "shards_bench: process %d: %s\n", all->crew.blamed - 1, all->crew.why);
    else if (code != 0)
        fprintf(stderr, "shards_bench: %s\n", all->crew.why);
    return code;
}

/* Asked in a process of its own, for a process that has used CUDA must not fork. */
static void look(const options *o, shared *all, size_t *free_bytes)
{
    pid_t pid = crew_start(&all->crew, 0);
    if (pid == 0) {
        gpu one;
        char why[512];
        for (int i = 0, count = 1; i < count && i < MOST_GPUS; i++) {
            if (!gpu_open(&one, i, o->kernels, why, sizeof why))
                leave(3, "%s", why);
            snprintf(all->gpu[i], sizeof all->gpu[0], "%s", one.name);
            all->driver = one.cuda.driver;
            free_bytes[i] = gpu_free_bytes(&one);
            count = one.count;
        }
        _exit(0);
    }
    if (crew_await(&all->crew, &pid, 1, LONGEST_S, 0) != 0)
        leave(3, "%s", all->crew.why);
}

/* ---- output ---- */

static void print_links(const options *o, const shared *all)
{
    printf("{\"bytes\":%zu,\"wrong_words\":%" PRIu64 ",\"links\":[", o->bytes, all->wrong);
    for (int i = 0; i < o->gpus; i++) {
        printf("%s\n{\"gpu\":%d,\"to\":%d", i == 0 ? "" : ",", i, partner(i, o->gpus));
        print_series("alone", all->alone[i], o->samples);
        print_series("together", all->together[i], o->samples);
        printf("}");
    }
    printf("]}\n");
}

static void print_peers(const options *o, const shared *all, const moves *m)
{
    printf("{\"bytes\":%zu,\"parameters\":%zu,\"nccl\":%d,\"wrong_words\":%" PRIu64 ",\"ways\":[", m->total, m->nparams, all->nccl,
           all->wrong);
    for (int way = 0; way < WAYS; way++) {
        printf("%s\n{\"name\":\"%s\",\"title\":\"%s\"", way == 0 ? "" : ",", way_names[way], way_titles[way]);
        print_series("seconds", all->way[way], o->samples);
        printf("}");
    }
    printf("]}\n");
}

static void print_count(const options *o, const shared *all, const size_t *free_bytes)
{
    printf("{\"cuda_driver\":%d,\"gpus\":[", all->driver);
    for (int i = 0; i < o->gpus; i++)
        printf("%s{\"name\":\"%s\",\"free_bytes\":%zu}", i == 0 ? "" : ",", all->gpu[i], free_bytes[i]);
    printf("]}\n");
}

/* ---- arguments ---- */

static void take(options *o, const char *key, const char *value)
{
    if (value != NULL && strcmp(key, "--samples") == 0 && atoi(value) > 0 && atoi(value) <= MOST_SAMPLES)
        o->samples = atoi(value);
    else if (value != NULL && strcmp(key, "--bytes") == 0 && atoll(value) >= 8)
        o->bytes = (size_t)atoll(value) / 8 * 8;
    else if (value != NULL && strcmp(key, "--nccl") == 0)
        o->nccl = value;
    else if (value != NULL && strcmp(key, "--kernels") == 0)
        o->kernels = value;
    else if (value != NULL && strcmp(key, "--init-info") == 0)
        o->init_info = value;
    else {
        fprintf(stderr, "shards_bench: %s%s%s is not known; scripts/bench-shards runs this\n", key, value == NULL ? "" : " ",
                value == NULL ? "" : value);
        exit(2);
    }
}

static int finish(int code, uint64_t wrong)
{
    if (code == 0 && wrong > 0)
        fprintf(stderr, "shards_bench: %" PRIu64 " words are wrong\n", wrong);
    return code != 0 ? code : wrong > 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    options o = { .samples = 10, .bytes = (size_t)1 << 30, .nccl = "libnccl.so.2", .kernels = "gpu_bench_kernels.fatbin" };
    for (int i = 2; i < argc; i += 2)
        take(&o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
    shared *all = crew_memory(sizeof *all);
    size_t *free_bytes = crew_memory(MOST_GPUS * sizeof *free_bytes);
    look(&o, all, free_bytes);
    while (o.gpus < MOST_GPUS && all->gpu[o.gpus][0] != '\0')
        o.gpus++;
    if (strcmp(what, "count") == 0) {
        print_count(&o, all, free_bytes);
        return 0;
    }
    if (strcmp(what, "links") == 0) {
        int code = finish(start_all(&o, all, o.gpus, NULL), all->wrong);
        if (code == 0)
            print_links(&o, all);
        return code;
    }
    if (strcmp(what, "peers") != 0 || o.init_info == NULL)
        take(&o, what, NULL);
    int ranks;
    moves *m = moves_read(&o, &ranks);
    if (m->unfit != NULL || ranks > MOST_RANKS) {
        fprintf(stderr, "shards_bench: %s\n", m->unfit != NULL ? m->unfit : "more ranks than it takes");
        return 3;
    }
    int code = finish(start_all(&o, all, ranks, m), all->wrong);
    if (code == 0)
        print_peers(&o, all, m);
    return code;
}
