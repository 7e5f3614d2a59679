/*
 * nccl_on_cpu.c: the part of NCCL that the nccl transport uses, over local sockets and with the streams of cuda_on_cpu.c, so
 * that the road by wire runs where there is no GPU. It is as strict as NCCL, or more so: a communicator is joined by all of
 * its members or waits for ever, what a group has is posted to a stream in one piece and moves side by side, both ends of a
 * message must give the same number of bytes of device memory, calls while one is under way are refused, and a peer that ends
 * leaves a stream waiting until the communicator is aborted.
 *
 * Built as libnccl.so.2 for specs; never installed. Members meet at abstract sockets named after the id; each pair has one
 * connection. NCCL_ON_CPU_VERSION is the version that it claims to be, NCCL_ON_CPU_FAIL=CALL:N has the N-th of such calls fail,
 * NCCL_ON_CPU_BLOCKING=1 lets communicators block: benchmarks do.
 */
#include "library_on_cpu.h"

#include <nccl.h>

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
enum { DEFAULT_VERSION = 23007, SHARED_GPU_FROM = 23000, MOST_OPERATIONS = 8192 };

/* ---- the driver ---- */

static bool has_driver(CUdevice *device)
{
    (void)pthread_once(&driver.once, find_driver);
    return driver.launch != NULL && driver.attributes != NULL && driver.device != NULL && driver.device(device) == CUDA_SUCCESS;
}

/* ---- a communicator ---- */

struct member {
    int fd;
    CUdevice device;
};

struct ncclComm {
    unsigned char name[16]; /* of the sockets, out of the id */
    int rank, count, listener;
    CUdevice device;
    struct member *member;
    pthread_t joining;
    bool joined_thread;
    ncclComm_t *out;        /* where a communicator that is split off goes once it is there */
    struct ncclComm *split; /* the one that is being split off */
    struct ncclComm *parent; /* while this one is being split off */
    int splits;
    _Atomic ncclResult_t state;
    atomic_bool aborting, finalized, revoked;
    struct ncclComm *next; /* of all that there are */
    int running; /* posted and not done */
    uint64_t groups, ended; /* posted, done */
};

static _Thread_local char last_error[256];
static _Thread_local int depth;

static ncclResult_t say(ncclResult_t result, const char *what)
{
    snprintf(last_error, sizeof last_error, "%s", what);
    return result;
}

/* Whether this call of that name is the one to fail. */
static bool must_fail(const char *call)
{
    static int seen;
    return is_number("NCCL_ON_CPU_FAIL", call, &seen);
}

/* ---- all that there are ---- */

static pthread_mutex_t living = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *alive;

static void list(struct ncclComm *comm, bool in)
{
    pthread_mutex_lock(&living);
    struct ncclComm **at = &alive;
    while (*at != NULL && *at != comm)
        at = &(*at)->next;
    if (in) {
        comm->next = alive;
        alive = comm;
    } else if (*at != NULL) {
        *at = comm->next;
    }
    pthread_mutex_unlock(&living);
}

/* For m2n_on_cpu.c: whether a communicator has not been destroyed, and whether it was revoked. */
PUBLIC int ncclOnCpuAlive(ncclComm_t comm)
{
    pthread_mutex_lock(&living);
    struct ncclComm *at = alive;
    while (at != NULL && at != comm)
        at = at->next;
    pthread_mutex_unlock(&living);
    return at != NULL;
}

PUBLIC int ncclOnCpuRevoked(ncclComm_t comm)
{
    return !ncclOnCpuAlive(comm) || comm->revoked || comm->aborting;
}

static socklen_t address_of(const struct ncclComm *comm, int rank, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    char *at = address->sun_path + 1;
    at += sprintf(at, "nccl-on-cpu-");
    for (size_t i = 0; i < sizeof comm->name; i++)
        at += sprintf(at, "%02x", comm->name[i]);
    at += sprintf(at, "-%d", rank);
    return (socklen_t)(at - (char *)address);
}

