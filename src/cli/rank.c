/* rank.c: the order of a rank's life: make memory, init, and for each update fill or verify around it. Owns the engine. */
#include "cli/rank.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/flag.h"
#include "cli/save.h"
#include "cli/verify.h"

typedef struct {
    slc_job *job;
    const slc_report *report;
    sluice_engine *engine;
    slc_cancel cancel;
    slc_shards shards;
    slc_serving serving;
    bool ready;
    uint64_t update;
    uint64_t moved; /* bytes of the batches done in this update */
    uint64_t batch; /* bytes of the batch under way */
    double moving_s; /* in the batches of this update, without what stands around them */
    sluice_recording *recording; /* of each batch, 0 before it is made */
} rank;

/* ---- callbacks ---- */

static const char *const levels[] = { "error", "warning", "info", "debug" };

static sluice_log_level wanted_level(const slc_job *job)
{
    for (unsigned i = 0; job->log != NULL && i < sizeof levels / sizeof *levels; i++)
        if (strcmp(levels[i], job->log) == 0)
            return (sluice_log_level)i;
    return SLUICE_LOG_WARN;
}

static void on_log(void *user, sluice_log_level level, const char *text)
{
    const rank *r = user;
    if (level > wanted_level(r->job))
        return;
    slc_buffer line;
    slc_report_begin(&line, "log");
    slc_report_text(&line, "level", levels[level]);
    slc_report_text(&line, "text", text);
    slc_report_end(r->report, &line);
}

static void on_progress(void *user, const sluice_progress *progress)
{
    rank *r = user;
    r->batch = progress->bytes_done;
    if (!r->report->progress || !slc_job_is_worker(r->job))
        return;
    slc_buffer line;
    slc_report_begin(&line, "progress");
    slc_report_count(&line, "update", r->update);
    slc_report_count(&line, "done", r->moved + progress->bytes_done);
    slc_report_count(&line, "total", r->moved + progress->bytes_total);
    slc_report_end(r->report, &line);
}

static sluice_status on_reload_begin(void *user, sluice_error *error)
{
    return slc_serving_reload_begin(&((rank *)user)->serving, error);
}

static sluice_status on_load(void *user, sluice_weights *weights, sluice_error *error)
{
    return slc_serving_load(&((rank *)user)->serving, weights, error);
}

static sluice_status on_reload_end(void *user, sluice_error *error)
{
    return slc_serving_reload_end(&((rank *)user)->serving, error);
}

/* ---- life ---- */

static sluice_status make(rank *r, sluice_error *error)
{
    const slc_job *job = r->job;
    sluice_options options = SLUICE_OPTIONS_INIT;
    options.rank = job->rank;
    options.rules = job->rules;
    options.transport = job->transport;
    options.road = job->road;
    options.no_sm = job->no_sm;
    options.mix = job->mix;
    options.grouped = job->grouped;
    options.timeout_s = job->timeout_s;
    options.timeouts = job->timeouts;
    options.listen_fd = job->listen_fd;
    options.key_fd = job->key_fd;
    options.key_file = job->key_file;
    options.insecure_control = job->insecure_control;
    options.beat_s = job->beat_s;
    options.staging_slots = job->staging_slots;
    options.callbacks.user = r;
    options.callbacks.log = on_log;
    options.callbacks.progress = on_progress;
    if (slc_job_is_worker(job)) {
        options.callbacks.reload_begin = on_reload_begin;
        options.callbacks.load_weights = on_load;
        options.callbacks.reload_end = on_reload_end;
    }
    sluice_status status = slc_job_is_worker(job) ? slc_verify_description(job, error) : SLUICE_OK;
    if (status == SLUICE_OK && slc_job_is_worker(job))
        status = slc_save_prepare(job, error);
    if (status == SLUICE_OK)
        status = sluice_engine_create(&options, &r->engine, error);
    if (status == SLUICE_OK)
        status = slc_cancel_begin(&r->cancel, r->engine, error);
    if (status == SLUICE_OK && job->allow_attach != NULL)
        status = sluice_allow_attach(r->engine, job->allow_attach, -1, error);
    if (status != SLUICE_OK)
        return status;
    return slc_job_is_worker(job) ? slc_serving_make(&r->serving, r->job, r->engine, error)
                                  : slc_shards_make(&r->shards, job, r->engine, error);
}

