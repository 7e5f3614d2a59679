/* rank.c: see check.h. Owns the tensors of a rank and its engine, for the life of its process. */
#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TALL = 2048, SHORT = 512, WIDE = 1024, NARROW = 24, BESIDE = 4, LARGEST = SHORT * WIDE, PLACES = 2, ROOM = 64 << 20 };

typedef struct param {
    char name[8];
    int64_t rows, columns; /* rows 0: one dim */
    bool full;             /* where the case has full parameters */
    int live, column;      /* which live tensor holds it, from which column on */
} param;

typedef struct live {
    const char *name;
    int64_t rows, columns;
} live;

typedef struct rank {
    const ask *asked;
    board *shared;
    int number, update;
    gpu *gpu;
    param param[PARAMS];
    live live[LIVES];
    CUdeviceptr source[PLACES][PARAMS], made[PARAMS]; /* trainer; made: what the host's stream copies to the source */
    CUdeviceptr tensor[LIVES], before[LIVES], behind[LIVES]; /* worker */
    CUdeviceptr loaded[PARAMS]; /* what load_weights got */
    sluice_engine *engine;
    sluice_recording recording;
    CUgraphExec graph;
    uint32_t *room; /* of the largest tensor */
} rank;

/* ---- what moves ---- */

/* Large ones as they are; narrow ones side by side in a wider tensor, rows of 96 bytes; small ones; a ragged one. */
static void describe(rank *r)
{
    for (int i = 0; i < PARAMS; i++) {
        param *p = &r->param[i];
        if (i < 4)
            *p = (param){ .rows = SHORT, .columns = WIDE, .live = i };
        else if (i < 8)
            *p = (param){ .rows = TALL, .columns = NARROW, .live = 4, .column = (i - 4) * NARROW };
        else
            *p = (param){ .rows = i < 10 ? 0 : 256, .columns = i < 10 ? 1000 : 300, .full = i >= 10, .live = i - 3 };
        snprintf(p->name, sizeof p->name, "w%d", i);
        live *l = &r->live[p->live];
        *l = (live){ .rows = p->rows, .columns = p->live == 4 ? NARROW * BESIDE : p->columns };
        l->name = p->live == 4 ? "beside" : p->name;
    }
    r->room = calloc(LARGEST, sizeof *r->room);
    if (r->room == NULL)
        die("no memory");
}

static size_t count_of(int64_t rows, int64_t columns)
{
    return (size_t)((rows > 0 ? rows : 1) * columns);
}

static uint32_t value(int index, int update, size_t at)
{
    uint64_t x = ((uint64_t)(unsigned)update << 40) + ((uint64_t)(unsigned)index << 32) + at;
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)(x >> 32);
}

static bool is_full(const rank *r, int index)
{
    return r->asked->full && r->param[index].full;
}

char *rank_init_info(const ask *asked, int port)
{
    static rank r;
    char text[4096], *sealed = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    r.asked = asked;
    describe(&r);
    int used = snprintf(text, sizeof text,
                        "{\"schema_version\":2,\"master_address\":\"127.0.0.1\",\"master_port\":%d,\"rank_offset\":1,\"world_size\":2,"
                        "\"dst_mesh_dims\":[1,1],\"params\":[", port);
    for (int i = 0; i < PARAMS; i++) {
        const param *p = &r.param[i];
        char rows[24] = "";
        if (p->rows > 0)
            snprintf(rows, sizeof rows, "%" PRId64 ",", p->rows);
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s{\"name\":\"%s\",\"dtype_name\":\"float32\",\"shape\":[%s%" PRId64 "],\"src_mesh_dims\":[1,1],\"src_placements\":null}",
                         i > 0 ? "," : "", p->name, rows, p->columns);
    }
    used += snprintf(text + used, sizeof text - (size_t)used, "]}");
    if (sluice_seal_init_info(text, (size_t)used, &sealed, &error) != SLUICE_OK)
        die("%s", error.text);
    return sealed;
}

/* ---- the trainer's tensors ---- */

static void write_values(rank *r, CUdeviceptr to, int index, int update)
{
    size_t count = count_of(r->param[index].rows, r->param[index].columns);
    for (size_t k = 0; k < count; k++)
        r->room[k] = value(index, update, k);
    gpu_write(r->gpu, to, r->room, count * sizeof *r->room);
}

static int place_of(const rank *r, int update)
{
    return r->asked->moves ? update % PLACES : 0;
}

