/*
 * attach.c: what an engine tells those who attach to it. Owns the door. The answer about the plan is written when the engine
 * becomes READY and after a reload, by the thread that uses it; the one about its state by the door's thread, from the board
 * and from texts that do not change.
 */
#include "engine/engine.h"
#include "script/init_info.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char STAGE[] = "attach";

/* ---- JSON ---- */

/* Appends an object without its braces; takes it over. */
static void put_fields(slc_buffer *text, json_t *object)
{
    char *dumped = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    size_t length = dumped == NULL ? 0 : strlen(dumped);
    if (length < 2)
        text->failed = true;
    else
        slc_buffer_append(text, dumped + 1, length - 2);
    free(dumped);
}

static json_t *numbers(const int64_t *number, int count, int64_t divisor)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_integer(number[i] / divisor));
    return list;
}

/* ---- where it stands ---- */

void slc_engine_post(sluice_engine *engine)
{
    const slc_session *session = engine->session;
    slc_standing standing = { .state = engine->state, .dirty = engine->dirty, .stage = engine->stage };
    snprintf(standing.version, sizeof standing.version, "%s", slc_label(engine));
    if (session != NULL) {
        standing.batch = session->batch;
        standing.bytes_total = session->progress.bytes_total;
        standing.params_total = session->progress.params_total;
        slc_board_done(&engine->board, session->progress.bytes_done, session->progress.params_done);
    }
    slc_board_post(&engine->board, &standing);
}

/* On the door's thread: reads of the engine only what never changes, and the board. */
static void write_status(void *user, const slc_exhibit *exhibit, slc_buffer *text)
{
    const sluice_engine *engine = user;
    slc_standing at;
    uint64_t bytes, params;
    if (!slc_board_look(&engine->board, &at, &bytes, &params))
        return; /* says that it cannot */
    slc_buffer_text(text, "{");
    put_fields(text, json_pack("{s:s, s:i, s:i, s:s, s:s*, s:s, s:b, s:I, s:{s:I, s:I, s:I, s:I}}", "library", SLUICE_VERSION, "rank",
                               engine->options.rank, "process", (int)engine->process, "state", sluice_state_text(at.state), "stage",
                               at.stage, "version", at.version, "dirty", at.dirty, "batch", (json_int_t)at.batch, "progress", "bytes_done",
                               (json_int_t)bytes, "bytes_total", (json_int_t)at.bytes_total, "params_done", (json_int_t)params,
                               "params_total", (json_int_t)at.params_total));
    if (exhibit != NULL) {
        slc_buffer_text(text, ",");
        slc_buffer_append(text, exhibit->head.data, exhibit->head.length);
    }
    slc_buffer_text(text, "}");
}

/* ---- what it has planned ---- */

static void put_live(slc_buffer *text, const slc_live_set *live)
{
    slc_buffer_text(text, "[");
    for (size_t i = 0; i < live->count; i++) {
        const slc_live *item = &live->item[i];
        json_t *object = json_pack("{s:s, s:s, s:o}", "name", item->name, "dtype", item->dtype->name, "shape",
                                   numbers(item->shape, item->ndim, 1));
        if (!slc_live_contiguous(item))
            json_object_set_new(object, "strides", numbers(item->stride, item->ndim, item->dtype->bytes));
        slc_buffer_text(text, i == 0 ? "{" : ",{");
        put_fields(text, object);
        slc_buffer_text(text, ",\"attributes\":%s}", item->attributes);
    }
    slc_buffer_text(text, "]");
}

/* The same for a plan, whatever the rank; `status` has it, too. */
static void put_head(slc_buffer *text, const sluice_engine *engine)
{
    const slc_session *session = engine->session;
    const slc_build *build = session->build;
    put_fields(text, json_pack("{s:s, s:i, s:i, s:s, s:s, s:s, s:s, s:o}", "role", session->is_worker ? "worker" : "trainer", "trainers",
                               session->info.trainers, "workers", session->info.world_size - session->info.trainers, "transport",
                               build->ops->name, "source_digest", session->source_digest, "destination_digest", build->destination_digest,
                               "plan", build->commit_token, "roads", slc_roads_json(session)));
}

typedef struct parts {
    slc_buffer init_info, live, rules;
    const char *host;
    json_t *files;
} parts;

/* Without the unique id, which is a secret. From an earlier exhibit it comes as it was told there. */
static sluice_status take_init_info(const sluice_engine *engine, const char *json, size_t length, slc_buffer *text, sluice_error *error)
{
    if (!engine->session->info.has_unique_id) {
        slc_buffer_append(text, json, length);
        return SLUICE_OK;
    }
    slc_script *script = NULL;
    char *without = NULL;
    sluice_status status = slc_script_create(&engine->log, &script, error);
    if (status == SLUICE_OK)
        status = slc_init_info_without_secret(script, json, length, &without, error);
    if (status == SLUICE_OK)
        slc_buffer_append(text, without, strlen(without));
    slc_release(without);
    slc_script_destroy(script);
    return status;
}

