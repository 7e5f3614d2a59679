/* engine.c: creating an engine and telling it what this rank owns. Nothing here talks to another rank. */
#include "base/given.h"
#include "base/text.h"
#include "control/word.h"
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char STAGE[] = "register";
static const double DEFAULT_TIMEOUT_S = 300, DEFAULT_BEAT_S = 1;

const char *sluice_state_text(sluice_state state)
{
    switch (state) {
#define TEXT_CASE(name, text) \
    case SLUICE_STATE_##name: return text;
        SLUICE_STATE_LIST(TEXT_CASE)
#undef TEXT_CASE
    }
    return "unknown state";
}

sluice_state sluice_engine_state(const sluice_engine *engine)
{
    return engine->state;
}

void sluice_free(void *memory)
{
    slc_release(memory);
}

/* ---- create and destroy ---- */

static bool keep_text(const char **text)
{
    if (*text == NULL)
        return true;
    *text = slc_duplicate(*text);
    return *text != NULL;
}

static sluice_status check_seconds(const char *name, double seconds, double least, double most, double in_place_of_0, sluice_error *error)
{
    if (seconds == 0 || (seconds > 0 && seconds >= least && seconds <= most))
        return SLUICE_OK;
    if (least > 0)
        return slc_fail(error, SLUICE_INVALID, "create", "options.%s (%g) must be %g to %g, or 0 for %g", name, seconds, least, most,
                        in_place_of_0);
    return slc_fail(error, SLUICE_INVALID, "create", "options.%s (%g) must be above 0 and at most %g, or 0 for %g", name, seconds, most,
                    in_place_of_0);
}

static sluice_status check_deadlines(const sluice_options *options, sluice_error *error)
{
    const struct {
        const char *name;
        double seconds;
    } phase[] = { { "timeouts.connect", options->timeouts.connect }, { "timeouts.agree", options->timeouts.agree },
                  { "timeouts.update", options->timeouts.update },   { "timeouts.finish", options->timeouts.finish },
                  { "timeouts.shutdown", options->timeouts.shutdown } };
    sluice_status status = check_seconds("timeout_s", options->timeout_s, 0, 86400, DEFAULT_TIMEOUT_S, error);
    double rest = options->timeout_s == 0 ? DEFAULT_TIMEOUT_S : options->timeout_s;
    for (size_t i = 0; i < sizeof phase / sizeof phase[0] && status == SLUICE_OK; i++)
        status = check_seconds(phase[i].name, phase[i].seconds, 0, 86400, rest, error);
    return status == SLUICE_OK ? check_seconds("beat_s", options->beat_s, 0.05, 3600, DEFAULT_BEAT_S, error) : status;
}

/* What the host gives, in this library's form; what an older host does not know of has its initial value. */
static sluice_status read_options(const sluice_options *given, sluice_options *options, sluice_error *error)
{
    *options = (sluice_options)SLUICE_OPTIONS_INIT;
    sluice_status status = slc_given_read(given, options, sizeof *options, offsetof(sluice_options, timeouts), "create", "options",
                                          "sluice_options", error);
    if (status != SLUICE_OK)
        return status;
    sluice_callbacks callbacks = SLUICE_CALLBACKS_INIT; /* inside of options: what is there is there, whatever its size says */
    if (options->callbacks.size > sizeof callbacks)
        return slc_fail(error, SLUICE_INVALID, "create", "options.callbacks.size (%u) must be sizeof(sluice_callbacks), which is %zu",
                        options->callbacks.size, sizeof callbacks);
    status = slc_given_read(&options->callbacks, &callbacks, sizeof callbacks, offsetof(sluice_callbacks, launch), "create",
                            "options.callbacks", "sluice_callbacks", error);
    options->callbacks = callbacks;
    for (size_t i = 0; i < sizeof callbacks.reserved / sizeof callbacks.reserved[0] && status == SLUICE_OK; i++)
        if (callbacks.reserved[i] != NULL)
            status = slc_fail(error, SLUICE_INVALID, "create", "options.callbacks.reserved[%zu] must be NULL: libsluice "
                              SLUICE_VERSION " has no such callback", i);
    for (size_t i = 0; i < sizeof options->timeouts.reserved / sizeof options->timeouts.reserved[0] && status == SLUICE_OK; i++)
        if (options->timeouts.reserved[i] != 0)
            status = slc_fail(error, SLUICE_INVALID, "create", "options.timeouts.reserved[%zu] (%g) must be 0: libsluice "
                              SLUICE_VERSION " has no such deadline", i, options->timeouts.reserved[i]);
    return status;
}