static void own_sources(rank *r)
{
    for (int i = 0; i < PARAMS; i++) {
        size_t bytes = count_of(r->param[i].rows, r->param[i].columns) * sizeof(uint32_t);
        for (int place = 0; place < (r->asked->moves ? PLACES : 1); place++)
            r->source[place][i] = gpu_take(r->gpu, bytes, r->asked->memory);
        if (r->asked->stream)
            r->made[i] = gpu_take(r->gpu, bytes, MEMORY_ALLOC);
    }
}

static sluice_status register_sources(rank *r, int update, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (int i = 0; i < PARAMS && status == SLUICE_OK; i++)
        status = sluice_register_source(r->engine, r->param[i].name, "float32", (const void *)(uintptr_t)r->source[place_of(r, update)][i],
                                        count_of(r->param[i].rows, r->param[i].columns) * sizeof(uint32_t), error);
    return status;
}

/* With a stream the values come into being there, and late. */
static void make_values(rank *r, int update)
{
    const CUdeviceptr *source = r->source[place_of(r, update)];
    for (int i = 0; i < PARAMS; i++)
        write_values(r, r->asked->stream ? r->made[i] : source[i], i, update);
    if (!r->asked->stream)
        return;
    gpu_delay(r->gpu);
    for (int i = 0; i < PARAMS; i++)
        gpu_queue(r->gpu, source[i], r->made[i], count_of(r->param[i].rows, r->param[i].columns) * sizeof(uint32_t));
}

/* ---- the worker's tensors ---- */

static bool has_live(const rank *r, int index)
{
    for (int i = 0; i < PARAMS; i++)
        if (r->param[i].live == index)
            return !is_full(r, i);
    return false;
}

static size_t live_bytes(const rank *r, int index)
{
    return count_of(r->live[index].rows, r->live[index].columns) * sizeof(uint32_t);
}

static void own_lives(rank *r)
{
    for (int i = 0; i < LIVES; i++) {
        r->tensor[i] = gpu_take(r->gpu, live_bytes(r, i), r->asked->memory);
        r->before[i] = gpu_take(r->gpu, live_bytes(r, i), MEMORY_ALLOC);
        r->behind[i] = gpu_take(r->gpu, live_bytes(r, i), MEMORY_ALLOC);
    }
    for (int i = 0; i < PARAMS; i++)
        r->loaded[i] = gpu_take(r->gpu, count_of(r->param[i].rows, r->param[i].columns) * sizeof(uint32_t), MEMORY_ALLOC);
}

static sluice_status register_lives(rank *r, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (int i = 0; i < LIVES && status == SLUICE_OK; i++) {
        const live *l = &r->live[i];
        const int64_t shape[] = { l->rows > 0 ? l->rows : l->columns, l->columns };
        const sluice_live tensor = { .size = sizeof tensor, .name = l->name, .dtype = "float32", .ndim = l->rows > 0 ? 2 : 1,
                                     .shape = shape, .data = (void *)(uintptr_t)r->tensor[i] };
        if (has_live(r, i))
            status = sluice_register_live(r->engine, &tensor, error);
    }
    return status;
}

/* What a tensor of this shape must hold, that parameters stand in. */
static void compare(rank *r, const char *what, CUdeviceptr at, const live *l, int first, int last, int update)
{
    size_t count = count_of(l->rows, l->columns);
    gpu_read(r->gpu, r->room, at, count * sizeof *r->room);
    for (int i = first; i <= last; i++)
        for (size_t k = 0; k < count_of(r->param[i].rows, r->param[i].columns); k++) {
            size_t columns = (size_t)r->param[i].columns;
            size_t in = first == last ? k : k / columns * (size_t)l->columns + (size_t)r->param[i].column + k % columns;
            if (r->room[in] != value(i, update, k))
                die("%s of update %d: %s[%zu] is 0x%08x, not 0x%08x", what, update, r->param[i].name, k, r->room[in], value(i, update, k));
        }
    r->shared->compared[r->number] += count * sizeof *r->room;
}

static void compare_all(rank *r, const char *what, const CUdeviceptr *tensor, int update)
{
    for (int i = 0; i < LIVES; i++) {
        int first = 0, last;
        while (r->param[first].live != i)
            first++;
        for (last = first; last + 1 < PARAMS && r->param[last + 1].live == i; last++)
            ;
        if (has_live(r, i))
            compare(r, what, tensor[i], &r->live[i], first, last, update);
    }
}

static void queue_all(rank *r, const CUdeviceptr *to)
{
    for (int i = 0; i < LIVES; i++)
        gpu_queue(r->gpu, to[i], r->tensor[i], live_bytes(r, i));
}

