/*
 * m2n_on_cpu.c: the part of nccl_m2n (API 2) that transport m2n uses, over the NCCL and the streams of nccl_on_cpu.c and
 * cuda_on_cpu.c: a reshard packs what each target wants on the stream, sends and receives it, and unpacks. Its structs are told
 * here once more, from the header's documentation and not from src/. It is stricter than the library: what that only forbids is
 * the process' end here: two calls at once, a handle that is finalized before its device work ended or after a communicator
 * went, ranks whose calls differ in number, order or what they say. Ordinary misuse is an error, as there.
 *
 * Built as libnccl_m2n.so for specs; never installed. M2N_ON_CPU_FAIL=CALL:N has the N-th of such calls (Init, Reshard, GroupEnd,
 * Finalize) fail, M2N_ON_CPU_HANG=CALL:N has it wait until the communicator is revoked, M2N_ON_CPU_STUCK=CALL:N for ever.
 */
#include "library_on_cpu.h"

#include <nccl.h>

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

#define PUBLIC __attribute__((visibility("default")))

/* nccl_on_cpu.c's own. */
extern int ncclOnCpuAlive(ncclComm_t comm);
extern int ncclOnCpuRevoked(ncclComm_t comm);

typedef struct {
    size_t size;
    unsigned version;
    int ndims;
    int *dims;
    int start;
} mesh_t;

typedef struct {
    size_t size;
    unsigned version;
    void *data;
    size_t *shape;
    int ndims;
    ncclDataType_t type;
    const mesh_t *mesh;
    int *placements;
} tensor_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    int ctas;
} config_t;

enum { API = 2, MAGIC = 0x4d324e32, DIMS = 3, SOURCES = 16, TARGETS = 64, HEADER = 64 };
static const uint64_t BUFFER = (uint64_t)2 << 30;

static _Thread_local char last_error[256];

static ncclResult_t say(ncclResult_t result, const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    return result;
}

static void die(const char *what)
{
    fprintf(stderr, "m2n_on_cpu: %s\n", what);
    abort();
}

/* ---- what is asked for by the environment ---- */

static bool must_fail(const char *call)
{
    static int seen;
    return is_number("M2N_ON_CPU_FAIL", call, &seen);
}

/* True: the call hung until the communicator was revoked. */
static bool hangs(const char *call, ncclComm_t comm)
{
    static int seen, stuck;
    const struct timespec pause = { .tv_nsec = 1000000 };
    bool waits = is_number("M2N_ON_CPU_HANG", call, &seen), ever = is_number("M2N_ON_CPU_STUCK", call, &stuck);
    while (ever || (waits && !ncclOnCpuRevoked(comm)))
        nanosleep(&pause, NULL);
    return waits;
}

/* ---- one call at a time ---- */

static int inside;

static void enter(void)
{
    last_error[0] = '\0';
    if (__atomic_exchange_n(&inside, 1, __ATOMIC_ACQUIRE) != 0)
        die("two calls at once in a process");
}

static ncclResult_t leave(ncclResult_t result)
{
    __atomic_store_n(&inside, 0, __ATOMIC_RELEASE);
    return result;
}

/* ---- handles, and a communicator's staging ---- */

struct handle {
    struct handle *next;
};

/* Of one communicator, until the last handle goes: its buffer, and the number of its calls. */
struct lane {
    struct lane *next;
    ncclComm_t comm;
    CUstream stream;
    CUdeviceptr memory, before[64]; /* those that became too small are still used by what the stream has */
    size_t bytes, nbefore;
    uint64_t calls;
};

static struct handle *handles;
static struct lane *lanes;
static int pending; /* operations on streams that have not ended */

PUBLIC ncclResult_t ncclM2nInit(struct handle **out, const config_t *config)
{
    enter();
    *out = NULL;
    if (must_fail("Init"))
        return leave(say(ncclSystemError, "made to fail"));
    if (config != NULL && (config->size != sizeof *config || config->magic != MAGIC || config->version != API))
        return leave(say(ncclInvalidArgument, "a config of another size, magic or version"));
    if (config != NULL && config->ctas != INT_MIN && config->ctas < 1)
        return leave(say(ncclInvalidArgument, "maxCta must be above 0"));
    (void)pthread_once(&driver.once, find_driver);
    struct handle *made = calloc(1, sizeof *made);
    made->next = handles;
    *out = handles = made;
    return leave(ncclSuccess);
}

