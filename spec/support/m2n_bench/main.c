/*
 * main.c: m2n_bench: all ways of each work in turn, each opened, warmed up, measured and closed. Prints one JSON object;
 * scripts/bench-m2n makes the table of it.
 *
 *     m2n_bench [--works A,B,...] [--ways A,B,...] [--samples N] [--gpus T,W] [--kernels FILE] [--tiny 1] [--timeout SECONDS]
 *
 * Before each sample the sources get new values and what is to be written is overwritten; after it every byte is compared. A way
 * that fails, or hangs until the timeout, ends its processes; the next ones begin with the way after it. Exit: 0 all that ran was
 * verified, 1 wrong bytes, 2 usage, 3 no GPU that works here.
 */
#include "base/clock.h"
#include "driver.h"
#include "m2n_bench/bench.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- a rank ---- */

static void open_place(place *p)
{
    char why[256];
    sluice_error error = SLUICE_ERROR_INIT;
    if (!gpu_open(&p->gpu, p->options->gpu[p->worker], p->options->kernels, why, sizeof why))
        die("%s", why);
    snprintf(p->all->gpu[p->worker], sizeof p->all->gpu[0], "%s", p->gpu.name);
    p->all->driver = p->gpu.cuda.driver;
    p->memory = gpu_allocate(&p->gpu, p->worker ? p->work->live_bytes : p->work->source_bytes, "tensors");
    slc_nccl_file nccl = { 0 };
    bool m2n = slc_m2n_load(&p->m2n, NULL, &error) == SLUICE_OK;
    snprintf(p->all->library, sizeof p->all->library, "%s", m2n ? p->m2n.text : error.text);
    if (m2n)
        nccl = p->m2n.file.nccl;
    else
        p->m2n = (slc_m2n){ 0 };
    p->has_nccl = (m2n || slc_nccl_find(NULL, &nccl, &error) == SLUICE_OK) && nccl_calls_find(&p->nccl, nccl.path);
    snprintf(p->all->nccl_text, sizeof p->all->nccl_text, "%s", p->has_nccl ? nccl.path : error.text);
    p->all->nccl = nccl.version;
}

static uint64_t seed_of(const place *p, size_t w, int sample, int trainer)
{
    int own = p->work->source == WHOLE ? 0 : trainer; /* whole on all: the same on all */
    return ((uint64_t)(sample + 2) * MOST_WAYS + w) * MOST_SIDE + (uint64_t)own;
}

static void check_worker(place *p, size_t w, int sample, piece *list)
{
    uint64_t wrong = 0;
    for (int trainer = 0; trainer < p->work->side; trainer++) {
        size_t count = assignment_pieces(p->work, p->number, trainer, list);
        wrong += gpu_wrong(&p->gpu, p->memory, list, count, seed_of(p, w, sample, trainer));
    }
    p->all->wrong += wrong;
}

static void sample_way(place *p, size_t w, int sample, piece *list)
{
    outcome *out = &p->all->way[w];
    double issue_us = 0;
    if (p->worker)
        gpu_poison(&p->gpu, p->memory, p->work->live_bytes);
    else
        gpu_fill(&p->gpu, p->memory, p->work->source_bytes, seed_of(p, w, sample, p->number));
    meet(p);
    double began = slc_now_s();
    ways[w].run(p, &ways[w], &issue_us);
    out->lane[p->rank] = slc_now_s() - began;
    meet(p);
    if (p->worker && strcmp(ways[w].name, "limit") != 0)
        check_worker(p, w, sample, list);
    if (p->rank == 0 && sample >= 0) {
        out->seconds[sample] = 0;
        for (int i = 0; i < 2 * p->work->side; i++)
            out->seconds[sample] = out->lane[i] > out->seconds[sample] ? out->lane[i] : out->seconds[sample];
        out->issue_us[sample] = issue_us;
    }
    meet(p);
}

static void run_way(place *p, size_t w, piece *list)
{
    outcome *out = &p->all->way[w];
    const char *why = ways[w].missing == NULL ? NULL : ways[w].missing(p);
    if (why != NULL && p->rank == 0)
        snprintf(out->failed, sizeof out->failed, "%s", why);
    meet(p);
    if (why != NULL)
        return;
    size_t before = gpu_free_bytes(&p->gpu);
    meet(p);
    ways[w].open(p, &ways[w]);
    meet(p);
    sample_way(p, w, -1, list); /* what comes with the first counts, too */
    size_t after = gpu_free_bytes(&p->gpu);
    int ranks = p->work->side * (p->options->gpu[0] == p->options->gpu[1] ? 2 : 1); /* of this GPU */
    out->device_bytes[p->worker] = (before > after ? before - after : 0) / (size_t)ranks;
    meet(p);
    for (int sample = 0; sample < p->options->samples; sample++)
        sample_way(p, w, sample, list);
    if (p->rank == 0) {
        out->wrong = p->all->wrong;
        p->all->wrong = 0;
        out->done = true;
    }
    meet(p);
    ways[w].close(p, &ways[w]);
    meet(p);
}

static void run_rank(place *p, size_t first)
{
    (void)dup2(STDERR_FILENO, STDOUT_FILENO); /* libraries print their warnings there */
    open_place(p);
    piece *list = need(calloc(p->work->count, sizeof *list));
    meet(p);
    for (size_t w = first; w < nways; w++) {
        if (p->rank == 0) /* the parent's clock begins anew */
            p->all->crew.step = (int)w + 1;
        bool runs = chosen(p->options->ways, ways[w].name) && p->all->way[w].failed[0] == '\0' && !p->all->way[w].done;
        meet(p);
        if (runs)
            run_way(p, w, list);
    }
    _exit(0);
}

