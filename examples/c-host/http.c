/* http.c: see http.h. */
#include "http.h"

#include "patience.h"
#include "say.h"
#include "updates.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <math.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_BODY = 16384, MOST_WAITING = 256, MOST_CONNECTIONS = 128, CLIENT_S = 20, WAIT_S = 15 };

/* What a request has brought so far. */
typedef struct body {
    char *text;
    size_t length, most;
    bool too_long, denied;
} body;

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned status, char *text)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    patience_count(connection);
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* An object of what is given; takes it over. */
static enum MHD_Result reply_json(struct MHD_Connection *connection, unsigned status, json_t *object)
{
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text == NULL ? MHD_NO : reply(connection, status, text);
}

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum MHD_Result refuse(struct MHD_Connection *connection, unsigned status, const char *format, ...)
{
    char text[4200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return reply_json(connection, status, json_pack("{s:s}", "error", text));
}

/* ---- /embed ---- */

static int read_ids(const server *s, const json_t *list, int32_t *ids, char *problem, size_t size)
{
    size_t count = json_array_size(list);
    if (count < 1 || count > MOST_TOKENS) {
        snprintf(problem, size, "ids must be a list of 1 to %d token ids", MOST_TOKENS);
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= s->model->config.vocabulary) {
            snprintf(problem, size, "ids[%zu] must be 0 to %d", i, s->model->config.vocabulary - 1);
            return -1;
        }
        ids[i] = (int32_t)id;
    }
    return (int)count;
}

static int read_sentence(const server *s, const body *given, int32_t *ids, char *problem, size_t size)
{
    json_error_t found;
    json_t *root = json_loadb(given->text == NULL ? "" : given->text, given->length, JSON_REJECT_DUPLICATES, &found);
    const json_t *text = json_object_get(root, "text"), *list = json_object_get(root, "ids");
    int count = -1;
    if (root == NULL) {
        snprintf(problem, size, "the body is no JSON: %s", found.text);
    } else if (json_is_string(text) == json_is_array(list)) {
        snprintf(problem, size, "the body must be an object with either a text or a list of ids");
    } else if (list != NULL) {
        count = read_ids(s, list, ids, problem, size);
    } else {
        count = tokenize(s->words, json_string_value(text), ids, MOST_TOKENS);
        if (count < 0)
            snprintf(problem, size, "the text must have at most %d tokens", MOST_TOKENS);
    }
    json_decref(root);
    return count;
}

/* Puts a job into the queue and waits until it was computed. */
static bool compute(server *s, job *j)
{
    pthread_mutex_lock(&s->lock);
    bool queued = s->waiting < MOST_WAITING && !s->stopping;
    if (queued) {
        *(s->last == NULL ? &s->first : &s->last->next) = j;
        s->last = j;
        s->waiting++;
        pthread_cond_signal(&s->work);
        while (!j->done)
            pthread_cond_wait(&j->ready, &s->lock);
        s->answered += j->good;
    }
    pthread_mutex_unlock(&s->lock);
    return queued && j->good;
}

/* Nine digits bring a float back bit for bit. */
static char *write_answer(const server *s, const job *j)
{
    const int hidden = s->model->config.hidden;
    size_t room = 128 + 6 * sizeof j->version + (size_t)hidden * 18, used;
    char *text = malloc(room);
    json_t *version = json_string(j->version);
    char *quoted = version == NULL ? NULL : json_dumps(version, JSON_ENCODE_ANY);
    json_decref(version);
    if (text == NULL || quoted == NULL) {
        free(text);
        free(quoted);
        return NULL;
    }
    used = (size_t)snprintf(text, room, "{\"version\":%s,\"tokens\":%d,\"embedding\":[", quoted, j->count);
    free(quoted);
    for (int i = 0; i < hidden; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%.9g", i == 0 ? "" : ",", (double)j->embedding[i]);
    snprintf(text + used, room - used, "]}");
    return text;
}

/* JSON has no word for what is none. */
static bool all_numbers(const server *s, const job *j)
{
    int i = 0;
    while (i < s->model->config.hidden && isfinite(j->embedding[i]))
        i++;
    return i == s->model->config.hidden;
}

static enum MHD_Result embed(server *s, struct MHD_Connection *connection, const body *given)
{
    char problem[512] = "";
    job *j = calloc(1, sizeof *j);
    if (j == NULL)
        return MHD_NO;
    pthread_cond_init(&j->ready, NULL);
    enum MHD_Result result;
    j->count = read_sentence(s, given, j->ids, problem, sizeof problem);
    if (j->count < 0) {
        result = refuse(connection, MHD_HTTP_BAD_REQUEST, "%s", problem);
    } else if (!compute(s, j)) {
        result = refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "too much is waiting, or the server is stopping");
    } else if (!all_numbers(s, j)) {
        result = refuse(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "the weights of version %s give no numbers", j->version);
    } else {
        char *text = write_answer(s, j);
        result = text == NULL ? MHD_NO : reply(connection, MHD_HTTP_OK, text);
    }
    pthread_cond_destroy(&j->ready);
    free(j);
    return result;
}