static void end_epoch(void)
{
    while (lanes != NULL) {
        struct lane *next = lanes->next;
        if (!ncclOnCpuAlive(lanes->comm))
            die("a communicator went before the last handle was finalized");
        if (lanes->memory != 0)
            (void)driver.release(lanes->memory);
        for (size_t i = 0; i < lanes->nbefore; i++)
            (void)driver.release(lanes->before[i]);
        free(lanes);
        lanes = next;
    }
}

PUBLIC ncclResult_t ncclM2nFinalize(struct handle *handle)
{
    enter();
    if (must_fail("Finalize"))
        return leave(say(ncclInternalError, "made to fail"));
    struct handle **at = &handles;
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    if (handle == NULL || *at == NULL)
        return leave(say(ncclInvalidArgument, "an unknown handle"));
    if (__atomic_load_n(&pending, __ATOMIC_ACQUIRE) > 0)
        die("a handle is finalized before its device work ended");
    *at = handle->next;
    free(handle);
    if (handles == NULL)
        end_epoch();
    return leave(ncclSuccess);
}

PUBLIC const char *ncclM2nGetLastError(void)
{
    return last_error;
}

static struct lane *lane_of(ncclComm_t comm, CUstream stream)
{
    struct lane *lane = lanes;
    while (lane != NULL && lane->comm != comm)
        lane = lane->next;
    if (lane == NULL) {
        lane = calloc(1, sizeof *lane);
        *lane = (struct lane){ .next = lanes, .comm = comm, .stream = stream };
        lanes = lane;
    }
    return lane->stream == stream ? lane : NULL; /* here: one stream a communicator */
}

/* ---- what a call says ---- */

struct side {
    int start, dims[2], ranks, axis, dim; /* axis: which cuts; dim: of the tensor */
    int shards, replicas;
    size_t held[DIMS];
    unsigned char *data;
};

struct call {
    CUdeviceptr memory; /* the buffer of its lane, as it was when this was issued */
    struct handle *handle;
    ncclComm_t comm;
    CUstream stream;
    CUdevice device;
    int rank, count, ndims;
    size_t item, whole[DIMS];
    struct side source, destination;
    uint64_t number, meaning;
    struct lane *lane;
    size_t npieces, capacity;
    struct piece *piece;
};

