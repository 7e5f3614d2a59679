/* ours.c: updates through the public API: real ranks, each with its engine; the workers of one work are threads of one process. */
#include "base/clock.h"
#include "rank.h"
#include "sluice.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct lane {
    rank *r;
    const course *row;
    const work *work;
    int number; /* rank: 0 is the trainer */
    sluice_engine *engine;
    sluice_recording recording; /* 0 before the first row that replays one */
    double seconds, whole_seconds, began, launched, issue_us;
} lane;

struct engines {
    int count;
    lane lane[MOST_WORKERS];
};

static void check(const lane *l, sluice_status status, const char *call, const sluice_error *error)
{
    if (status != SLUICE_OK)
        die("%s, rank %d, %s: %s", l->row->name, l->number, call, error->text);
}

/* What the transport says of its own launches; see link.c. */
static void hear(void *user, sluice_log_level level, const char *text)
{
    lane *l = user;
    double us;
    if (level == SLUICE_LOG_DEBUG && sscanf(text, "nccl: launched in %lf us", &us) == 1) {
        l->issue_us = us;
        l->launched = slc_now_s();
    }
}

static void register_all(lane *l)
{
    const rank *r = l->r;
    const work *w = l->work;
    sluice_error error = SLUICE_ERROR_INIT;
    if (l->number == 0) {
        for (size_t i = 0; i < w->nparams; i++) {
            const param *p = &w->param[i];
            size_t bytes = (size_t)((p->rows > 0 ? p->rows : 1) * p->columns * WORK_ELEMENT);
            check(l,
                  sluice_register_source(l->engine, p->name, "bfloat16", (const void *)(uintptr_t)(r->source + p->at), bytes,
                                         &error),
                  "register_source", &error);
        }
        return;
    }
    char attributes[96];
    check(l, sluice_describe_host(l->engine, w->host, strlen(w->host), &error), "describe_host", &error);
    for (size_t i = 0; i < w->nlives; i++) {
        const live *t = &w->live[i];
        if (t->worker != l->number - 1)
            continue;
        const int64_t shape[] = { t->rows > 0 ? t->rows : t->columns, t->columns };
        snprintf(attributes, sizeof attributes,
                 t->cut ? "{\"loader\":\"row\",\"input_dim\":1,\"tp_size\":%d}" : "{\"loader\":\"replicated\"}", w->workers);
        const sluice_live tensor = { .size = sizeof tensor,
                                     .name = t->name,
                                     .dtype = "bfloat16",
                                     .ndim = t->rows > 0 ? 2 : 1,
                                     .shape = shape,
                                     .data = (void *)(uintptr_t)(r->live + t->at),
                                     .attributes = attributes };
        check(l, sluice_register_live(l->engine, &tensor, &error), "register_live", &error);
    }
}

static void *open_lane(void *context)
{
    lane *l = context;
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_options given = SLUICE_OPTIONS_INIT;
    int id = course_place(l->row);
    given.rank = l->number;
    given.transport = "nccl";
    given.road = l->row->by_wire ? "wire" : NULL;
    given.rules = l->work->rules;
    given.timeout_s = l->r->options->timeout_s;
    given.listen_fd = l->number == 0 ? l->r->listen_fd[id] : -1;
    given.callbacks.user = l;
    given.callbacks.log = hear;
    check(l, sluice_engine_create(&given, &l->engine, &error), "engine_create", &error);
    register_all(l);
    check(l, sluice_init(l->engine, l->r->init_info[id], strlen(l->r->init_info[id]), &error), "init", &error);
    return NULL;
}

static sluice_status move(const lane *l, sluice_error *error)
{
    return l->row->variant == OURS_REPLAYED ? sluice_replay(l->engine, l->recording, error)
                                            : sluice_update(l->engine, l->work->names, l->work->nparams, error);
}

static void *update_lane(void *context)
{
    lane *l = context;
    sluice_error error = SLUICE_ERROR_INIT;
    if (l->row->variant == OURS_REPLAYED && l->recording == 0)
        check(l, sluice_record(l->engine, l->work->names, l->work->nparams, &l->recording, &error), "record", &error);
    meet(l->r->all, 1 + l->work->workers);
    double started = slc_now_s();
    check(l, sluice_start_update(l->engine, false, &error), "start_update", &error);
    l->began = slc_now_s();
    check(l, move(l, &error), "update", &error);
    l->seconds = slc_now_s() - l->began;
    check(l, sluice_finish_update(l->engine, "bench", &error), "finish_update", &error);
    l->whole_seconds = slc_now_s() - started;
    return NULL;
}

static void on_all_lanes(struct engines *e, void *(*what)(void *))
{
    pthread_t thread[MOST_WORKERS];
    for (int i = 1; i < e->count; i++)
        if (pthread_create(&thread[i], NULL, what, &e->lane[i]) != 0)
            die("no thread for a worker");
    (void)what(&e->lane[0]);
    for (int i = 1; i < e->count; i++)
        pthread_join(thread[i], NULL);
}

void ours_open(rank *r, const course *row)
{
    if (r->engines[course_place(row)] != NULL)
        return;
    const work *w = &r->work[row->work];
    struct engines *e = need(calloc(1, sizeof *e));
    e->count = r->side == TRAINER ? 1 : w->workers;
    for (int i = 0; i < e->count; i++)
        e->lane[i] = (lane){ .r = r, .row = row, .work = w, .number = r->side == TRAINER ? 0 : 1 + i };
    if (r->side == WORKER)
        close(r->listen_fd[course_place(row)]);
    meet(r->all, SIDES);
    size_t before = gpu_free_bytes(&r->gpu);
    on_all_lanes(e, open_lane);
    on_all_lanes(e, update_lane); /* what comes with the first update counts, too */
    size_t after = gpu_free_bytes(&r->gpu), each = (before > after ? before - after : 0) / (size_t)e->count;
    r->all->row[row - rows].device_bytes[r->side] = each;
    r->engines[course_place(row)] = e;
}

double ours_run(rank *r, const course *row, outcome *out, int sample)
{
    struct engines *e = r->engines[course_place(row)];
    for (int i = 0; i < e->count; i++)
        e->lane[i].row = row;
    on_all_lanes(e, update_lane);
    double slowest = 0;
    for (int i = 0; i < e->count; i++)
        slowest = e->lane[i].seconds > slowest ? e->lane[i].seconds : slowest;
    const lane *l = &e->lane[0];
    if (sample >= 0 && r->side == TRAINER) {
        out->sample[WHOLE][sample] = l->whole_seconds;
        out->sample[ISSUE_US][sample] = l->issue_us;
        out->sample[AGREE_US][sample] = (l->launched - l->began) * 1e6 - l->issue_us;
    }
    return slowest;
}

void ours_close(rank *r)
{
    for (int id = 0; id < PLACES; id++) {
        struct engines *e = r->engines[id];
        for (int i = 0; e != NULL && i < e->count; i++)
            sluice_engine_destroy(e->lane[i].engine);
        free(e);
        r->engines[id] = NULL;
    }
}

/* That a process has NCCL already, from here, is what a serving host's process is like. */
const char *wire_missing(rank *r)
{
    return peers_missing(r);
}

const char *wire_shared_missing(rank *r)
{
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE"), *why = peers_missing(r);
    if (why != NULL || (r->all->nccl >= 23000 && allowed != NULL && strcmp(allowed, "1") == 0))
        return why;
    return "several ranks on the worker's GPU want NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1";
}
