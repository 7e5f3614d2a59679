/* ways.c: how it is moved: by bare copies, by an engine's update, by nccl_m2n alone, and by broadcasts. */
#include "base/clock.h"
#include "base/error.h"
#include "m2n_bench/bench.h"
#include "sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t BUFFER = (size_t)1 << 30; /* of a packed broadcast; there are two */

static void settle(const place *p, CUstream stream, const char *what)
{
    must(&p->gpu, p->gpu.cuda.StreamSynchronize(stream), what);
}

/* ---- the limit ---- */

/* The memory of the worker of the same number, mapped by its trainer. */
static void open_limit(place *p, const course *way)
{
    (void)way;
    const slc_cuda *cuda = &p->gpu.cuda;
    if (p->worker)
        must(&p->gpu, cuda->IpcGetMemHandle(&p->all->memory[p->number], p->memory), "sharing memory");
    meet(p);
    if (!p->worker)
        must(&p->gpu, cuda->IpcOpenMemHandle(&p->there, p->all->memory[p->number], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "mapping memory");
}

static void run_limit(place *p, const course *way, double *issue_us)
{
    (void)way;
    (void)issue_us;
    if (p->worker)
        return;
    must(&p->gpu, p->gpu.cuda.MemcpyAsync(p->there, p->memory, p->work->live_bytes, p->gpu.stream), "a bare copy");
    settle(p, p->gpu.stream, "a bare copy");
}

static void close_limit(place *p, const course *way)
{
    (void)way;
    if (!p->worker)
        (void)p->gpu.cuda.IpcCloseMemHandle(p->there);
}

/* ---- an engine ---- */

struct engine {
    sluice_engine *engine;
    sluice_recording recording;
    double issue_us;
};

static void check(sluice_status status, const char *call, const sluice_error *error)
{
    if (status != SLUICE_OK)
        die("%s: %s", call, error->text);
}

static void hear(void *user, sluice_log_level level, const char *text)
{
    struct engine *e = user;
    double us;
    if (level == SLUICE_LOG_DEBUG && sscanf(text, "nccl: launched in %lf us", &us) == 1)
        e->issue_us = us;
}

static void register_all(place *p, sluice_engine *engine)
{
    static const char *const loaders[] = { [WHOLE] = "{\"loader\":\"replicated\"}",
                                           [ROWS] = "{\"loader\":\"column\",\"output_dim\":0,\"tp_size\":%d}",
                                           [COLUMNS] = "{\"loader\":\"row\",\"input_dim\":1,\"tp_size\":%d}" };
    const assignment *a = p->work;
    sluice_error error = SLUICE_ERROR_INIT;
    char attributes[96];
    snprintf(attributes, sizeof attributes, loaders[a->target], a->side);
    for (size_t i = 0; i < a->count; i++) {
        const tensor *t = &a->tensor[i];
        void *at = (void *)(uintptr_t)(p->memory + (p->worker ? t->to : t->from));
        if (!p->worker) {
            check(sluice_register_source(engine, t->name, "bfloat16", at, t->from_bytes, &error), "register_source", &error);
            continue;
        }
        const int64_t rows = a->target == ROWS ? t->rows / a->side : t->rows, columns = a->target == COLUMNS ? t->columns / a->side : t->columns;
        const int64_t shape[] = { rows > 0 ? rows : columns, columns };
        const sluice_live served = { .size = sizeof served, .name = t->name, .dtype = "bfloat16", .ndim = rows > 0 ? 2 : 1, .shape = shape,
                                   .data = at, .attributes = attributes };
        check(sluice_register_live(engine, &served, &error), "register_live", &error);
    }
}

static void open_engine(place *p, const course *way)
{
    struct engine *e = need(calloc(1, sizeof *e));
    sluice_error error = SLUICE_ERROR_INIT;
    sluice_options given = SLUICE_OPTIONS_INIT;
    int port = p->listen_fd[2 * (way - ways) + 1];
    char *draft = assignment_init_info(p->work, port), *sealed = NULL;
    given.rank = p->rank;
    given.transport = way->transport;
    given.grouped = way->grouped;
    given.timeout_s = p->options->timeout_s;
    given.listen_fd = p->rank == 0 ? p->listen_fd[2 * (way - ways)] : -1;
    given.callbacks.user = e;
    given.callbacks.log = hear;
    p->state = e;
    check(sluice_seal_init_info(draft, strlen(draft), &sealed, &error), "seal_init_info", &error);
    check(sluice_engine_create(&given, &e->engine, &error), "engine_create", &error);
    register_all(p, e->engine);
    check(sluice_init(e->engine, sealed, strlen(sealed), &error), "init", &error);
    if (way->lanes > 0) /* replayed */
        check(sluice_record(e->engine, NULL, 0, &e->recording, &error), "record", &error);
    free(draft);
    sluice_free(sealed);
}

static void run_engine(place *p, const course *way, double *issue_us)
{
    struct engine *e = p->state;
    sluice_error error = SLUICE_ERROR_INIT;
    (void)way;
    check(sluice_start_update(e->engine, false, &error), "start_update", &error);
    check(e->recording != 0 ? sluice_replay(e->engine, e->recording, &error)
                            : sluice_update(e->engine, p->work->names, p->work->count, &error),
          "update", &error);
    check(sluice_finish_update(e->engine, "bench", &error), "finish_update", &error);
    *issue_us = e->issue_us;
}

static void close_engine(place *p, const course *way)
{
    struct engine *e = p->state;
    (void)way;
    sluice_engine_destroy(e->engine);
    free(e);
}

/* ---- the library alone ---- */

static const char *m2n_missing(const place *p)
{
    return p->m2n.file.library == NULL ? p->all->library : NULL;
}

static const char *nccl_missing(const place *p)
{
    return !p->has_nccl ? p->all->nccl_text : NULL;
}

struct lanes {
    int count;
    ncclComm_t comm[MOST_LANES];
    CUstream stream[MOST_LANES];
    slc_m2n_handle *handle;
    CUdeviceptr buffer[2]; /* of a packed broadcast */
    CUdeviceptr *to, *from;
    size_t *bytes;
};

static void nccl_must(const place *p, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess && result != ncclInProgress)
        die("%s: %s%s%s", call, p->nccl.GetErrorString(result), p->m2n.last_error == NULL ? "" : ": ",
            p->m2n.last_error == NULL ? "" : p->m2n.last_error());
}