/* ---- /weights ---- */

/* The server swaps between two batches of sentences; waits for that. */
static double swap(server *s, const char *version)
{
    pthread_mutex_lock(&s->lock);
    snprintf(s->next_version, sizeof s->next_version, "%s", version);
    s->swap = true;
    pthread_cond_signal(&s->work);
    while (s->swap && !s->stopping)
        pthread_cond_wait(&s->done, &s->lock);
    double seconds = s->swap_seconds;
    s->updates += !s->swap;
    pthread_mutex_unlock(&s->lock);
    return seconds;
}

static enum MHD_Result init(server *s, struct MHD_Connection *connection, const body *given)
{
    char problem[4096] = "";
    json_t *info = json_loadb(given->text == NULL ? "" : given->text, given->length, JSON_REJECT_DUPLICATES, NULL);
    bool is_info = json_is_object(info);
    json_decref(info);
    if (!is_info) /* before it takes the place of trainers that are at work */
        return refuse(connection, MHD_HTTP_BAD_REQUEST, "the body must be a sealed init info, a JSON object");
    s->session++;
    if (!updates_ask(s->group, JOIN, given->text, problem, sizeof problem, NULL))
        return refuse(connection, MHD_HTTP_CONFLICT, "%s", problem);
    return reply_json(connection, MHD_HTTP_OK, json_pack("{s:i, s:i}", "ranks", s->group->tp, "session", s->session));
}

static enum MHD_Result update(server *s, struct MHD_Connection *connection, const char *version)
{
    char problem[4096] = "";
    double seconds;
    if (version == NULL || version[0] == '\0' || strlen(version) >= LONGEST_VERSION)
        return refuse(connection, MHD_HTTP_BAD_REQUEST, "version must be a text of 1 to %d bytes", LONGEST_VERSION - 1);
    if (!updates_ask(s->group, MOVE, version, problem, sizeof problem, &seconds))
        return refuse(connection, MHD_HTTP_CONFLICT, "%s", problem);
    double swap_seconds = swap(s, version);
    return reply_json(connection, MHD_HTTP_OK,
                      json_pack("{s:s, s:f, s:f}", "version", version, "seconds", seconds, "swap_seconds", swap_seconds));
}

static enum MHD_Result leave(server *s, struct MHD_Connection *connection)
{
    char problem[4096] = "";
    if (!updates_ask(s->group, LEAVE, "", problem, sizeof problem, NULL))
        return refuse(connection, MHD_HTTP_CONFLICT, "%s", problem);
    return reply_json(connection, MHD_HTTP_OK, json_pack("{s:i}", "ranks", s->group->tp));
}

