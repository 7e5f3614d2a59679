/*
 * main.c: gpu_bench: one trainer and one worker process, each on its GPU, through all rows in turn, again and again, so that
 * what drifts drifts for all rows alike. Prints one JSON object; scripts/bench-gpu makes the table of it.
 *
 *     gpu_bench [--model NAME] [--layers N] [--samples N] [--rows A,B,...] [--gpus T,W] [--nccl FILE] [--cublas FILE]
 *     gpu_bench ... --spoil ROW                       8 bytes of each of its samples are overwritten, for a spec of the check
 *     gpu_bench list [--model NAME] [--layers N]      what each work moves; wants no GPU
 *
 * Before each sample the sources get new values and what is to be written is overwritten; after it every byte is compared.
 * Exit: 0 all verified, 1 a fault, 2 usage, 3 no GPU or no plugin that works here.
 */
#include "crew.h"
#include "driver.h"
#include "rank.h"
#include "sluice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/wait.h>

static const char *const series_names[SERIES] = {
    "seconds", "whole_seconds", "issue_us", "agree_us", "idle_tflops", "busy_tflops"
};

/* ---- a side ---- */

static void allocate(rank *r)
{
    size_t source = 0, target = 0;
    for (work_id id = 0; id < WORKS; id++) {
        source = r->work[id].source_bytes > source ? r->work[id].source_bytes : source;
        target = r->work[id].live_bytes > target ? r->work[id].live_bytes : target;
    }
    if (r->side == TRAINER)
        r->source = gpu_allocate(&r->gpu, source, "sources");
    else
        r->live = gpu_allocate(&r->gpu, target, "live tensors");
}

/* Opens what a row needs; a row that one side cannot run is skipped on both. */
static void open_row(rank *r, size_t i)
{
    const course *row = &rows[i];
    outcome *out = &r->all->row[i];
    const char *why = chosen(r->options->rows, row->name) ? row->missing == NULL ? NULL : row->missing(r) : "not chosen";
    if (why != NULL)
        snprintf(out->skipped, sizeof out->skipped, "%s", why);
    snprintf(r->all->doing, sizeof r->all->doing, "opening %s", row->name);
    meet(r->all, SIDES);
    if (out->skipped[0] == '\0')
        row->open(r, row);
    meet(r->all, SIDES);
}

static void sample_row(rank *r, size_t i, int sample)
{
    const course *row = &rows[i];
    const work *w = &r->work[row->work];
    outcome *out = &r->all->row[i];
    uint64_t seed = (uint64_t)(sample + 2) * MOST_ROWS + i;
    CUdeviceptr target = row->to_limit ? r->limit : r->live;
    if (r->side == TRAINER)
        gpu_fill(&r->gpu, r->source, w->source_bytes, seed);
    else
        gpu_poison(&r->gpu, target, w->live_bytes);
    snprintf(r->all->doing, sizeof r->all->doing, "%s, sample %d", row->name, sample + 1);
    if (row->held)
        gpu_hold(&r->gpu);
    meet(r->all, SIDES);
    out->lane[r->side] = row->run(r, row, out, sample);
    meet(r->all, SIDES);
    if (row->held)
        gpu_let_go(&r->gpu);
    if (r->side == WORKER && r->options->spoil != NULL && strcmp(r->options->spoil, row->name) == 0)
        gpu_poison(&r->gpu, target + w->piece[0].to, 8);
    if (r->side == WORKER)
        out->wrong += gpu_wrong(&r->gpu, target, w->piece, w->npieces, seed);
    else if (sample >= 0)
        out->sample[SECONDS][sample] = out->lane[0] > out->lane[1] ? out->lane[0] : out->lane[1];
    meet(r->all, SIDES);
}