static sluice_status check_options(const sluice_options *options, sluice_error *error)
{
    if (options->rank < 0)
        return slc_fail(error, SLUICE_INVALID, "create", "options.rank (%d) must be at least 0", options->rank);
    if (check_deadlines(options, error) != SLUICE_OK)
        return SLUICE_INVALID;
    if (options->key_file != NULL && options->key_fd >= 0)
        return slc_fail(error, SLUICE_INVALID, "create", "options.key_file and options.key_fd must not both be given");
    if (options->staging_slots == 1 || options->staging_slots > 1024)
        return slc_fail(error, SLUICE_INVALID, "create", "options.staging_slots (%u) must be 2 to 1024, or 0 for 2",
                        options->staging_slots);
    const char *known;
    if (options->transport != NULL && !slc_transport_known(options->transport, &known))
        return slc_fail(error, SLUICE_UNSUPPORTED, "create", "options.transport (%.80s) must be one of: %s", options->transport, known);
    if (options->stream != NULL && !slc_transport_on_gpus(options->transport))
        return slc_fail(error, SLUICE_INVALID, "create", "options.stream is a CUDA stream and wants options.transport \"nccl\" or \"m2n\"");
    return SLUICE_OK;
}

/* One text after the other, so that a failure leaves no borrowed pointer to be released. */
static bool keep_texts(sluice_options *options)
{
    const char **text[] = { &options->rules, &options->transport, &options->road };
    const size_t count = sizeof text / sizeof text[0];
    size_t kept = 0;
    while (kept < count && keep_text(text[kept]))
        kept++;
    for (size_t i = kept; i < count; i++)
        *text[i] = NULL;
    return kept == count;
}

static sluice_status read_key(sluice_options *options, slc_key **key, sluice_error *error)
{
    *key = NULL;
    int fd = options->key_fd;
    options->key_fd = -1;
    if (fd >= 0)
        return slc_key_read_descriptor(fd, key, error);
    return options->key_file == NULL ? SLUICE_OK : slc_key_read_file(options->key_file, key, error);
}

static sluice_status make_engine(const sluice_options *options, sluice_engine **engine, sluice_error *error)
{
    sluice_options held = *options;
    slc_key *key;
    sluice_status status = read_key(&held, &key, error);
    if (status != SLUICE_OK)
        return status;
    sluice_engine *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL) {
        slc_key_destroy(key);
        return slc_fail_memory(error, "create", "the engine", sizeof *made);
    }
    made->process = getpid();
    made->options = held;
    made->options.key_file = NULL; /* read */
    made->key = key;
    made->log = (slc_log){ .write = options->callbacks.log, .user = options->callbacks.user };
    if (!keep_texts(&made->options)) {
        made->options.listen_fd = -1; /* still the caller's: the create failed */
        sluice_engine_destroy(made);
        return slc_fail_memory(error, "create", "the options", 64);
    }
    if (made->options.timeout_s == 0)
        made->options.timeout_s = DEFAULT_TIMEOUT_S;
    if (made->options.beat_s == 0)
        made->options.beat_s = DEFAULT_BEAT_S;
    if (made->options.staging_slots == 0)
        made->options.staging_slots = 2;
    *engine = made;
    return SLUICE_OK;
}

sluice_status sluice_engine_create(const sluice_options *given, sluice_engine **engine, sluice_error *error)
{
    if (!slc_given_error(error))
        return SLUICE_INVALID; /* nothing can be written there */
    if (engine == NULL)
        return slc_fail(error, SLUICE_INVALID, "create", "engine (NULL) must point to where the engine goes");
    *engine = NULL;
    sluice_options options;
    sluice_status status = read_options(given, &options, error);
    if (status != SLUICE_OK)
        return status;
    status = check_options(&options, error);
    if (status == SLUICE_OK)
        return make_engine(&options, engine, error);
    if (options.key_fd >= 0)
        close(options.key_fd);
    return status;
}