/* ---- the parent ---- */

/* One run of the ways from `first` on; the way that it ended at, nways for none. */
static size_t run_from(const options *o, shared *all, const assignment *a, size_t first)
{
    int fd[2 * MOST_WAYS], world = 2 * a->side;
    pid_t pid[MOST_RANKS];
    memset(&all->crew, 0, sizeof all->crew);
    all->wrong = 0;
    for (size_t w = 0; w < nways; w++)
        fd[2 * w] = crew_listen(&fd[2 * w + 1]);
    for (int rank = 0; rank < world; rank++) {
        pid[rank] = crew_start(&all->crew, rank);
        if (pid[rank] != 0)
            continue;
        for (size_t w = 0; w < nways && rank > 0; w++)
            close(fd[2 * w]);
        bool worker = rank >= a->side;
        run_rank(&(place){ .options = o, .all = all, .work = a, .rank = rank, .number = worker ? rank - a->side : rank, .worker = worker,
                           .listen_fd = fd },
                 first);
    }
    for (size_t w = 0; w < nways; w++)
        close(fd[2 * w]);
    if (crew_await(&all->crew, pid, world, o->timeout_s, 0) == 0)
        return nways;
    return all->crew.step == 0 ? SIZE_MAX : (size_t)all->crew.step - 1;
}

static uint64_t print_way(const options *o, const course *way, const outcome *out)
{
    printf("{\"name\":\"%s\",\"title\":\"%s\"", way->name, way->title);
    if (!out->done) {
        printf(",\"failed\":");
        print_text(out->failed, strlen(out->failed));
        printf("}");
        return 0;
    }
    printf(",\"wrong_words\":%" PRIu64 ",\"device_bytes\":[%zu,%zu]", out->wrong, out->device_bytes[0], out->device_bytes[1]);
    print_series("seconds", out->seconds, o->samples);
    print_series("issue_us", out->issue_us, o->samples);
    printf("}");
    return out->wrong;
}

/* All ways of one work, over as many runs as it takes. */
static int bench(const options *o, shared *all, const char *name, bool *begun)
{
    assignment a;
    uint64_t wrong = 0;
    (void)assignment_make(name, o->tiny, &a);
    memset(all->way, 0, sizeof all->way);
    for (size_t first = 0; first < nways;) {
        size_t ended = run_from(o, all, &a, first);
        if (ended == SIZE_MAX) {
            fprintf(stderr, "m2n_bench: %s: %s\n", name, all->crew.why);
            return 3;
        }
        if (ended < nways)
            snprintf(all->way[ended].failed, sizeof all->way[0].failed, "%s", all->crew.why);
        first = ended < nways ? ended + 1 : nways;
        fprintf(stderr, "m2n_bench: %s%s%s\n", name, ended < nways ? ": " : "", ended < nways ? ways[ended].name : "");
    }
    printf("%s\n{\"name\":\"%s\",\"title\":\"%s\",\"tensors\":%zu,\"ranks\":%d,\"bytes\":%zu,\"ways\":[", *begun ? "," : "", a.name, a.title,
           a.count, 2 * a.side, a.moved);
    *begun = true;
    bool some = false;
    for (size_t w = 0; w < nways; w++) {
        if (!chosen(o->ways, ways[w].name))
            continue;
        printf("%s\n", some ? "," : "");
        wrong += print_way(o, &ways[w], &all->way[w]);
        some = true;
    }
    printf("]}");
    fflush(stdout);
    return wrong > 0;
}

static void take(options *o, const char *key, const char *value, const char **works)
{
    if (strcmp(key, "--works") == 0)
        *works = value;
    else if (strcmp(key, "--ways") == 0)
        o->ways = value;
    else if (strcmp(key, "--samples") == 0 && atoi(value) > 0 && atoi(value) <= MOST_SAMPLES)
        o->samples = atoi(value);
    else if (strcmp(key, "--gpus") == 0 && sscanf(value, "%d,%d", &o->gpu[0], &o->gpu[1]) == 2 && o->gpu[0] >= 0 && o->gpu[1] >= 0)
        return;
    else if (strcmp(key, "--kernels") == 0)
        o->kernels = value;
    else if (strcmp(key, "--timeout") == 0 && atof(value) > 0)
        o->timeout_s = atof(value);
    else if (strcmp(key, "--tiny") == 0)
        o->tiny = true;
    else {
        fprintf(stderr, "m2n_bench: unknown or wrong argument %s; scripts/bench-m2n --help tells\n", key);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    options o = { .samples = 10, .gpu = { 0, 1 }, .kernels = "gpu_bench_kernels.fatbin", .timeout_s = 60 };
    const char *works = assignment_names();
    for (int i = 1; i < argc; i += 2)
        take(&o, argv[i], i + 1 < argc ? argv[i + 1] : "", &works);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    shared *all = crew_memory(sizeof *all);
    char *list = need(strdup(works)), *rest = list;
    int code = 0;
    bool begun = false;
    printf("{\"samples\":%d,\"works\":[", o.samples);
    for (char *name; (name = strsep(&rest, ",")) != NULL && code != 3;) {
        assignment a;
        if (!assignment_make(name, true, &a)) {
            fprintf(stderr, "m2n_bench: no work %s; there are: %s\n", name, assignment_names());
            exit(2);
        }
        int one = bench(&o, all, name, &begun);
        code = one > code ? one : code;
    }
    printf("],\"gpu\":[\"%s\",\"%s\"],\"cuda_driver\":%d,\"nccl\":%d,\"library\":", all->gpu[0], all->gpu[1], all->driver, all->nccl);
    print_text(all->library, strlen(all->library));
    printf("}\n");
    return code;
}
