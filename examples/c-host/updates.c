/* updates.c: see updates.h. */
#include "updates.h"

#include "say.h"

#include <jansson.h>
#include <sluice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct updater {
    pthread_t thread;
    group *group;
    model *model;
    sluice_engine *engine;
    pthread_mutex_t lock; /* over `engine` against updater_stop */
    const char **name;    /* every parameter, in the trainer's order; from join on */
    size_t count;
    json_t *info; /* owns the names */
    bool stopping;
};

static void log_line(void *user, sluice_log_level level, const char *text)
{
    const model *m = user;
    if (level <= SLUICE_LOG_WARN)
        say("server rank %d: %s", m->rank, text);
}

/* ---- joining the trainers ---- */

static sluice_status describe(const model *m, sluice_engine *engine, sluice_error *error)
{
    const config *c = &m->config;
    char json[512];
    int length = snprintf(json, sizeof json,
                          "{\"hidden_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"intermediate_size\":%d,"
                          "\"vocab_size\":%d,\"max_position_embeddings\":%d,\"type_vocab_size\":%d}",
                          c->hidden, c->layers, c->heads, c->intermediate, c->vocabulary, c->positions, c->types);
    return sluice_describe_host(engine, json, (size_t)length, error);
}

static sluice_status make_engine(updater *u, int first_worker, sluice_error *error)
{
    model *m = u->model;
    sluice_engine *engine;
    sluice_options options = SLUICE_OPTIONS_INIT;
    options.rank = first_worker + m->rank;
    options.rules = "bert";
    options.timeout_s = 30;
    options.timeouts.connect = 10; /* of trainers that died: shorter than the next ones wait, see WAIT_S in http.c */
    options.callbacks.log = log_line;
    options.callbacks.user = m;
    sluice_status status = sluice_engine_create(&options, &engine, error);
    if (status != SLUICE_OK)
        return status;
    pthread_mutex_lock(&u->lock);
    u->engine = engine;
    if (u->stopping)
        sluice_cancel(engine);
    pthread_mutex_unlock(&u->lock);
    status = describe(m, engine, error);
    for (size_t i = 0; i < m->nslots && status == SLUICE_OK; i++) {
        const slot *s = &m->slot[i];
        const sluice_live live = { .size = sizeof live, .name = s->name, .dtype = s->dtype, .ndim = s->ndim, .shape = s->shape,
                                   .data = m->standby + s->offset };
        status = sluice_register_live(engine, &live, error);
    }
    return status;
}

/* The last engine's rank may have been another one, so each join has an engine of its own. */
static void drop_engine(updater *u)
{
    pthread_mutex_lock(&u->lock);
    sluice_engine *engine = u->engine;
    u->engine = NULL;
    pthread_mutex_unlock(&u->lock);
    sluice_engine_destroy(engine);
    free(u->name);
    json_decref(u->info);
    u->name = NULL;
    u->info = NULL;
    u->count = 0;
}

static bool read_names(updater *u, const char *text, char *problem, size_t size)
{
    json_error_t found;
    u->info = json_loads(text, JSON_REJECT_DUPLICATES, &found);
    const json_t *params = json_object_get(u->info, "params");
    u->name = must_allocate(json_array_size(params) + 1, sizeof *u->name);
    for (u->count = 0; u->count < json_array_size(params); u->count++) {
        u->name[u->count] = json_string_value(json_object_get(json_array_get(params, u->count), "name"));
        if (u->name[u->count] == NULL)
            break;
    }
    if (u->count > 0 && u->count == json_array_size(params))
        return true;
    snprintf(problem, size, "the init info must be a JSON object with a list of params that have names");
    return false;
}

static bool join(updater *u, const char *text, char *problem, size_t size)
{
    sluice_error error = SLUICE_ERROR_INIT;
    drop_engine(u);
    if (!read_names(u, text, problem, size))
        return false;
    json_int_t first_worker = json_integer_value(json_object_get(u->info, "rank_offset"));
    sluice_status status = make_engine(u, first_worker > 0 && first_worker < 1 << 20 ? (int)first_worker : 1, &error);
    if (status == SLUICE_OK)
        status = sluice_init(u->engine, text, strlen(text), &error);
    if (status == SLUICE_OK)
        return true;
    snprintf(problem, size, "%s", error.text);
    drop_engine(u);
    return false;
}

/* ---- an update ---- */