static void forget(sluice_engine *engine)
{
    if (engine->live.count > 0)
        slc_label_set(engine, ""); /* of tensors that are known no more */
    slc_live_set_clear(&engine->live);
    slc_checker_clear(&engine->checker);
    engine->refused.status = SLUICE_OK;
    slc_release(engine->host);
    engine->host = NULL;
    slc_names_clear(&engine->source_names);
    slc_release(engine->source);
    engine->source = NULL;
    engine->source_capacity = 0;
}

void sluice_engine_destroy(sluice_engine *engine)
{
    if (engine == NULL)
        return;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_engine_claim(engine, "destroy", "engine_destroy", &error) != SLUICE_OK) {
        slc_say(&engine->log, SLUICE_LOG_WARN, "%s; nothing is freed", error.text);
        return;
    }
    slc_engine_end(engine);
    forget(engine);
    if (engine->keep.what != NULL)
        engine->keep.release(engine->keep.what);
    for (size_t i = 0; i < engine->nregions; i++)
        slc_region_destroy(&engine->region[i]);
    slc_release(engine->region);
    slc_release(engine->slab);
    slc_close_listener(engine);
    slc_key_destroy(engine->key);
    slc_release((void *)engine->options.rules);
    slc_release((void *)engine->options.transport);
    slc_release((void *)engine->options.road);
    slc_release(engine);
}

/* ---- what the host registers ---- */

/* A claim that is also STATE unless NEW. */
static sluice_status enter_new(sluice_engine *engine, const char *what, sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, STAGE, what, error);
    if (status != SLUICE_OK || engine->state == SLUICE_STATE_NEW)
        return status;
    slc_engine_leave(engine);
    return slc_fail(error, SLUICE_STATE, STAGE, "%s is allowed before init and after shutdown; the engine is %s", what,
                    sluice_state_text(engine->state));
}

static sluice_status read_live(const sluice_live *given, slc_live *live, sluice_error *error)
{
    if (given->name == NULL || given->dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "a live tensor needs a name and a dtype");
    *live = (slc_live){ .name = given->name, .ndim = (int)given->ndim, .data = given->data };
    live->dtype = slc_dtype_find(given->dtype);
    if (live->dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "live tensor '%s': dtype (%.80s) must be a torch name such as bfloat16", given->name,
                        given->dtype);
    if (given->ndim > SLC_MAX_DIMS)
        return slc_fail(error, SLUICE_INVALID, STAGE, "live tensor '%s': ndim (%u) must be at most %d", given->name, given->ndim,
                        SLC_MAX_DIMS);
    if (given->ndim > 0 && given->shape == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "live tensor '%s': shape (NULL) must have %u extents", given->name, given->ndim);
    live->attributes = given->attributes == NULL ? "{}" : given->attributes;
    int64_t stride = live->dtype->bytes;
    for (int i = live->ndim - 1; i >= 0; i--) {
        live->shape[i] = given->shape[i];
        if (given->strides == NULL)
            live->stride[i] = stride;
        else if (!slc_multiply(given->strides[i], live->dtype->bytes, &live->stride[i]))
            return slc_fail(error, SLUICE_INVALID, STAGE, "live tensor '%s': strides[%d] (%lld) must be at least 0 and fit memory",
                            given->name, i, (long long)given->strides[i]);
        if (!slc_multiply(stride, given->shape[i] > 0 ? given->shape[i] : 1, &stride))
            return slc_fail(error, SLUICE_INVALID, STAGE, "live tensor '%s': shape[%d] (%lld) makes it larger than memory", given->name, i,
                            (long long)given->shape[i]);
    }
    return SLUICE_OK;
}

/* Whether rules can read them; the same text again, as most tensors have it, is not read again. */
static sluice_status check_attributes(sluice_engine *engine, const slc_live *live, sluice_error *error)
{
    slc_checker *checker = &engine->checker;
    if (strcmp(live->attributes, "{}") == 0 || (checker->good != NULL && strcmp(live->attributes, checker->good) == 0))
        return SLUICE_OK;
    sluice_status status = checker->script == NULL ? slc_script_create(&engine->log, &checker->script, error) : SLUICE_OK;
    if (status == SLUICE_OK)
        status = slc_script_check_attributes(checker->script, STAGE, live->name, live->attributes, error);
    if (status == SLUICE_OK) {
        slc_release(checker->good);
        checker->good = slc_duplicate(live->attributes); /* NULL: read again the next time */
    }
    return status;
}