static struct lanes *open_lanes(place *p, int count)
{
    struct lanes *l = need(calloc(1, sizeof *l));
    int world = 2 * p->work->side;
    l->count = count;
    for (int i = 0; i < count; i++) {
        ncclUniqueId id;
        if (p->rank == 0) {
            nccl_must(p, p->nccl.GetUniqueId(&id), "ncclGetUniqueId");
            memcpy(p->all->id[i], &id, sizeof id);
        }
        meet(p);
        memcpy(&id, p->all->id[i], sizeof id);
        nccl_must(p, p->nccl.CommInitRankConfig(&l->comm[i], world, id, p->rank, NULL), "ncclCommInitRankConfig");
        must(&p->gpu, p->gpu.cuda.StreamCreate(&l->stream[i], CU_STREAM_NON_BLOCKING), "a stream");
        meet(p);
    }
    return l;
}

static void close_lanes(place *p, struct lanes *l)
{
    for (int i = 0; i < l->count; i++) {
        (void)p->nccl.CommDestroy(l->comm[i]);
        (void)p->gpu.cuda.StreamDestroy(l->stream[i]);
    }
    for (int i = 0; i < 2; i++)
        if (l->buffer[i] != 0)
            (void)p->gpu.cuda.MemFree(l->buffer[i]);
    free(l->to), free(l->from), free(l->bytes), free(l);
}

static void set(const char *name, const char *value)
{
    if (value == NULL)
        unsetenv(name);
    else
        setenv(name, value, 1);
}

static void open_m2n(place *p, const course *way)
{
    const slc_m2n_config config = { .size = sizeof config, .magic = SLC_M2N_MAGIC, .version = SLC_M2N_API, .max_cta = SLC_M2N_DEFAULT };
    set("NCCL_RESHARD_COPY_ALGORITHM", way->copies);
    set("NCCL_RESHARD_SPLIT_COMM", way->split);
    struct lanes *l = open_lanes(p, way->lanes);
    p->state = l;
    nccl_must(p, p->m2n.init(&l->handle, &config), "ncclM2nInit");
}

/* One side of a tensor; a layout that cuts nothing is (size, 1). */
struct side {
    slc_m2n_mesh mesh;
    slc_m2n_tensor tensor;
    int dims[2], placements[2];
    size_t shape[2];
};