static sluice_status load_weights(void *user, sluice_weights *weights, sluice_error *error)
{
    rank *r = user;
    const sluice_tensor *tensor = NULL;
    sluice_status status;
    while ((status = sluice_weights_next(weights, &tensor, error)) == SLUICE_OK && tensor != NULL) {
        int index = atoi(tensor->name + 1);
        if (r->asked->stream)
            gpu_delay(r->gpu);
        gpu_queue(r->gpu, r->loaded[index], (CUdeviceptr)(uintptr_t)tensor->data, tensor->bytes);
        if (!r->asked->stream)
            gpu_settle(r->gpu);
    }
    return status;
}

/* ---- a life ---- */

static sluice_status launch_graph(void *user, sluice_recording recording, sluice_error *error)
{
    rank *r = user;
    (void)recording;
    (void)error;
    gpu_launch(r->gpu, r->graph);
    return SLUICE_OK;
}

static sluice_status open_engine(rank *r, const char *rules, int life, sluice_error *error)
{
    sluice_options options = SLUICE_OPTIONS_INIT;
    options.rank = r->number;
    options.transport = "nccl";
    options.road = r->asked->road;
    options.rules = rules;
    options.timeout_s = r->asked->timeout_s;
    options.beat_s = 0.4;
    options.listen_fd = r->number == TRAINER ? dup(r->shared->listen_fd[life]) : -1;
    options.stream = r->asked->stream || r->asked->how == HOW_PLACE ? gpu_stream(r->gpu) : NULL;
    options.no_sm = r->asked->no_sm;
    options.callbacks.user = r;
    options.callbacks.load_weights = load_weights;
    options.callbacks.launch = launch_graph;
    sluice_status status = sluice_engine_create(&options, &r->engine, error);
    if (status == SLUICE_OK)
        status = r->number == TRAINER ? register_sources(r, 1, error) : register_lives(r, error);
    if (status != SLUICE_OK)
        return status;
    return sluice_init(r->engine, r->shared->init_info[life], strlen(r->shared->init_info[life]), error);
}

static sluice_status record(rank *r, sluice_error *error)
{
    bool places = r->asked->how == HOW_PLACE && r->number == WORKER;
    if (places) {
        gpu_capture(r->gpu);
        queue_all(r, r->before);
    }
    sluice_status status = sluice_record(r->engine, NULL, 0, &r->recording, error);
    if (places) {
        queue_all(r, r->behind);
        r->graph = gpu_captured(r->gpu);
    }
    return status;
}

/* A recording of sources that lie elsewhere now is refused, which changes nothing; the other rank hears so. */
static sluice_status record_again(rank *r, sluice_error *error)
{
    sluice_status status = sluice_replay(r->engine, r->recording, error);
    if (status != SLUICE_STATE || strstr(error->text, "was registered anew") == NULL)
        die("a recording of sources that lie elsewhere was not refused: %s", status == SLUICE_OK ? "it was replayed" : error->text);
    if (r->number == WORKER)
        return SLUICE_OK;
    status = sluice_forget_recording(r->engine, r->recording, error);
    return status == SLUICE_OK ? sluice_record(r->engine, NULL, 0, &r->recording, error) : status;
}