void slc_checker_clear(slc_checker *checker)
{
    slc_script_destroy(checker->script);
    slc_release(checker->good);
    *checker = (slc_checker){ 0 };
}

static sluice_status add_live(sluice_engine *engine, const sluice_live *given, sluice_error *error)
{
    slc_live read;
    sluice_live live = { .size = sizeof live };
    sluice_status status = slc_given_read(given, &live, sizeof live, offsetof(sluice_live, attributes), STAGE, "live", "sluice_live",
                                          error);
    if (status == SLUICE_OK)
        status = read_live(&live, &read, error);
    if (status == SLUICE_OK)
        status = check_attributes(engine, &read, error);
    if (status == SLUICE_OK)
        status = slc_live_set_add(&engine->live, &read, error);
    if (status == SLUICE_OK)
        slc_label_set(engine, ""); /* what is new holds no version yet */
    return status;
}

/* A host that goes on without a tensor that it meant to give would have it loaded in another way, or not at all: init says so. */
static void remember_refusal(sluice_engine *engine, const sluice_live *live, const sluice_error *found)
{
    bool named = live != NULL && live->size >= offsetof(sluice_live, attributes) && live->name != NULL &&
                 live->name[0] != '\0' && strlen(live->name) < sizeof engine->refused_name;
    if (!named || engine->refused.status != SLUICE_OK)
        return;
    snprintf(engine->refused_name, sizeof engine->refused_name, "%s", live->name);
    slc_error_copy(&engine->refused, found);
}

sluice_status sluice_register_live(sluice_engine *engine, const sluice_live *live, sluice_error *error)
{
    sluice_error found = SLUICE_ERROR_INIT;
    sluice_status status = enter_new(engine, "register_live", error);
    if (status != SLUICE_OK)
        return status;
    status = add_live(engine, live, &found);
    if (status != SLUICE_OK)
        remember_refusal(engine, live, &found);
    slc_engine_leave(engine);
    return status == SLUICE_OK ? SLUICE_OK : slc_error_copy(error, &found);
}

static sluice_status describe(sluice_engine *engine, const char *json, size_t length, sluice_error *error)
{
    if (json == NULL || memchr(json, 0, length) != NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "the host description must be a JSON object without zero bytes");
    slc_script *script;
    sluice_status status = slc_script_create(&engine->log, &script, error);
    if (status != SLUICE_OK)
        return status;
    sluice_error found = SLUICE_ERROR_INIT; /* said under the stage where rules read it; here it is the host that calls */
    status = slc_script_describe_host(script, json, length, &found);
    slc_script_destroy(script);
    if (status != SLUICE_OK)
        return slc_fail(error, status, STAGE, "%s", slc_word_bare(found.stage, found.text));
    char *copy = slc_allocate(length + 1);
    if (copy == NULL)
        return slc_fail_memory(error, STAGE, "the host description", length + 1);
    memcpy(copy, json, length);
    copy[length] = '\0';
    slc_release(engine->host);
    engine->host = copy;
    return SLUICE_OK;
}

sluice_status sluice_describe_host(sluice_engine *engine, const char *json, size_t length, sluice_error *error)
{
    sluice_status status = enter_new(engine, "describe_host", error);
    if (status != SLUICE_OK)
        return status;
    status = describe(engine, json, length, error);
    slc_engine_leave(engine);
    return status;
}

/* Between updates a new address must fit what was announced; the transport's table changes with it. */
static sluice_status replace_shard(sluice_engine *engine, size_t index, sluice_error *error)
{
    slc_session *session = engine->session;
    const void *data;
    sluice_status status = slc_source_check(engine, slc_plan_at(session->build->plan, index), &data, STAGE, error);
    if (status == SLUICE_OK)
        session->shard[index] = data;
    return status;
}