struct hello {
    int32_t rank, count, version, device;
};

static void pause_a_little(void)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    nanosleep(&pause, NULL);
}

static int version(void)
{
    const char *text = getenv("NCCL_ON_CPU_VERSION");
    return text == NULL ? DEFAULT_VERSION : atoi(text);
}

static struct hello own_hello(const struct ncclComm *comm)
{
    return (struct hello){ .rank = comm->rank, .count = comm->count, .version = version(), .device = comm->device };
}

static bool is_ending(const struct ncclComm *comm)
{
    return comm->aborting || (comm->parent != NULL && comm->parent->aborting);
}

static bool exchange_hello(struct ncclComm *comm, int fd, struct hello *theirs)
{
    struct hello mine = own_hello(comm);
    size_t got = 0;
    if (send(fd, &mine, sizeof mine, MSG_NOSIGNAL) != (ssize_t)sizeof mine)
        return false;
    while (got < sizeof *theirs && !is_ending(comm)) {
        struct pollfd wanted = { .fd = fd, .events = POLLIN };
        if (poll(&wanted, 1, 10) == 0)
            continue;
        ssize_t more = recv(fd, (char *)theirs + got, sizeof *theirs - got, 0);
        if (more <= 0)
            return false;
        got += (size_t)more;
    }
    return got == sizeof *theirs && theirs->count == comm->count && theirs->version == mine.version && theirs->rank >= 0 &&
           theirs->rank < comm->count;
}

static void take_member(struct ncclComm *comm, int fd, const struct hello *theirs)
{
    comm->member[theirs->rank] = (struct member){ .fd = fd, .device = theirs->device };
}

/* Those below are called, those above call. */
static bool meet(struct ncclComm *comm)
{
    struct hello theirs;
    for (int rank = 0; rank < comm->rank && !is_ending(comm); rank++) {
        struct sockaddr_un address;
        socklen_t length = address_of(comm, rank, &address);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        while (!is_ending(comm) && connect(fd, (struct sockaddr *)&address, length) != 0)
            pause_a_little();
        if (is_ending(comm) || !exchange_hello(comm, fd, &theirs)) {
            close(fd);
            return false;
        }
        take_member(comm, fd, &theirs);
    }
    for (int missing = comm->count - 1 - comm->rank; missing > 0 && !is_ending(comm);) {
        struct pollfd wanted = { .fd = comm->listener, .events = POLLIN };
        if (poll(&wanted, 1, 10) == 0)
            continue;
        int fd = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (!exchange_hello(comm, fd, &theirs)) {
            close(fd);
            return false;
        }
        take_member(comm, fd, &theirs);
        missing--;
    }
    return !is_ending(comm);
}

static bool shares_a_gpu(const struct ncclComm *comm)
{
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (version() >= SHARED_GPU_FROM && allowed != NULL && strcmp(allowed, "1") == 0)
        return false;
    for (int rank = 0; rank < comm->count; rank++)
        if (rank != comm->rank && comm->member[rank].device == comm->device)
            return true;
    return false;
}

static void *join(void *context)
{
    struct ncclComm *comm = context;
    bool met = meet(comm);
    comm->state = !met ? ncclRemoteError : shares_a_gpu(comm) ? ncclInvalidUsage : ncclSuccess;
    return NULL;
}

static bool listen_for_members(struct ncclComm *comm)
{
    struct sockaddr_un address;
    socklen_t length = address_of(comm, comm->rank, &address);
    comm->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return comm->listener >= 0 && bind(comm->listener, (struct sockaddr *)&address, length) == 0 && listen(comm->listener, comm->count) == 0;
}

static void free_comm(struct ncclComm *comm)
{
    for (int rank = 0; comm->member != NULL && rank < comm->count; rank++)
        if (comm->member[rank].fd >= 0)
            close(comm->member[rank].fd);
    if (comm->listener >= 0)
        close(comm->listener);
    free(comm->member);
    free(comm);
}