/*
 * Under `sluice run` ranks write and check values outside the deadlines of the engine, which are for what ranks wait for
 * in each other: all begin init, and each update, at one time.
 */
static sluice_status meet(rank *r, sluice_error *error)
{
    if (r->report->go < 0)
        return SLUICE_OK;
    slc_buffer line;
    slc_report_begin(&line, "waiting");
    slc_report_count(&line, "update", r->update);
    slc_report_end(r->report, &line);
    while (!slc_flag_raised(&r->cancel.cancelled)) {
        struct pollfd on = { .fd = r->report->go, .events = POLLIN };
        char byte;
        if (poll(&on, 1, 50) <= 0)
            continue;
        ssize_t got = read(r->report->go, &byte, 1);
        if (got == 1)
            return SLUICE_OK;
        if (got == 0 || errno != EINTR)
            return slc_fail(error, SLUICE_CANCELLED, "rank", "whoever started this rank is gone");
    }
    return slc_fail(error, SLUICE_CANCELLED, "rank", "cancelled");
}

static sluice_status init(rank *r, sluice_error *error)
{
    double start = slc_now_s();
    sluice_status status = sluice_init(r->engine, r->job->init_info, r->job->init_info_length, error);
    if (status != SLUICE_OK)
        return status;
    r->ready = true;
    double seconds = slc_now_s() - start;
    char *plan = NULL;
    if (r->job->rank <= r->job->trainers) /* what trainers send differs, what workers get does not */
        status = sluice_plan_json(r->engine, false, &plan, error);
    if (status == SLUICE_OK) {
        slc_buffer line;
        slc_report_begin(&line, "ready");
        slc_report_seconds(&line, "seconds", seconds);
        if (plan != NULL)
            slc_report_raw(&line, "plan", plan);
        slc_report_end(r->report, &line);
    }
    sluice_free(plan);
    return status;
}

static void report_work(const rank *r, const char *event, double seconds, uint64_t bytes)
{
    slc_buffer line;
    slc_report_begin(&line, event);
    slc_report_count(&line, "update", r->update);
    slc_report_seconds(&line, "seconds", seconds);
    slc_report_count(&line, "bytes", bytes);
    slc_report_end(r->report, &line);
}

static sluice_status fill(rank *r, sluice_error *error)
{
    double start = slc_now_s();
    sluice_status status = slc_shards_fill(&r->shards, r->job, r->update, &r->cancel.cancelled, error);
    if (status == SLUICE_OK)
        report_work(r, "filled", slc_now_s() - start, r->shards.bytes);
    return status;
}

/* One batch: by its names, or by a recording of them that the first update makes. */
static sluice_status move_one(rank *r, size_t batch, const char *const *names, size_t count, sluice_error *error)
{
    if (!r->job->replay)
        return sluice_update(r->engine, names, count, error);
    sluice_recording *recording = &r->recording[batch];
    sluice_status status = *recording == 0 ? sluice_record(r->engine, names, count, recording, error) : SLUICE_OK;
    return status == SLUICE_OK ? sluice_replay(r->engine, *recording, error) : status;
}

static sluice_status move_all(rank *r, const char *const *names, sluice_error *error)
{
    size_t count = r->job->nparams, batches = r->job->batches < count ? r->job->batches : count;
    sluice_status status = sluice_start_update(r->engine, false, error);
    for (size_t b = 0; b < batches && status == SLUICE_OK; b++) {
        size_t from = count * b / batches, to = count * (b + 1) / batches;
        r->batch = 0;
        double began = slc_now_s();
        status = move_one(r, b, names + from, to - from, error);
        r->moving_s += slc_now_s() - began;
        r->moved += r->batch;
    }
    return status;
}

static sluice_status update(rank *r, const char *const *names, sluice_error *error)
{
    char version[32];
    snprintf(version, sizeof version, "update-%llu", (unsigned long long)r->update);
    r->moved = 0;
    r->moving_s = 0;
    r->serving.loaded = 0;
    double from = slc_now_s();
    sluice_status status = move_all(r, names, error);
    if (status == SLUICE_OK)
        status = sluice_finish_update(r->engine, version, error);
    if (status != SLUICE_OK)
        return status;
    double to = slc_now_s();
    if (strcmp(sluice_version(r->engine), version) != 0)
        return slc_fail(error, SLUICE_INTERNAL, "update", "the version is \"%s\" after \"%s\" was finished",
                        sluice_version(r->engine), version);
    slc_buffer line;
    slc_report_begin(&line, "updated");
    slc_report_count(&line, "update", r->update);
    slc_report_seconds(&line, "from", from);
    slc_report_seconds(&line, "to", to);
    slc_report_seconds(&line, "moving", r->moving_s);
    slc_report_count(&line, "bytes", r->moved);
    slc_report_count(&line, "full", r->serving.loaded);
    slc_report_end(r->report, &line);
    return SLUICE_OK;
}