static void run_side(rank *r)
{
    char why[512];
    if (!gpu_open(&r->gpu, r->options->gpu[r->side], r->options->kernels, why, sizeof why))
        leave(3, "%s", why);
    snprintf(r->all->gpu[r->side], sizeof r->all->gpu[0], "%s", r->gpu.name);
    r->all->gpus = r->gpu.count;
    r->all->driver = r->gpu.cuda.driver;
    allocate(r);
    for (size_t i = 0; i < nrows; i++)
        open_row(r, i);
    for (int sample = -1; sample < r->options->samples; sample++) /* the first warms up */
        for (size_t i = 0; i < nrows; i++)
            if (r->all->row[i].skipped[0] == '\0')
                sample_row(r, i, sample);
    ours_close(r);
    peers_close(r);
    _exit(0);
}

/* ---- the parent ---- */

static void print_row(const options *o, const course *row, const work *w, const outcome *out, bool first)
{
    printf("%s\n{\"name\":\"%s\",\"kind\":\"%s\",\"work\":\"%s\",\"title\":\"%s\"", first ? "" : ",", row->name, row->kind,
           w->name, row->title);
    if (out->skipped[0] != '\0') {
        printf(",\"skipped\":\"%s\"}", out->skipped);
        return;
    }
    printf(",\"bytes\":%zu,\"tensors\":%zu,\"workers\":%d,\"wrong_words\":%" PRIu64 ",\"device_bytes\":[%zu,%zu]", w->moved,
           w->nparams, w->workers, out->wrong, out->device_bytes[TRAINER], out->device_bytes[WORKER]);
    if (w->row_bytes > 0)
        printf(",\"row_bytes\":%" PRId64, w->row_bytes);
    if (row->run == product_run)
        printf(",\"product_rows\":%d", product_rows(row->shape));
    for (series s = 0; s < SERIES; s++)
        if (out->sample[s][0] > 0)
            print_series(series_names[s], out->sample[s], o->samples);
    printf("}");
}

static int print_all(const options *o, const shared *all, const work *works)
{
    uint64_t wrong = 0;
    printf("{\"model\":\"%s\",\"layers\":%" PRId64
           ",\"samples\":%d,\"gpus\":%d,\"pair\":[%d,%d],\"gpu\":[\"%s\",\"%s\"],\"cuda_driver\":%d,\"nccl\":%d,"
           "\"rows\":[",
           o->model.name, o->model.layers, o->samples, all->gpus, o->gpu[TRAINER], o->gpu[WORKER], all->gpu[TRAINER],
           all->gpu[WORKER], all->driver, all->nccl);
    for (size_t i = 0; i < nrows; i++) {
        print_row(o, &rows[i], &works[rows[i].work], &all->row[i], i == 0);
        wrong += all->row[i].wrong;
    }
    printf("]}\n");
    if (wrong > 0)
        fprintf(stderr, "gpu_bench: %" PRIu64 " words are wrong\n", wrong);
    return wrong > 0 ? 1 : 0;
}