static struct ncclComm *new_comm(const unsigned char name[16], int rank, int count, CUdevice device)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (comm == NULL || (comm->member = calloc((size_t)count, sizeof *comm->member)) == NULL) {
        free(comm);
        return NULL;
    }
    memcpy(comm->name, name, sizeof comm->name);
    comm->rank = rank;
    comm->count = count;
    comm->device = device;
    comm->state = ncclInProgress;
    for (int i = 0; i < count; i++)
        comm->member[i] = (struct member){ .fd = -1, .device = -1 };
    return comm;
}

PUBLIC ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int count, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    CUdevice device;
    *out = NULL;
    if (must_fail("CommInitRankConfig"))
        return say(ncclSystemError, "made to fail");
    if (!has_driver(&device))
        return say(ncclUnhandledCudaError, "no device is current");
    bool blocks = config == NULL || config->blocking != 0;
    if ((blocks && getenv("NCCL_ON_CPU_BLOCKING") == NULL) || count < 1 || rank < 0 || rank >= count)
        return say(ncclInvalidArgument, "a rank outside of the communicator, or one that blocks");
    struct ncclComm *comm = new_comm((const unsigned char *)id.internal + 16, rank, count, device);
    if (comm == NULL)
        return say(ncclSystemError, "no memory");
    if (!listen_for_members(comm) || pthread_create(&comm->joining, NULL, join, comm) != 0) {
        free_comm(comm);
        return say(ncclSystemError, "an id that is in use");
    }
    comm->joined_thread = !blocks;
    list(comm, true);
    *out = comm;
    if (!blocks)
        return ncclInProgress;
    (void)pthread_join(comm->joining, NULL);
    return comm->state;
}

static void *join_split(void *context)
{
    struct ncclComm *comm = context, *made = comm->split;
    made->parent = comm;
    made->state = meet(made) ? ncclSuccess : ncclRemoteError;
    made->parent = NULL;
    if (made->state == ncclSuccess) {
        list(made, true);
        *comm->out = made;
    } else {
        free_comm(made);
    }
    comm->split = NULL;
    comm->state = *comm->out != NULL ? ncclSuccess : ncclRemoteError;
    return NULL;
}

/* Here it must be of all members in their order, out of one that does not block, and block itself. */
PUBLIC ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config)
{
    *out = NULL;
    if (must_fail("CommSplit"))
        return say(ncclSystemError, "made to fail");
    if (color != 0 || key != comm->rank || config == NULL || config->blocking != 1 || comm->state != ncclSuccess || comm->finalized)
        return say(ncclInvalidArgument, "a part of a communicator, another order, or one that does not block");
    unsigned char name[sizeof comm->name];
    memcpy(name, comm->name, sizeof name);
    name[0] = (unsigned char)(name[0] + ++comm->splits);
    struct ncclComm *made = new_comm(name, comm->rank, comm->count, comm->device);
    if (made == NULL)
        return say(ncclSystemError, "no memory");
    if (comm->joined_thread)
        (void)pthread_join(comm->joining, NULL);
    comm->split = made;
    comm->out = out;
    comm->state = ncclInProgress;
    comm->joined_thread = listen_for_members(made) && pthread_create(&comm->joining, NULL, join_split, comm) == 0;
    if (comm->joined_thread)
        return ncclInProgress;
    comm->split = NULL;
    comm->state = ncclSystemError;
    free_comm(made);
    return say(ncclSystemError, "no thread");
}

/* ---- operations ---- */

struct operation {
    struct ncclComm *comm;
    CUstream stream;
    bool sends, started;
    int peer;
    unsigned char *data;
    uint64_t bytes, done; /* done counts the header, too */
    uint64_t header, heard;
};

struct group {
    size_t count, capacity;
    struct operation *operation;
    size_t left;
    uint64_t number; /* of its communicator's groups, which go one after the other whatever their streams */
};