/* Calls of a session. */
static enum MHD_Result go_on(server *s, struct MHD_Connection *connection, bool is_update, const body *given)
{
    json_t *root = json_loadb(given->text == NULL ? "" : given->text, given->length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *session = json_object_get(root, "session");
    enum MHD_Result result;
    if (!json_is_integer(session))
        result = refuse(connection, MHD_HTTP_BAD_REQUEST, "the body must be an object with the session that /weights/init gave");
    else if (json_integer_value(session) != s->session)
        result = refuse(connection, MHD_HTTP_CONFLICT, "session %lld is not the one under way", (long long)json_integer_value(session));
    else
        result = is_update ? update(s, connection, json_string_value(json_object_get(root, "version"))) : leave(s, connection);
    json_decref(root);
    return result;
}

/* A trainer that died while its call waited; or one that will send nothing more, which none of these does. */
static bool has_gone(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char next;
    return info == NULL || recv(info->connect_fd, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static enum MHD_Result weights(server *s, struct MHD_Connection *connection, const char *what, const body *given)
{
    /* The call of a trainer that died ends when Sluice has noticed; the next trainer's waits for that. */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    if (pthread_mutex_timedlock(&s->updating, &until) != 0)
        return refuse(connection, MHD_HTTP_CONFLICT, "another /weights call is under way");
    enum MHD_Result result = has_gone(connection)        ? MHD_NO
                             : strcmp(what, "init") == 0 ? init(s, connection, given)
                                                         : go_on(s, connection, strcmp(what, "update") == 0, given);
    pthread_mutex_unlock(&s->updating);
    return result;
}

/* ---- requests ---- */

static enum MHD_Result health(server *s, struct MHD_Connection *connection)
{
    pthread_mutex_lock(&s->lock);
    json_t *object = json_pack("{s:s, s:I, s:i, s:I}", "version", s->version, "answered", (json_int_t)s->answered, "waiting",
                               s->waiting, "updates", (json_int_t)s->updates);
    pthread_mutex_unlock(&s->lock);
    return reply_json(connection, MHD_HTTP_OK, object);
}

static bool is_weights(const char *url)
{
    return strcmp(url, "/weights/init") == 0 || strcmp(url, "/weights/update") == 0 || strcmp(url, "/weights/leave") == 0;
}

static bool may(const server *s, struct MHD_Connection *connection, const char *url)
{
    return !is_weights(url) || s->token == NULL ||
           token_admits(s->token, MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION));
}

/* Before the body comes; that of a request that may not be made is not kept. */
static body *begin(const server *s, struct MHD_Connection *connection, const char *url)
{
    body *given = calloc(1, sizeof *given);
    if (given != NULL) {
        given->denied = !may(s, connection, url);
        given->most = given->denied ? 0 : is_weights(url) ? MOST_TEXT : MOST_BODY;
    }
    return given;
}

static void collect(body *given, const char *data, size_t length)
{
    char *grown = NULL;
    if (!given->too_long && given->most > 0 && length < given->most - given->length)
        grown = realloc(given->text, given->length + length + 1);
    if (grown == NULL) {
        given->too_long = true; /* what comes is read and thrown away, so that the client hears the answer */
        return;
    }
    given->text = grown;
    memcpy(given->text + given->length, data, length);
    given->length += length;
    given->text[given->length] = '\0';
}

static enum MHD_Result answer(void *context, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                              const char *data, size_t *length, void **own)
{
    (void)version;
    server *s = context;
    body *given = *own;
    bool is_embed = strcmp(url, "/embed") == 0, is_health = strcmp(url, "/health") == 0;
    if (given == NULL) {
        *own = begin(s, connection, url);
        return *own == NULL ? MHD_NO : MHD_YES;
    }
    if (*length > 0) {
        collect(given, data, *length);
        *length = 0;
        return MHD_YES;
    }
    patience_rest(connection);
    if (!is_embed && !is_health && !is_weights(url))
        return refuse(connection, MHD_HTTP_NOT_FOUND, "there is no such path");
    if (strcmp(method, is_health ? MHD_HTTP_METHOD_GET : MHD_HTTP_METHOD_POST) != 0)
        return refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "this path wants %s", is_health ? "GET" : "POST");
    if (given->denied)
        return refuse(connection, MHD_HTTP_UNAUTHORIZED, "this path wants the server's token: Authorization: Bearer TOKEN");
    if (given->too_long)
        return refuse(connection, MHD_HTTP_CONTENT_TOO_LARGE, "the body must have less than %zu bytes", given->most);
    if (is_health)
        return health(s, connection);
    return is_embed ? embed(s, connection, given) : weights(s, connection, url + strlen("/weights/"), given);
}

static void forget(void *context, struct MHD_Connection *connection, void **own, enum MHD_RequestTerminationCode code)
{
    (void)context, (void)code;
    body *given = *own;
    patience_count(connection);
    if (given != NULL)
        free(given->text);
    free(given);
}

/* A path is what was sent: decoded, "/health%00x" would read as "/health". */
static size_t leave_escaped(void *context, struct MHD_Connection *connection, char *text)
{
    (void)context, (void)connection;
    return strlen(text);
}

struct MHD_Daemon *http_start(server *s, const char *text, int *port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)*port) };
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
        die("%s must be an IPv4 address, as 127.0.0.1 or 0.0.0.0", text);
    if (s->token == NULL && ntohl(address.sin_addr.s_addr) >> 24 != IN_LOOPBACKNET)
        die("%s is not on the loopback interface: --token-file must be given, or anyone could bring weights", text);
    s->patience = patience_start(CLIENT_S);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ITC, (uint16_t)*port, NULL, NULL, answer, s,
        MHD_OPTION_SOCK_ADDR, (struct sockaddr *)&address, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS,
        MHD_OPTION_NOTIFY_CONNECTION, patience_meet, s->patience, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768,
        MHD_OPTION_NOTIFY_COMPLETED, forget, NULL, MHD_OPTION_UNESCAPE_CALLBACK, leave_escaped, NULL, MHD_OPTION_END);
    if (daemon == NULL)
        die("cannot listen on %s:%d", text, *port);
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
    *port = info == NULL ? *port : info->port;
    return daemon;
}

void http_stop(server *s, struct MHD_Daemon *daemon)
{
    MHD_stop_daemon(daemon);
    patience_stop(s->patience);
}