static size_t bytes_of(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

static const char *read_side(const tensor_t *tensor, struct side *side)
{
    const mesh_t *mesh = tensor->mesh;
    if (tensor->size != sizeof *tensor || tensor->version != API || mesh == NULL || mesh->size != sizeof *mesh || mesh->version != API)
        return "a struct of another size or version";
    if (mesh->ndims < 1 || mesh->ndims > 2 || tensor->ndims < 1 || tensor->ndims > DIMS)
        return "a mesh of 1 or 2 dims and a tensor of 1 to 3, that is what there is";
    *side = (struct side){ .start = mesh->start, .dims = { 1, 1 }, .ranks = 1, .axis = -1, .dim = -1, .data = tensor->data };
    for (int a = 0; a < mesh->ndims; a++) {
        if (mesh->dims[a] < 1)
            return "a mesh dim below 1";
        side->dims[a] = mesh->dims[a];
        side->ranks *= mesh->dims[a];
        if (tensor->placements[a] == -1)
            continue;
        if (side->axis >= 0 || tensor->placements[a] < 0 || tensor->placements[a] >= tensor->ndims)
            return "exactly one axis must cut, and a dim that there is";
        side->axis = a;
        side->dim = tensor->placements[a];
    }
    if (side->axis < 0)
        return "exactly one axis must cut"; /* the library takes some such layouts, and not all */
    side->shards = side->dims[side->axis];
    side->replicas = side->ranks / side->shards;
    for (int d = 0; d < tensor->ndims; d++)
        side->held[d] = tensor->shape[d];
    return NULL;
}

static bool is_of(const struct side *side, int rank)
{
    return rank >= side->start && rank < side->start + side->ranks;
}

static int shard_of(const struct side *side, int rank)
{
    int at = rank - side->start;
    return side->axis == 0 ? at / side->dims[1] : at % side->dims[1];
}

static int replica_of(const struct side *side, int rank)
{
    int at = rank - side->start;
    return side->axis == 0 ? at % side->dims[1] : at / side->dims[1];
}

static int rank_of(const struct side *side, int shard, int replica)
{
    return side->start + (side->axis == 0 ? shard * side->dims[1] + replica : replica * side->dims[1] + shard);
}

static const char *check_data(const struct call *call, const struct side *side)
{
    size_t bytes = call->item;
    for (int d = 0; d < call->ndims; d++)
        bytes *= side->held[d];
    if (!is_of(side, call->rank))
        return side->data == NULL ? NULL : "dataPtr must be NULL on a rank that is not of that side";
    if (side->data == NULL)
        return "dataPtr must not be NULL on a rank of that side";
    return is_on(side->data, call->device) && is_on(side->data + bytes - 1, call->device) ? NULL : "what is moved must lie on this device";
}

static uint64_t staging(void)
{
    const char *text = getenv("NCCL_RESHARD_PACK_BUFFSIZES");
    return text == NULL ? BUFFER : strtoull(text, NULL, 10);
}

static const char *check_sides(struct call *call)
{
    const struct side *s = &call->source, *d = &call->destination;
    size_t mine = call->item, theirs = call->item;
    if (s->start < 0 || d->start < 0 || s->start + s->ranks > call->count || d->start + d->ranks > call->count)
        return "ranks outside of the communicator";
    if (s->start < d->start + d->ranks && d->start < s->start + s->ranks)
        return "the two sides must have no rank in common";
    for (int i = 0; i < call->ndims; i++) {
        call->whole[i] = s->held[i] * (size_t)(i == s->dim ? s->shards : 1);
        if (call->whole[i] != d->held[i] * (size_t)(i == d->dim ? d->shards : 1) || call->whole[i] == 0)
            return "the two sides must make up the same tensor";
        mine *= s->held[i];
        theirs *= d->held[i];
    }
    if (mine > staging() || theirs > staging())
        return "a staging request exceeds the largest buffer";
    const char *wrong = check_data(call, s);
    return wrong == NULL ? check_data(call, d) : wrong;
}

/* Over all that every rank must say alike. */
static uint64_t meaning_of(const struct call *call)
{
    uint64_t hash = 1469598103934665603u, word[40];
    size_t count = 0;
    const struct side *sides[] = { &call->source, &call->destination };
    for (int i = 0; i < 2; i++) {
        const struct side *s = sides[i];
        const int said[] = { s->start, s->dims[0], s->dims[1], s->axis, s->dim };
        for (size_t k = 0; k < sizeof said / sizeof said[0]; k++)
            word[count++] = (uint64_t)said[k];
        for (int d = 0; d < call->ndims; d++)
            word[count++] = s->held[d];
    }
    word[count++] = call->item;
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ word[i]) * 1099511628211u;
    return hash;
}

static ncclResult_t read_call(struct handle *handle, ncclComm_t comm, const tensor_t *source, const tensor_t *destination, CUstream stream,
                              struct call *call)
{
    CUstreamCaptureStatus captured = CU_STREAM_CAPTURE_STATUS_NONE;
    struct handle *known = handles;
    while (known != NULL && known != handle)
        known = known->next;
    *call = (struct call){ .handle = handle, .comm = comm, .stream = stream };
    if (known == NULL || comm == NULL || source == NULL || destination == NULL || stream == NULL)
        return say(ncclInvalidArgument, "a handle, a communicator, two tensors and a stream are wanted");
    if (driver.device(&call->device) != CUDA_SUCCESS)
        return say(ncclUnhandledCudaError, "no device is current");
    if (driver.capturing(stream, &captured) != CUDA_SUCCESS || captured != CU_STREAM_CAPTURE_STATUS_NONE)
        return say(ncclInvalidUsage, "ncclReshard does not support CUDA graph capture");
    const char *wrong = read_side(source, &call->source);
    if (wrong == NULL)
        wrong = read_side(destination, &call->destination);
    if (wrong == NULL && (source->ndims != destination->ndims || source->type != destination->type || bytes_of(source->type) == 0))
        wrong = "the two sides must agree in dims and dtype, one that there is";
    call->ndims = source->ndims;
    call->item = bytes_of(source->type);
    (void)ncclCommUserRank(comm, &call->rank);
    (void)ncclCommCount(comm, &call->count);
    if (wrong == NULL)
        wrong = check_sides(call);
    const char *algorithm = getenv("NCCL_RESHARD_COPY_ALGORITHM");
    if (wrong == NULL && algorithm != NULL && strcmp(algorithm, "DIRECT") == 0)
        wrong = "DIRECT wants GIN, and there is no network card";
    call->meaning = meaning_of(call);
    return wrong == NULL ? ncclSuccess : say(ncclInvalidArgument, wrong);
}