static _Thread_local struct group *gathered;

enum { HEADER = sizeof(uint64_t) };

/* Moves what can be moved of one operation; false once the connection is of no use. */
static bool step(struct operation *o)
{
    int fd = o->comm->member[o->peer].fd;
    while (o->done < HEADER + o->bytes) {
        bool head = o->done < HEADER;
        unsigned char *at = head ? (unsigned char *)(o->sends ? &o->header : &o->heard) + o->done : o->data + (o->done - HEADER);
        size_t left = head ? HEADER - o->done : HEADER + o->bytes - o->done;
        ssize_t moved = o->sends ? send(fd, at, left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, left, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (moved <= 0)
            return false;
        o->done += (uint64_t)moved;
        if (!o->sends && o->done == HEADER && o->heard != o->bytes) {
            o->comm->state = ncclInvalidUsage; /* NCCL would not notice */
            return false;
        }
    }
    return true;
}

/* Of the operations with one peer in one direction, only the first that is not done may move. */
static bool is_first(const struct group *group, size_t index)
{
    const struct operation *o = &group->operation[index];
    for (size_t i = 0; i < index; i++) {
        const struct operation *other = &group->operation[i];
        if (other->peer == o->peer && other->sends == o->sends && other->done < HEADER + other->bytes)
            return false;
    }
    return true;
}

static void run(void *context)
{
    struct group *group = context;
    struct ncclComm *comm = group->operation[0].comm;
    size_t done = 0, first = 0;
    while (done < group->count && !comm->aborting) {
        size_t before = done;
        if (__atomic_load_n(&comm->ended, __ATOMIC_ACQUIRE) < group->number) {
            pause_a_little();
            continue;
        }
        for (; first < group->count && group->operation[first].done == HEADER + group->operation[first].bytes; first++)
            continue;
        for (size_t i = first; i < group->count && !comm->aborting; i++) {
            struct operation *o = &group->operation[i];
            if (o->done == HEADER + o->bytes || comm->state == ncclRemoteError || !is_first(group, i))
                continue;
            if (!step(o) && comm->state == ncclSuccess)
                comm->state = ncclRemoteError; /* and the stream stays where it is until somebody aborts */
            done += o->done == HEADER + o->bytes;
        }
        if (done == before) {
            const struct timespec pause = { .tv_nsec = 100000 };
            nanosleep(&pause, NULL);
        }
    }
    __atomic_add_fetch(&comm->ended, 1, __ATOMIC_RELEASE);
    __atomic_sub_fetch(&comm->running, 1, __ATOMIC_RELEASE);
    free(group->operation);
    free(group);
}

PUBLIC ncclResult_t ncclGroupStart(void)
{
    if (must_fail("GroupStart"))
        return say(ncclInternalError, "made to fail");
    depth++;
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclGroupEnd(void)
{
    struct group *group = gathered;
    if (depth == 0)
        return say(ncclInvalidUsage, "a group that was not begun");
    if (--depth > 0 || group == NULL)
        return ncclSuccess;
    gathered = NULL;
    struct ncclComm *comm = group->operation[0].comm;
    group->number = comm->groups++;
    __atomic_add_fetch(&comm->running, 1, __ATOMIC_RELAXED);
    if (!must_fail("GroupEnd") && driver.launch(group->operation[0].stream, run, group) == CUDA_SUCCESS)
        return ncclSuccess;
    __atomic_sub_fetch(&comm->running, 1, __ATOMIC_RELAXED);
    comm->groups--;
    free(group->operation);
    free(group);
    return say(ncclUnhandledCudaError, "made to fail, or the stream does not take it");
}

static ncclResult_t post(bool sends, void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream)
{
    if (must_fail(sends ? "Send" : "Recv"))
        return say(ncclSystemError, "made to fail");
    if (depth == 0 || comm->state != ncclSuccess || comm->finalized)
        return say(ncclInvalidUsage, "outside of a group, or the communicator is not ready");
    if (type != ncclUint8 || peer < 0 || peer >= comm->count || peer == comm->rank || stream == NULL || count == 0)
        return say(ncclInvalidArgument, "a type, a peer or a stream that cannot be");
    if (!is_on(data, comm->device) || !is_on((const char *)data + count - 1, comm->device))
        return say(ncclInvalidArgument, "what is moved must lie on the communicator's device");
    if (gathered == NULL)
        gathered = calloc(1, sizeof *gathered);
    struct group *group = gathered;
    if (group->count == group->capacity) {
        group->capacity = group->capacity == 0 ? 16 : group->capacity * 2;
        group->operation = realloc(group->operation, group->capacity * sizeof *group->operation);
    }
    if (group->count > 0 && (group->operation[0].comm != comm || group->operation[0].stream != stream))
        return say(ncclInvalidUsage, "one communicator and one stream a group, here");
    group->operation[group->count++] =
        (struct operation){ .comm = comm, .stream = stream, .sends = sends, .peer = peer, .data = data, .bytes = count, .header = count };
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream)
{
    return post(true, (void *)(uintptr_t)data, count, type, peer, comm, stream);
}

PUBLIC ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream)
{
    return post(false, data, count, type, peer, comm, stream);
}

PUBLIC ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, CUstream stream)
{
    if (from != to || root < 0 || root >= comm->count)
        return say(ncclInvalidArgument, "a root outside of the communicator, or a broadcast that is not in place, here");
    ncclResult_t result = ncclGroupStart();
    for (int rank = 0; rank < comm->count && result == ncclSuccess; rank++)
        if (rank != comm->rank && (rank == root || comm->rank == root))
            result = post(comm->rank == root, to, count, type, rank, comm, stream);
    ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

/* ---- the end, and what is asked ---- */

PUBLIC ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm->state != ncclSuccess || comm->finalized)
        return say(ncclInvalidUsage, "the communicator is not ready");
    comm->finalized = true;
    return ncclSuccess;
}