static sluice_status verify(rank *r, sluice_error *error)
{
    double start = slc_now_s();
    uint64_t bytes;
    sluice_status status = slc_serving_fetch(&r->serving, error);
    if (status == SLUICE_OK)
        status = slc_verify(r->job, r->update, &r->cancel.cancelled, &bytes, error);
    if (status == SLUICE_OK)
        status = slc_serving_check_guards(&r->serving, error);
    if (status == SLUICE_OK)
        report_work(r, "verified", slc_now_s() - start, bytes);
    return status;
}

static sluice_status save(rank *r, sluice_error *error)
{
    double start = slc_now_s();
    uint64_t bytes;
    sluice_status status = slc_serving_fetch(&r->serving, error);
    if (status == SLUICE_OK)
        status = slc_save(r->job, &r->cancel.cancelled, &bytes, error);
    if (status == SLUICE_OK)
        report_work(r, "saved", slc_now_s() - start, bytes);
    return status;
}

static sluice_status all_updates(rank *r, sluice_error *error)
{
    bool worker = slc_job_is_worker(r->job);
    const char **names = slc_arena_take(&r->job->arena, r->job->nparams + 1, sizeof *names);
    r->recording = slc_arena_take(&r->job->arena, r->job->nparams + 1, sizeof *r->recording);
    if (names == NULL || r->recording == NULL)
        return slc_fail_memory(error, "rank", "the list of names", r->job->nparams * sizeof *names);
    for (size_t i = 0; i < r->job->nparams; i++)
        names[i] = r->job->param[i].name;
    sluice_status status = SLUICE_OK;
    for (r->update = 1; r->update <= r->job->updates && status == SLUICE_OK; r->update++) {
        if (!worker)
            status = fill(r, error);
        if (status == SLUICE_OK)
            status = meet(r, error);
        if (status == SLUICE_OK)
            status = update(r, names, error);
        if (status == SLUICE_OK && worker && r->job->verify)
            status = verify(r, error);
    }
    if (status == SLUICE_OK && worker && r->job->save != NULL)
        status = save(r, error);
    return status;
}

static int exit_code(const rank *r, sluice_status status)
{
    if (status == SLUICE_OK)
        return SLC_EXIT_GOOD;
    bool input = status == SLUICE_INVALID || status == SLUICE_SCRIPT || status == SLUICE_UNSUPPORTED || status == SLUICE_DISAGREE;
    if (!r->ready && input)
        return SLC_EXIT_WRONG; /* also where it was cancelled meanwhile: the cause is the same */
    return slc_flag_raised(&r->cancel.cancelled) ? SLC_EXIT_CANCELLED : SLC_EXIT_FAILED;
}

int slc_rank_run(slc_job *job, const slc_report *report, sluice_error *error)
{
    rank r = { .job = job, .report = report };
    double start = slc_now_s();
    sluice_status status = make(&r, error);
    if (status == SLUICE_OK) {
        report_work(&r, "prepared", slc_now_s() - start, r.shards.bytes + r.serving.bytes);
        status = meet(&r, error);
    }
    if (status == SLUICE_OK)
        status = init(&r, error);
    if (status == SLUICE_OK)
        status = all_updates(&r, error);
    if (status == SLUICE_OK)
        status = sluice_shutdown(r.engine, error);
    int code = exit_code(&r, status);
    if (code == SLC_EXIT_GOOD) {
        slc_buffer line;
        slc_report_begin(&line, "done");
        slc_report_end(report, &line);
    } else
        slc_report_failed(report, error, code);
    if (r.engine != NULL)
        (void)sluice_shutdown(r.engine, NULL);
    slc_cancel_end(&r.cancel);
    slc_shards_clear(&r.shards, r.engine);
    sluice_engine_destroy(r.engine);
    slc_serving_clear(&r.serving);
    return code;
}