/* A rule file that was read, as part of the answer. */
static void put_file(void *context, const slc_rule_text *file)
{
    parts *p = context;
    json_array_append_new(p->files, json_pack("{s:s, s:I, s:s*, s:i}", "name", file->name, "bytes", (json_int_t)file->length, "family",
                                              file->family, "folder", file->folder));
    slc_buffer_append(&p->rules, file->text, file->length);
}

static sluice_status gather(sluice_engine *engine, parts *p, sluice_error *error)
{
    const slc_session *session = engine->session;
    p->host = "{}";
    if (!session->is_worker)
        return SLUICE_OK;
    p->host = engine->host == NULL ? "{}" : engine->host;
    put_live(&p->live, &engine->live);
    return slc_rule_texts(session->build->script, put_file, p, error);
}

/* One line of JSON that says how long each part is, then the parts. */
static void assemble(slc_exhibit *exhibit, const sluice_engine *engine, const parts *p)
{
    slc_buffer *body = &exhibit->body;
    put_head(&exhibit->head, engine);
    slc_buffer_text(body, "{");
    put_fields(body, json_pack("{s:i, s:s, s:I, s:I, s:I, s:s*, s:O}", "rank", engine->options.rank, "library", SLUICE_VERSION,
                               "init_info", (json_int_t)p->init_info.length, "host", (json_int_t)strlen(p->host), "live",
                               (json_int_t)p->live.length, "rules", engine->options.rules, "files", p->files));
    slc_buffer_text(body, ",");
    slc_buffer_append(body, exhibit->head.data, exhibit->head.length);
    slc_buffer_text(body, "}\n");
    exhibit->init_info = body->length;
    exhibit->init_info_length = p->init_info.length;
    slc_buffer_append(body, p->init_info.data, p->init_info.length);
    slc_buffer_append(body, p->host, strlen(p->host));
    slc_buffer_append(body, p->live.data, p->live.length);
    slc_buffer_append(body, p->rules.data, p->rules.length);
}

static sluice_status show(sluice_engine *engine, const char *init_info, size_t length, sluice_error *error)
{
    parts p = { .files = json_array() };
    slc_exhibit *exhibit = slc_exhibit_create();
    const slc_exhibit *before = slc_door_shown(engine->door);
    sluice_status status = SLUICE_OK;
    if (init_info != NULL)
        status = take_init_info(engine, init_info, length, &p.init_info, error);
    else if (before != NULL)
        slc_buffer_append(&p.init_info, before->body.data + before->init_info, before->init_info_length);
    else
        status = slc_fail(error, SLUICE_INTERNAL, STAGE, "nothing was shown before");
    if (status == SLUICE_OK)
        status = gather(engine, &p, error);
    if (status == SLUICE_OK && exhibit != NULL)
        assemble(exhibit, engine, &p);
    if (status == SLUICE_OK && (exhibit == NULL || exhibit->body.failed || exhibit->head.failed || p.init_info.failed || p.live.failed ||
                                p.rules.failed))
        status = slc_fail_memory(error, STAGE, "the plan as it is told", length);
    json_decref(p.files);
    slc_buffer_clear(&p.init_info);
    slc_buffer_clear(&p.live);
    slc_buffer_clear(&p.rules);
    if (status != SLUICE_OK) {
        slc_exhibit_release(exhibit);
        exhibit = NULL;
    }
    slc_door_show(engine->door, exhibit);
    return status;
}

void slc_attach_show(sluice_engine *engine, const char *init_info, size_t length)
{
    sluice_error error = SLUICE_ERROR_INIT;
    if (engine->door != NULL && show(engine, init_info, length, &error) != SLUICE_OK)
        slc_say(&engine->log, SLUICE_LOG_WARN, "attach: the plan cannot be shown: %s", error.text);
}

/* ---- the calls ---- */

sluice_status sluice_allow_attach(sluice_engine *engine, const char *path, int fd, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, STAGE, "allow_attach", error);
    if (status == SLUICE_OK && (engine->state != SLUICE_STATE_NEW || engine->door != NULL)) {
        status = slc_fail(error, SLUICE_STATE, STAGE, engine->door != NULL ? "this engine can be attached to already"
                                                                           : "allow_attach is allowed before init; the engine is %s",
                          sluice_state_text(engine->state));
        slc_engine_leave(engine);
    } else if (status == SLUICE_OK) {
        slc_engine_post(engine);
        status = slc_door_open(path, fd, write_status, engine, &engine->door, error);
        fd = -1;
        slc_engine_leave(engine);
    }
    if (fd >= 0)
        close(fd);
    return status;
}

void slc_attach_end(sluice_engine *engine)
{
    uint64_t answered = 0, turned_away = 0;
    if (engine->door == NULL)
        return;
    slc_door_close(engine->door, &answered, &turned_away);
    engine->door = NULL;
    slc_say(&engine->log, SLUICE_LOG_INFO, "attach: %llu answers, %llu turned away", (unsigned long long)answered,
            (unsigned long long)turned_away);
}

sluice_status sluice_refuse_attach(sluice_engine *engine, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, STAGE, "refuse_attach", error);
    if (status != SLUICE_OK)
        return status;
    slc_attach_end(engine);
    slc_engine_leave(engine);
    return SLUICE_OK;
}