/* On a thread without a device NCCL would leave the first one behind as the current one, with a context of its own. */
static void want_device(const char *call)
{
    CUdevice device;
    if (has_driver(&device))
        return;
    fprintf(stderr, "nccl_on_cpu: %s on a thread without a device\n", call);
    abort();
}

static ncclResult_t end(ncclComm_t comm, bool aborts)
{
    want_device("an end");
    comm->aborting = comm->aborting || aborts;
    if (comm->joined_thread)
        (void)pthread_join(comm->joining, NULL);
    while (__atomic_load_n(&comm->running, __ATOMIC_ACQUIRE) > 0)
        pause_a_little();
    list(comm, false);
    free_comm(comm);
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return comm->finalized ? end(comm, false) : say(ncclInvalidUsage, "finalize comes first, here");
}

PUBLIC ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return end(comm, true);
}

/* Ends what is under way; what comes after it fails, and the communicator is there until it is destroyed or aborted. */
PUBLIC ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    if (flags != 0)
        return say(ncclInvalidArgument, "flags of a revoke must be 0");
    want_device("a revoke");
    comm->revoked = comm->aborting = true;
    return ncclInProgress;
}

PUBLIC ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    *state = !comm->revoked ? comm->state : __atomic_load_n(&comm->running, __ATOMIC_ACQUIRE) > 0 ? ncclInProgress : ncclSuccess;
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclCommCount(ncclComm_t comm, int *count)
{
    *count = comm->count;
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclGetVersion(int *number)
{
    *number = version();
    return ncclSuccess;
}

PUBLIC ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return getrandom(id->internal, sizeof id->internal, 0) == (ssize_t)sizeof id->internal ? ncclSuccess : say(ncclSystemError, "getrandom");
}

PUBLIC const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const text[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
                                        "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress" };
    return (size_t)result < sizeof text / sizeof text[0] ? text[result] : "unknown result code";
}

PUBLIC const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error;
}