static bool move(updater *u, const char *version, char *problem, size_t size)
{
    sluice_error error = SLUICE_ERROR_INIT;
    if (u->engine == NULL) {
        snprintf(problem, size, "no trainer has joined; /weights/init comes first");
        return false;
    }
    sluice_status status = sluice_start_update(u->engine, false, &error);
    if (status == SLUICE_OK)
        status = sluice_update(u->engine, u->name, u->count, &error);
    if (status == SLUICE_OK)
        status = sluice_finish_update(u->engine, version, &error);
    if (status == SLUICE_OK)
        return true;
    snprintf(problem, size, "%s", error.text);
    /* The standby weights may be torn, the active ones are not; the trainers hear of it and may join again. */
    if (sluice_engine_state(u->engine) == SLUICE_STATE_UPDATING)
        (void)sluice_abort_update(u->engine, NULL);
    drop_engine(u);
    return false;
}

/* ---- the thread ---- */

static void serve(updater *u, request wanted, const char *text, unsigned long number)
{
    updating *up = &u->group->updating;
    char problem[sizeof up->rank[0].text] = "";
    double start = now();
    bool good = true;
    if (wanted == JOIN)
        good = join(u, text, problem, sizeof problem);
    else if (wanted == MOVE)
        good = move(u, text, problem, sizeof problem);
    else if (wanted == LEAVE)
        drop_engine(u);
    pthread_mutex_lock(&up->lock);
    up->rank[u->model->rank].good = good;
    up->rank[u->model->rank].seconds = now() - start;
    up->rank[u->model->rank].done = number;
    memcpy(up->rank[u->model->rank].text, problem, sizeof problem);
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
}

static void *run(void *argument)
{
    updater *u = argument;
    updating *up = &u->group->updating;
    char *text = must_allocate(MOST_TEXT, 1);
    for (unsigned long seen = 0;;) {
        pthread_mutex_lock(&up->lock);
        while (up->asked == seen && up->request != END)
            pthread_cond_wait(&up->changed, &up->lock);
        request wanted = up->request;
        seen = up->asked;
        memcpy(text, up->text, MOST_TEXT);
        pthread_mutex_unlock(&up->lock);
        if (wanted == END)
            break;
        serve(u, wanted, text, seen);
    }
    drop_engine(u);
    free(text);
    return NULL;
}

updater *updater_start(group *g, model *m)
{
    updater *u = must_allocate(1, sizeof *u);
    u->group = g;
    u->model = m;
    pthread_mutex_init(&u->lock, NULL);
    if (pthread_create(&u->thread, NULL, run, u) != 0)
        die("no thread for updates");
    return u;
}

void updater_stop(updater *u)
{
    updating *up = &u->group->updating;
    pthread_mutex_lock(&u->lock);
    u->stopping = true;
    if (u->engine != NULL)
        sluice_cancel(u->engine);
    pthread_mutex_unlock(&u->lock);
    pthread_mutex_lock(&up->lock);
    up->request = END;
    pthread_cond_broadcast(&up->changed);
    pthread_mutex_unlock(&up->lock);
    pthread_join(u->thread, NULL);
    free(u);
}

/* ---- rank 0 asks ---- */

static bool all_done(const group *g, unsigned long number)
{
    for (int i = 0; i < g->tp; i++)
        if (g->updating.rank[i].done != number)
            return false;
    return true;
}

bool updates_ask(group *g, request wanted, const char *text, char *problem, size_t size, double *seconds)
{
    updating *up = &g->updating;
    bool good = true;
    double slowest = 0;
    if (strlen(text) >= MOST_TEXT) {
        snprintf(problem, size, "the text (%zu bytes) must have less than %d", strlen(text), MOST_TEXT);
        return false;
    }
    pthread_mutex_lock(&up->lock);
    if (up->request != END) {
        strcpy(up->text, text);
        up->request = wanted;
        unsigned long number = ++up->asked;
        pthread_cond_broadcast(&up->changed);
        while (!all_done(g, number) && up->request != END)
            pthread_cond_wait(&up->changed, &up->lock);
    }
    if (up->request == END) {
        snprintf(problem, size, "the server is stopping");
        good = false;
    }
    for (int i = g->tp - 1; i >= 0 && up->request != END; i--) {
        slowest = up->rank[i].seconds > slowest ? up->rank[i].seconds : slowest;
        if (!up->rank[i].good) {
            snprintf(problem, size, "%s", up->rank[i].text);
            good = false;
        }
    }
    pthread_mutex_unlock(&up->lock);
    if (seconds != NULL)
        *seconds = slowest;
    return good;
}