/* Asked in a process of its own, for a process that has used CUDA must not fork. */
static int count_gpus(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        slc_cuda cuda;
        int count = 0;
        if (slc_cuda_open(&cuda, NULL) != SLUICE_OK || cuda.DeviceGetCount(&count) != CUDA_SUCCESS)
            _exit(0);
        _exit(count > 100 ? 100 : count);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static int bench(options *o)
{
    work works[WORKS];
    int fd[PLACES], port;
    char *init_info[PLACES];
    sluice_error error = SLUICE_ERROR_INIT;
    for (int id = 0; id < PLACES; id++) {
        if (id < WORKS)
            works[id] = work_make((work_id)id, &o->model);
        fd[id] = crew_listen(&port);
        char *text = work_init_info(&works[id % WORKS], port);
        if (sluice_seal_init_info(text, strlen(text), &init_info[id], &error) != SLUICE_OK)
            die("%s", error.text);
        free(text);
    }
    shared *all = crew_memory(sizeof *all);
    if (!o->gpus_given)
        o->gpu[WORKER] = count_gpus() > 1 ? 1 : 0;
    pid_t pid[SIDES];
    for (int side = 0; side < SIDES; side++) {
        pid[side] = crew_start(&all->crew, side);
        if (pid[side] == 0)
            run_side(&(rank){ .options = o, .all = all, .side = side, .work = works, .listen_fd = fd, .init_info = init_info });
    }
    int code = crew_await(&all->crew, pid, SIDES, o->timeout_s * 4, 0); /* nobody waits for ever, NCCL neither */
    if (code == 0)
        return print_all(o, all, works);
    fprintf(stderr, "gpu_bench: %s%s%s%s\n", all->crew.blamed == 0 ? "" : all->crew.blamed == 1 + TRAINER ? "trainer: " : "worker: ",
            all->doing, all->doing[0] != '\0' ? ": " : "", all->crew.why);
    return code;
}

/* ---- arguments ---- */

static void usage(const char *what)
{
    fprintf(stderr, "gpu_bench: %s\n", what);
    exit(2);
}

static void check_rows(const options *o)
{
    for (const char *at = o->rows; at != NULL && o->rows[0] != '\0'; at = strchr(at, ',') == NULL ? NULL : strchr(at, ',') + 1) {
        bool known = false;
        for (size_t i = 0; i < nrows && !known; i++) {
            size_t length = strlen(rows[i].name);
            known = strncmp(at, rows[i].name, length) == 0 && (at[length] == ',' || at[length] == '\0');
        }
        if (known)
            continue;
        fprintf(stderr, "gpu_bench: no row %.*s; there are:", (int)strcspn(at, ","), at);
        for (size_t i = 0; i < nrows; i++)
            fprintf(stderr, " %s", rows[i].name);
        fprintf(stderr, "\n");
        exit(2);
    }
}

static void take(options *o, const char *key, const char *value, const char **model_name, int64_t *layers)
{
    if (strcmp(key, "--model") == 0)
        *model_name = value;
    else if (strcmp(key, "--layers") == 0 && atoi(value) > 0)
        *layers = atoi(value);
    else if (strcmp(key, "--samples") == 0 && atoi(value) > 0 && atoi(value) <= MOST_SAMPLES)
        o->samples = atoi(value);
    else if (strcmp(key, "--rows") == 0)
        o->rows = value;
    else if (strcmp(key, "--spoil") == 0)
        o->spoil = value;
    else if (strcmp(key, "--nccl") == 0)
        o->nccl = value;
    else if (strcmp(key, "--cublas") == 0)
        o->cublas = value;
    else if (strcmp(key, "--kernels") == 0)
        o->kernels = value;
    else if (strcmp(key, "--gpus") == 0 && sscanf(value, "%d,%d", &o->gpu[TRAINER], &o->gpu[WORKER]) == 2 &&
             o->gpu[TRAINER] >= 0 && o->gpu[WORKER] >= 0)
        o->gpus_given = true;
    else
        usage("unknown or wrong argument; scripts/bench-gpu --help tells");
}

int main(int argc, char **argv)
{
    options o = {
        .samples = 10, .nccl = "libnccl.so.2", .cublas = "libcublas.so.13", .kernels = "gpu_bench_kernels.fatbin", .timeout_s = 60
    };
    const char *model_name = "Llama-3-8B";
    int64_t layers = 0;
    bool lists = argc > 1 && strcmp(argv[1], "list") == 0;
    int first = lists ? 2 : 1;
    if ((argc - first) % 2 != 0)
        usage("each option wants a value; scripts/bench-gpu --help tells");
    for (int i = first; i < argc; i += 2)
        take(&o, argv[i], argv[i + 1], &model_name, &layers);
    if (!model_find(model_name, layers, &o.model))
        usage("the model must be Llama-3-8B or tiny");
    check_rows(&o);
    if (lists) {
        work_list(&o.model);
        return 0;
    }
    return bench(&o);
}