/* ---- pieces ---- */

struct piece {
    bool sends;
    int peer;
    size_t at, bytes; /* in the buffer, header and all */
    size_t from[DIMS], extent[DIMS]; /* of this rank's part */
};

struct header {
    uint64_t number, meaning, source, destination;
};

static size_t first_of(const struct side *side, int shard, int dim)
{
    return dim == side->dim ? side->held[dim] * (size_t)shard : 0;
}

/* What shard s of the source has of shard t of the destination, as seen from one of the two. */
static bool overlap(const struct call *call, int s, int t, bool sends, struct piece *piece)
{
    size_t bytes = call->item;
    for (int d = 0; d < call->ndims; d++) {
        size_t a = first_of(&call->source, s, d), b = first_of(&call->destination, t, d), low = a > b ? a : b;
        size_t c = a + call->source.held[d], e = b + call->destination.held[d], high = c < e ? c : e;
        if (low >= high)
            return false;
        piece->from[d] = low - (sends ? a : b);
        piece->extent[d] = high - low;
        bytes *= high - low;
    }
    piece->bytes = bytes + HEADER;
    return true;
}

static void add(struct call *call, const struct piece *piece)
{
    if (call->npieces == call->capacity) {
        call->capacity = call->capacity == 0 ? 16 : call->capacity * 2;
        call->piece = realloc(call->piece, call->capacity * sizeof *call->piece);
    }
    call->piece[call->npieces++] = *piece;
}

/* A destination's replica takes from the source's replica of its number, or of what is left of that. */
static const char *find_pieces(struct call *call)
{
    const struct side *s = &call->source, *d = &call->destination;
    size_t used = 0;
    for (int to = d->start; to < d->start + d->ranks; to++) {
        int sources = 0;
        for (int shard = 0; shard < s->shards; shard++) {
            struct piece piece = { .sends = is_of(s, call->rank) };
            int from = rank_of(s, shard, replica_of(d, to) % s->replicas);
            if (!overlap(call, shard, shard_of(d, to), piece.sends, &piece))
                continue;
            if (++sources > SOURCES)
                return "more than 16 sources of one shard";
            if (call->rank != from && call->rank != to)
                continue;
            piece.peer = call->rank == from ? to : from;
            piece.at = used;
            used += (piece.bytes + 63) / 64 * 64;
            add(call, &piece);
        }
    }
    for (int shard = 0, targets = 0; shard < s->shards; shard++, targets = 0)
        for (int t = 0; t < d->shards; t++) {
            struct piece piece;
            targets += overlap(call, shard, t, true, &piece);
            if (targets > TARGETS)
                return "more than 64 targets of one shard";
        }
    struct lane *lane = call->lane;
    if (used > lane->bytes) {
        if (lane->memory != 0)
            lane->before[lane->nbefore++] = lane->memory;
        lane->bytes = used * 2;
        if (driver.allocate(&lane->memory, lane->bytes) != CUDA_SUCCESS)
            return "no memory for staging";
    }
    call->memory = lane->memory;
    return NULL;
}

static void copy_piece(const struct call *call, const struct piece *piece, unsigned char *packed)
{
    const struct side *side = piece->sends ? &call->source : &call->destination;
    size_t e0 = call->ndims > 2 ? piece->extent[call->ndims - 3] : 1, e1 = call->ndims > 1 ? piece->extent[call->ndims - 2] : 1;
    size_t f0 = call->ndims > 2 ? piece->from[call->ndims - 3] : 0, f1 = call->ndims > 1 ? piece->from[call->ndims - 2] : 0;
    size_t h1 = call->ndims > 1 ? side->held[call->ndims - 2] : 1, h2 = side->held[call->ndims - 1];
    size_t run = piece->extent[call->ndims - 1] * call->item;
    for (size_t i = 0; i < e0; i++)
        for (size_t k = 0; k < e1; k++, packed += run) {
            unsigned char *at = side->data + (((f0 + i) * h1 + f1 + k) * h2 + piece->from[call->ndims - 1]) * call->item;
            memcpy(piece->sends ? packed : at, piece->sends ? at : packed, run);
        }
}

static unsigned char *place_of(const struct call *call, const struct piece *piece)
{
    return (unsigned char *)(uintptr_t)call->memory + piece->at;
}