static sluice_status keep_source(sluice_engine *engine, const char *name, slc_source source, sluice_error *error)
{
    bool added, planned = engine->state != SLUICE_STATE_NEW;
    size_t index = planned ? slc_plan_find(engine->session->build->plan, name) : SIZE_MAX;
    if (planned && index == SIZE_MAX)
        return slc_fail(error, SLUICE_INVALID, STAGE, "source '%s' was not announced at init", name);
    if (!SLC_ROOM(engine->source, engine->source_capacity, engine->source_names.count, 64)) /* first: each name has a source */
        return slc_fail_memory(error, STAGE, "sources", (engine->source_names.count + 1) * sizeof *engine->source);
    size_t number = slc_names_add(&engine->source_names, name, &added);
    if (number == SLC_NO_NAME)
        return slc_fail_memory(error, STAGE, "the name of a source", strlen(name));
    slc_source old = { 0 };
    if (!added)
        old = engine->source[number];
    engine->source[number] = source;
    if (!planned)
        return SLUICE_OK;
    sluice_status status = replace_shard(engine, index, error);
    if (status != SLUICE_OK)
        engine->source[number] = old;
    return status;
}

static sluice_status add_source(sluice_engine *engine, const char *name, const char *dtype, const void *data, size_t bytes,
                                sluice_error *error)
{
    if (engine->state == SLUICE_STATE_FAILED)
        return slc_fail(error, SLUICE_STATE, STAGE, "register_source is not allowed while the engine is %s",
                        sluice_state_text(engine->state));
    if (engine->session != NULL && engine->session->is_worker)
        return slc_fail(error, SLUICE_STATE, STAGE, "register_source is for trainers; rank %d is a worker", engine->options.rank);
    if (name == NULL || *name == '\0' || dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "a source needs a name and a dtype");
    if (!slc_text_is_utf8(name))
        return slc_fail(error, SLUICE_INVALID, STAGE, "the name of a source (%.1000s) must be UTF-8", name);
    slc_source source = { .dtype = slc_dtype_find(dtype), .data = data, .bytes = bytes };
    if (source.dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "source '%s': dtype (%.80s) must be a torch name such as bfloat16", name, dtype);
    if ((data == NULL) != (bytes == 0))
        return slc_fail(error, SLUICE_INVALID, STAGE, "source '%s': data %s with bytes (%zu); both or neither", name,
                        data == NULL ? "NULL" : "given", bytes);
    return keep_source(engine, name, source, error);
}

sluice_status sluice_register_source(sluice_engine *engine, const char *name, const char *dtype, const void *data, size_t bytes,
                                     sluice_error *error)
{
    sluice_status status = slc_engine_claim(engine, STAGE, "register_source", error);
    if (status != SLUICE_OK)
        return status;
    status = add_source(engine, name, dtype, data, bytes, error);
    slc_engine_leave(engine);
    return status;
}

sluice_status slc_source_check(const sluice_engine *engine, const slc_param *param, const void **data, const char *stage,
                               sluice_error *error)
{
    int64_t wanted = slc_source_bytes(param, engine->options.rank);
    size_t number = slc_names_find(&engine->source_names, param->name);
    slc_source none = { .dtype = param->dtype };
    const slc_source *source = number == SLC_NO_NAME ? &none : &engine->source[number];
    *data = NULL;
    if (source->dtype != NULL && source->dtype != param->dtype && source->bytes > 0)
        return slc_fail(error, SLUICE_INVALID, stage, "source '%s' has dtype %s, announced as %s", param->name, source->dtype->name,
                        param->dtype->name);
    if (number == SLC_NO_NAME && wanted > 0)
        return slc_fail(error, SLUICE_INVALID, stage, "source '%s' is not registered on rank %d; its box under the announced layout has "
                        "%lld bytes", param->name, engine->options.rank, (long long)wanted);
    if (source->bytes != (size_t)wanted)
        return slc_fail(error, SLUICE_INVALID, stage, "source '%s' has %zu bytes on rank %d; its box under the announced layout has %lld",
                        param->name, source->bytes, engine->options.rank, (long long)wanted);
    *data = source->data;
    return SLUICE_OK;
}

sluice_status sluice_forget(sluice_engine *engine, sluice_error *error)
{
    sluice_status status = enter_new(engine, "forget", error);
    if (status != SLUICE_OK)
        return status;
    forget(engine);
    slc_engine_leave(engine);
    return SLUICE_OK;
}