static void tell(struct side *s, const place *p, const tensor *t, cut held, int first, void *data)
{
    int side = p->work->side;
    *s = (struct side){ .dims = { held == WHOLE ? side : 1, held == WHOLE ? 1 : side }, .placements = { -1, held == COLUMNS ? 1 : 0 } };
    s->shape[0] = (size_t)(t->rows == 0 ? t->columns : held == ROWS ? t->rows / side : t->rows);
    s->shape[1] = (size_t)(held == COLUMNS ? t->columns / side : t->columns);
    s->mesh = (slc_m2n_mesh){ .size = sizeof s->mesh, .version = SLC_M2N_API, .ndims = 2, .dims = s->dims, .first = first };
    s->tensor = (slc_m2n_tensor){ .size = sizeof s->tensor, .version = SLC_M2N_API, .data = data, .shape = s->shape,
                                  .ndims = t->rows == 0 ? 1 : 2, .dtype = ncclFloat16, .mesh = &s->mesh, .placements = s->placements };
}

static void run_m2n(place *p, const course *way, double *issue_us)
{
    struct lanes *l = p->state;
    const assignment *a = p->work;
    double began = slc_now_s();
    if (way->grouped)
        nccl_must(p, p->m2n.group_start(), "ncclM2nGroupStart");
    for (size_t i = 0; i < a->count; i++) {
        const tensor *t = &a->tensor[i];
        struct side source, target;
        int lane = (int)(i % (size_t)l->count);
        tell(&source, p, t, a->source, 0, p->worker ? NULL : (void *)(uintptr_t)(p->memory + t->from));
        tell(&target, p, t, a->target, a->side, p->worker ? (void *)(uintptr_t)(p->memory + t->to) : NULL);
        nccl_must(p, p->m2n.reshard(l->handle, l->comm[lane], &source.tensor, &target.tensor, l->stream[lane]), "ncclReshard");
    }
    if (way->grouped)
        nccl_must(p, p->m2n.group_end(), "ncclM2nGroupEnd");
    *issue_us = (slc_now_s() - began) * 1e6;
    for (int i = 0; i < l->count; i++)
        settle(p, l->stream[i], "reshards");
}

static void close_m2n(place *p, const course *way)
{
    struct lanes *l = p->state;
    (void)way;
    nccl_must(p, p->m2n.finalize(l->handle), "ncclM2nFinalize");
    close_lanes(p, l);
}

/* ---- broadcasts ---- */

static const char *broadcast_missing(const place *p)
{
    return p->work->source != WHOLE ? "a broadcast is of whole tensors" : nccl_missing(p);
}

static void open_broadcast(place *p, const course *way)
{
    struct lanes *l = open_lanes(p, way->lanes);
    p->state = l;
    size_t room = BUFFER;
    for (size_t i = 0; i < p->work->count; i++)
        room = p->work->tensor[i].to_bytes > room ? p->work->tensor[i].to_bytes : room;
    for (int i = 0; i < 2 && way->grouped; i++) /* packed */
        l->buffer[i] = gpu_allocate(&p->gpu, room < p->work->live_bytes ? room : p->work->live_bytes, "a buffer of the packed broadcast");
    l->to = need(calloc(p->work->count, sizeof *l->to));
    l->from = need(calloc(p->work->count, sizeof *l->from));
    l->bytes = need(calloc(p->work->count, sizeof *l->bytes));
}

static void *data_of(const place *p, const tensor *t)
{
    return (void *)(uintptr_t)(p->memory + (p->worker ? t->to : t->from));
}

static void run_broadcast(place *p, const course *way, double *issue_us)
{
    struct lanes *l = p->state;
    double began = slc_now_s();
    (void)way;
    for (size_t i = 0; i < p->work->count; i++) {
        void *data = data_of(p, &p->work->tensor[i]);
        nccl_must(p, p->nccl.Broadcast(data, data, p->work->tensor[i].to_bytes, ncclUint8, 0, l->comm[0], l->stream[0]), "ncclBroadcast");
    }
    *issue_us = (slc_now_s() - began) * 1e6;
    settle(p, l->stream[0], "broadcasts");
}

static CUresult copy_packed(place *p, size_t first, size_t end, int b)
{
    struct lanes *l = p->state;
    CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
    size_t zero = 0, failed = SIZE_MAX, offset = 0;
    for (size_t i = first; i < end; i++) {
        const tensor *t = &p->work->tensor[i];
        CUdeviceptr packed = l->buffer[b] + offset, data = (CUdeviceptr)(uintptr_t)data_of(p, t);
        l->to[i - first] = p->rank == 0 ? packed : data;
        l->from[i - first] = p->rank == 0 ? data : packed;
        offset += l->bytes[i - first] = t->to_bytes;
    }
    return p->gpu.cuda.MemcpyBatchAsync(l->to, l->from, l->bytes, end - first, &attributes, &zero, 1, &failed, l->stream[b]);
}