static sluice_status move(rank *r, int update, sluice_error *error)
{
    const char *names[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        names[i] = r->param[i].name;
    sluice_status status = sluice_start_update(r->engine, false, error);
    if (status != SLUICE_OK || r->asked->how == HOW_NAMES)
        return status == SLUICE_OK ? sluice_update(r->engine, names, PARAMS, error) : status;
    if (r->asked->moves && update > 1)
        status = record_again(r, error);
    return status == SLUICE_OK ? sluice_replay(r->engine, r->recording, error) : status;
}

static sluice_status update(rank *r, int number, bool sticks, sluice_error *error)
{
    bool streams = r->asked->stream && r->number == WORKER, places = r->asked->how == HOW_PLACE && r->number == WORKER;
    sluice_status status = SLUICE_OK;
    char label[16];
    r->update = number;
    if (r->number == TRAINER && r->asked->moves && number > 1)
        status = register_sources(r, number, error);
    if (r->number == TRAINER)
        make_values(r, number);
    if (streams)
        gpu_delay(r->gpu);
    if (streams && !places)
        queue_all(r, r->before);
    if (sticks)
        gpu_stick(r->gpu);
    r->shared->late[r->number] += r->asked->stream && gpu_is_late(r->gpu);
    if (sticks)
        r->shared->stuck = 1;
    if (status == SLUICE_OK)
        status = move(r, number, error);
    if (status == SLUICE_OK && streams && !places)
        queue_all(r, r->behind);
    snprintf(label, sizeof label, "v%d", number);
    return status == SLUICE_OK ? sluice_finish_update(r->engine, label, error) : status;
}

static void check_update(rank *r, int number, int first)
{
    bool streams = r->asked->stream || r->asked->how == HOW_PLACE;
    if (r->number == TRAINER)
        return;
    if (streams)
        gpu_settle(r->gpu);
    if (r->asked->spoils)
        gpu_write(r->gpu, r->tensor[4], &number, sizeof number);
    compare_all(r, "a live tensor", r->tensor, number);
    if (streams)
        compare_all(r, "what was queued behind", r->behind, number);
    if (streams && number > first)
        compare_all(r, "what was queued before", r->before, number - 1);
    for (int i = 0; i < PARAMS; i++) {
        const live shape = { .rows = r->param[i].rows, .columns = r->param[i].columns };
        if (is_full(r, i))
            compare(r, "what load_weights got", r->loaded[i], &shape, i, i, number);
    }
}

static void note_roads(rank *r)
{
    char *plan = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    if (r->number != WORKER || sluice_plan_json(r->engine, false, &plan, &error) != SLUICE_OK)
        return;
    const char *from = strstr(plan, "\"roads\":"), *to = from == NULL ? NULL : strchr(from, '}');
    if (to != NULL)
        snprintf(r->shared->roads, sizeof r->shared->roads, "%.*s", (int)(to + 1 - (from + 8)), from + 8);
    sluice_free(plan);
}

static char *write_rules(const rank *r)
{
    char *path = strdup("/tmp/gpu_check_XXXXXX.lua");
    int fd = path == NULL ? -1 : mkstemps(path, 4);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (file == NULL)
        die("no file for the rules");
    fprintf(file, "return { name = \"gpu-check\", rules = {\n");
    for (int i = 0; i < PARAMS; i++)
        if (is_full(r, i))
            fprintf(file, "   rule \"w%d\" { full = \"to be loaded\" },\n", i);
        else if (r->param[i].live == 4)
            fprintf(file, "   rule \"w%d\" { into = \"beside\", at = span(1, %d, %d) },\n", i, r->param[i].column, NARROW);
        else
            fprintf(file, "   rule \"w%d\" { into = \"w%d\" },\n", i, i);
    fprintf(file, "} }\n");
    fclose(file);
    return path;
}

/* One engine from init to shutdown; false where the update in which the other rank was killed ended, as it must. */
static bool live_once(rank *r, int life)
{
    sluice_error error = SLUICE_ERROR_INIT;
    const ask *asked = r->asked;
    char *rules = write_rules(r);
    sluice_status status = open_engine(r, rules, life, &error);
    unlink(rules);
    free(rules);
    if (status == SLUICE_OK)
        note_roads(r);
    if (status == SLUICE_OK && asked->how != HOW_NAMES)
        status = record(r, &error);
    for (int number = 1; number <= asked->updates && status == SLUICE_OK; number++) {
        bool ends = asked->kill >= 0 && life == 0 && number == 2;
        status = update(r, number, ends && r->number == asked->kill, &error);
        if (ends && r->number != asked->kill) {
            if (status != SLUICE_PEER || error.rank != asked->kill)
                die("the other rank is gone, and the update ended with: %s", status == SLUICE_OK ? "success" : error.text);
            snprintf(r->shared->survived, sizeof r->shared->survived, "%s", error.text);
            sluice_engine_destroy(r->engine);
            return false;
        }
        if (status == SLUICE_OK)
            check_update(r, number, 1);
    }
    if (status == SLUICE_OK)
        status = sluice_shutdown(r->engine, &error);
    if (status != SLUICE_OK)
        leave(status == SLUICE_UNSUPPORTED ? 3 : 1, "update %d: %s", r->update, error.text);
    sluice_engine_destroy(r->engine);
    return true;
}

_Noreturn void rank_live(const ask *asked, board *shared, int number, int life)
{
    static rank r;
    r = (rank){ .asked = asked, .shared = shared, .number = number };
    describe(&r);
    r.gpu = gpu_open(asked->gpu[number], asked->memory, asked->nccl, ROOM);
    if (number == TRAINER)
        own_sources(&r);
    else
        own_lives(&r);
    while (!live_once(&r, life))
        life++;
    _exit(0);
}