static void pack(void *context)
{
    const struct call *call = context;
    for (size_t i = 0; i < call->npieces; i++) {
        const struct piece *piece = &call->piece[i];
        const struct header header = { call->number, call->meaning, (uint64_t)call->rank, (uint64_t)piece->peer };
        if (!piece->sends)
            continue;
        memcpy(place_of(call, piece), &header, sizeof header);
        copy_piece(call, piece, place_of(call, piece) + HEADER);
    }
}

static void unpack(void *context)
{
    struct call *call = context;
    for (size_t i = 0; i < call->npieces && !ncclOnCpuRevoked(call->comm); i++) {
        const struct piece *piece = &call->piece[i];
        struct header header;
        if (piece->sends)
            continue;
        memcpy(&header, place_of(call, piece), sizeof header);
        if (header.number != call->number || header.meaning != call->meaning || header.source != (uint64_t)piece->peer)
            die("ranks differ in the number, the order or the meaning of their calls");
        copy_piece(call, piece, place_of(call, piece) + HEADER);
    }
    free(call->piece);
    free(call);
    __atomic_sub_fetch(&pending, 1, __ATOMIC_RELEASE);
}

static ncclResult_t post(struct call *call)
{
    ncclResult_t result = ncclGroupStart();
    for (size_t i = 0; i < call->npieces && result == ncclSuccess; i++) {
        const struct piece *piece = &call->piece[i];
        void *at = place_of(call, piece);
        result = piece->sends ? ncclSend(at, piece->bytes, ncclUint8, piece->peer, call->comm, call->stream)
                              : ncclRecv(at, piece->bytes, ncclUint8, piece->peer, call->comm, call->stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
}

static ncclResult_t issue(const struct call *said)
{
    struct call *call = malloc(sizeof *call);
    *call = *said;
    call->lane = lane_of(call->comm, call->stream);
    const char *wrong = call->lane == NULL ? "a second stream on one communicator" : find_pieces(call);
    if (wrong != NULL) {
        free(call->piece);
        free(call);
        return say(ncclInvalidArgument, wrong);
    }
    call->number = call->lane->calls++;
    __atomic_add_fetch(&pending, 1, __ATOMIC_RELAXED);
    if (driver.launch(call->stream, pack, call) != CUDA_SUCCESS)
        die("the stream does not take a reshard");
    ncclResult_t result = post(call);
    if (driver.launch(call->stream, unpack, call) != CUDA_SUCCESS)
        die("the stream does not take a reshard");
    return result == ncclSuccess || result == ncclInProgress ? ncclSuccess : say(result, "NCCL refused");
}

/* ---- calls, and groups of them ---- */

static _Thread_local int depth;
static _Thread_local struct call *recorded;
static _Thread_local size_t nrecorded;

PUBLIC ncclResult_t ncclReshard(struct handle *handle, ncclComm_t comm, const tensor_t *source, const tensor_t *destination, CUstream stream)
{
    struct call call;
    enter();
    if (must_fail("Reshard"))
        return leave(say(ncclInternalError, "made to fail"));
    if (hangs("Reshard", comm))
        return leave(say(ncclRemoteError, "revoked"));
    ncclResult_t result = read_call(handle, comm, source, destination, stream, &call);
    if (result == ncclSuccess && depth > 0) {
        recorded = realloc(recorded, (nrecorded + 1) * sizeof *recorded);
        recorded[nrecorded++] = call;
    } else if (result == ncclSuccess) {
        result = issue(&call);
    }
    return leave(result);
}

static void forget_group(void)
{
    free(recorded);
    recorded = NULL;
    nrecorded = 0;
}

PUBLIC ncclResult_t ncclM2nGroupStart(void)
{
    enter();
    depth++;
    return leave(ncclSuccess);
}

PUBLIC ncclResult_t ncclM2nGroupEnd(void)
{
    ncclResult_t result = ncclSuccess;
    enter();
    if (must_fail("GroupEnd"))
        return leave(say(ncclInternalError, "made to fail"));
    if (depth == 0)
        return leave(say(ncclInvalidUsage, "a group that was not begun"));
    if (--depth > 0)
        return leave(ncclSuccess);
    for (size_t i = 0; i < nrecorded && result == ncclSuccess; i++)
        result = issue(&recorded[i]);
    forget_group();
    return leave(result);
}

PUBLIC ncclResult_t ncclM2nGroupAbort(void)
{
    enter();
    depth = 0;
    forget_group();
    return leave(ncclSuccess);
}