/* Two buffers, each on a stream of its own; collectives of one communicator keep their order. */
static void run_packed(place *p, const course *way, double *issue_us)
{
    struct lanes *l = p->state;
    const assignment *a = p->work;
    double began = slc_now_s();
    int b = 0;
    (void)way;
    for (size_t first = 0, end; first < a->count; first = end, b = 1 - b) {
        size_t bytes = 0;
        for (end = first; end < a->count && (end == first || bytes + a->tensor[end].to_bytes <= BUFFER); end++)
            bytes += a->tensor[end].to_bytes;
        void *data = (void *)(uintptr_t)l->buffer[b];
        if (p->rank == 0)
            must(&p->gpu, copy_packed(p, first, end, b), "packing");
        nccl_must(p, p->nccl.Broadcast(data, data, bytes, ncclUint8, 0, l->comm[b], l->stream[b]), "ncclBroadcast");
        if (p->rank != 0)
            must(&p->gpu, copy_packed(p, first, end, b), "unpacking");
    }
    *issue_us = (slc_now_s() - began) * 1e6;
    for (int i = 0; i < l->count; i++)
        settle(p, l->stream[i], "packed broadcasts");
}

static void close_broadcast(place *p, const course *way)
{
    (void)way;
    close_lanes(p, p->state);
}

/* ---- all of them ---- */

#define ALONE .missing = m2n_missing, .open = open_m2n, .run = run_m2n, .close = close_m2n

const course ways[] = {
    { "limit", "one bare copy by the copy engine", NULL, open_limit, run_limit, close_limit, 0, false, NULL, NULL, NULL },
    { "nccl", "Sluice, transport nccl", NULL, open_engine, run_engine, close_engine, 0, false, NULL, NULL, "nccl" },
    { "nccl_replay", "the same, recorded once", NULL, open_engine, run_engine, close_engine, 1, false, NULL, NULL, "nccl" },
    { "m2n", "Sluice, transport m2n", m2n_missing, open_engine, run_engine, close_engine, 0, false, NULL, NULL, "m2n" },
    { .name = "alone_1", .title = "nccl_m2n, its default, a call a tensor", ALONE, .lanes = 1 },
    { .name = "alone_2", .title = "nccl_m2n over 2 communicators", ALONE, .lanes = 2 },
    { .name = "alone_3", .title = "nccl_m2n over 3 communicators", ALONE, .lanes = 3 },
    { .name = "alone_4", .title = "nccl_m2n over 4 communicators", ALONE, .lanes = 4 },
    { .name = "pipe_1", .title = "nccl_m2n, PIPE", ALONE, .lanes = 1, .copies = "PIPE" },
    { .name = "pipe_4", .title = "nccl_m2n, PIPE over 4 communicators", ALONE, .lanes = 4, .copies = "PIPE" },
    { "broadcast", "a broadcast a tensor", broadcast_missing, open_broadcast, run_broadcast, close_broadcast, 1, false, NULL, NULL, NULL },
    { "packed", "packed broadcasts, 1 GiB, two buffers", broadcast_missing, open_broadcast, run_packed, close_broadcast, 2, true, NULL, NULL, NULL },
    { .name = "direct_1", .title = "nccl_m2n, DIRECT", ALONE, .lanes = 1, .copies = "DIRECT" },
    { .name = "group_1", .title = "nccl_m2n, one group", ALONE, .lanes = 1, .grouped = true },
    { .name = "group_4", .title = "nccl_m2n, one group over 4 communicators", ALONE, .lanes = 4, .grouped = true },
    { .name = "split_1", .title = "nccl_m2n, one group, split communicator", ALONE, .lanes = 1, .grouped = true, .split = "1" },
    { .name = "split_4", .title = "the same over 4 communicators", ALONE, .lanes = 4, .grouped = true, .split = "1" },
    { "m2n_grouped", "Sluice, transport m2n, grouped", m2n_missing, open_engine, run_engine, close_engine, 0, true, NULL, NULL, "m2n" },
};
const size_t nways = sizeof ways / sizeof ways[0];
