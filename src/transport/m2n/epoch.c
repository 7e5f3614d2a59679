/* epoch.c: see epoch.h. Owns members, and the communicators that wait for the last of them. */
#include "transport/m2n/epoch.h"

#include "base/error.h"
#include "transport/apart.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static const char STAGE[] = "runtime";
static const double LONGEST_END_S = 2; /* of a call, once it is of no use any more */

/* Communicators of a member that has ended, while others of the process go on. */
struct waiting {
    struct waiting *next;
    slc_nccl nccl;
    slc_comm comm, twin;
};

/*
 * Of the process, as the library's own state is: not of any engine. `call` is held while the library is called, which may last
 * for ever; `books` never for longer than it takes to read or write the rest.
 */
static struct {
    pthread_mutex_t call, books;
    int members;
    bool lost; /* a call never returned, or device work never ended: nothing of the library may be touched any more */
    struct waiting *waiting;
} process = { .call = PTHREAD_MUTEX_INITIALIZER, .books = PTHREAD_MUTEX_INITIALIZER };

static bool is_lost(void)
{
    pthread_mutex_lock(&process.books);
    bool lost = process.lost;
    pthread_mutex_unlock(&process.books);
    return lost;
}

static void lose(const slc_log *log, const char *what)
{
    pthread_mutex_lock(&process.books);
    process.lost = true;
    pthread_mutex_unlock(&process.books);
    slc_say(log, SLUICE_LOG_ERROR, "m2n: %s; what it holds is left to the process' end", what);
}

/* ---- orders ---- */

sluice_status slc_orders_add(slc_orders *orders, const slc_order *order, sluice_error *error)
{
    if (!SLC_ROOM(orders->order, orders->capacity, orders->count, 64))
        return slc_fail_memory(error, "update", "the reshards of a batch", (orders->count + 1) * sizeof *orders->order);
    orders->order[orders->count++] = *order;
    return SLUICE_OK;
}

void slc_orders_clear(slc_orders *orders)
{
    slc_release(orders->order);
    *orders = (slc_orders){ .count = 0 };
}

/* ---- a member ---- */

static void forget(void *what)
{
    slc_release(what);
}

sluice_status slc_epoch_open(slc_keep *keep, const slc_device *device, int32_t max_cta, const slc_log *log, slc_m2n_member **member,
                             sluice_error *error)
{
    *member = keep->what;
    if (*member != NULL) {
        (*member)->users++;
        return SLUICE_OK;
    }
    if (is_lost())
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "a reshard that failed earlier in this process could not be ended, and nccl_m2n works in it no more: start the "
                        "process anew, or use transport nccl");
    slc_m2n_member *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, STAGE, "nccl_m2n", sizeof *made);
    sluice_status status = slc_m2n_load(&made->m2n, log, error);
    if (status == SLUICE_OK)
        status = slc_cuda_check(device->cuda, device->cuda->StreamCreate(&made->stream, CU_STREAM_NON_BLOCKING), STAGE,
                                "creating a stream for reshards", error);
    if (status != SLUICE_OK) {
        slc_release(made);
        return status;
    }
    made->max_cta = max_cta;
    made->users = 1;
    made->current = slc_device_current(device);
    pthread_mutex_lock(&process.books);
    process.members++;
    pthread_mutex_unlock(&process.books);
    *keep = (slc_keep){ .what = made, .release = forget };
    *member = made;
    return SLUICE_OK;
}

sluice_status slc_epoch_twin(slc_m2n_member *member, slc_wait *wait, sluice_error *error)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    if (member->max_cta > 0)
        config.maxCTAs = member->max_cta;
    ncclComm_t *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, wait->stage, "a communicator", sizeof *made);
    ncclResult_t result = member->m2n.split(member->comm.handle, 0, member->comm.rank, made, &config);
    sluice_status status = slc_comm_settle(&member->comm, result, "ncclCommSplit", wait, error);
    if (status != SLUICE_OK)
        return status; /* *made stays: whatever is still under way may write to it */
    member->twin = (slc_comm){ .nccl = &member->nccl, .handle = *made, .current = member->current, .rank = member->comm.rank };
    slc_release(made);
    return member->twin.handle != NULL ? SLUICE_OK : slc_fail(error, SLUICE_SYSTEM, wait->stage, "ncclCommSplit made no communicator");
}

/* ---- calls ---- */

/* What is done apart: orders, or with `ends` the finalization. */
struct work {
    slc_m2n_member *member;
    ncclComm_t twin; /* the member's, which may have ended before a call comes back */
    bool ends, grouped;
    slc_orders orders;
    atomic_bool given_up; /* before its turn came, or within a call, behind which none may follow */
    ncclResult_t result;
    const char *call, *name; /* that failed, of which parameter */
    char said[512];
};

static void release_work(void *context)
{
    struct work *work = context;
    slc_orders_clear(&work->orders);
    slc_release(work);
}

static bool note(struct work *work, ncclResult_t result, const char *call)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return true;
    const char *words = work->member->m2n.last_error();
    work->result = result;
    work->call = call;
    snprintf(work->said, sizeof work->said, "%s", words == NULL ? "" : words);
    return false;
}

static ncclDataType_t type_of(int64_t item)
{
    return item == 1 ? ncclUint8 : item == 2 ? ncclFloat16 : item == 4 ? ncclUint32 : ncclUint64;
}

/* One side as the library wants it told; what it points to is the caller's. */
struct side {
    slc_m2n_mesh mesh;
    slc_m2n_tensor tensor;
    int dims[2], placements[2];
    size_t shape[SLC_M2N_DIMS];
};

static void tell_side(struct side *side, const slc_m2n_call *call, const slc_m2n_side *from, void *data)
{
    *side = (struct side){ .dims = { from->dims[0], from->dims[1] }, .placements = { from->placement[0], from->placement[1] } };
    for (int d = 0; d < call->ndim; d++)
        side->shape[d] = (size_t)from->held[d];
    side->mesh = (slc_m2n_mesh){ .size = sizeof side->mesh, .version = SLC_M2N_API, .ndims = 2, .dims = side->dims, .first = from->start };
    side->tensor = (slc_m2n_tensor){ .size = sizeof side->tensor, .version = SLC_M2N_API, .data = data, .shape = side->shape,
                                     .ndims = call->ndim, .dtype = type_of(call->item), .mesh = &side->mesh,
                                     .placements = side->placements };
}

static void submit(struct work *work)
{
    const slc_m2n *m2n = &work->member->m2n;
    bool good = !work->grouped || note(work, m2n->group_start(), "ncclM2nGroupStart");
    for (size_t i = 0; i < work->orders.count && good; i++) {
        const slc_order *order = &work->orders.order[i];
        struct side source, destination;
        work->name = order->name;
        tell_side(&source, &order->call, &order->call.source, order->source);
        tell_side(&destination, &order->call, &order->call.destination, order->destination);
        good = note(work, m2n->reshard(work->member->handle, work->twin, &source.tensor, &destination.tensor, work->member->stream),
                    "ncclReshard") &&
               !atomic_load(&work->given_up);
    }
    if (good && work->grouped) {
        work->name = NULL;
        good = note(work, m2n->group_end(), "ncclM2nGroupEnd");
    }
    if (!good && work->grouped)
        (void)m2n->group_abort();
}

static void carry_out(struct work *work)
{
    slc_m2n_member *member = work->member;
    const slc_m2n_config config = { .size = sizeof config, .magic = SLC_M2N_MAGIC, .version = SLC_M2N_API,
                                    .max_cta = member->max_cta > 0 ? member->max_cta : SLC_M2N_DEFAULT };
    if (slc_current_enter(&member->current) != CUDA_SUCCESS) {
        work->result = ncclUnhandledCudaError;
        work->call = "entering the GPU's context";
        return;
    }
    if (work->ends)
        (void)note(work, member->m2n.finalize(member->handle), "ncclM2nFinalize");
    else if (member->handle != NULL || note(work, member->m2n.init(&member->handle, &config), "ncclM2nInit"))
        submit(work);
    slc_current_leave(&member->current);
}

/* Whether the library may still be called for this. */
static bool is_of_use(struct work *work)
{
    if (is_lost()) {
        work->result = ncclInternalError;
        work->call = work->ends ? "ncclM2nFinalize" : "ncclReshard";
        snprintf(work->said, sizeof work->said, "an earlier reshard of this process could not be ended");
        return false;
    }
    return !atomic_load(&work->given_up);
}

static void run(void *context)
{
    const struct timespec pause = { .tv_nsec = 20000 };
    struct work *work = context;
    while (pthread_mutex_trylock(&process.call) != 0) {
        if (!is_of_use(work))
            return;
        (void)nanosleep(&pause, NULL);
    }
    if (is_of_use(work))
        carry_out(work);
    pthread_mutex_unlock(&process.call);
}

/* A call fails in many ways where a peer has ended, which the watch knows in a moment, with its cause. */
static sluice_status failed_call(const slc_m2n_member *member, const struct work *work, slc_wait *wait, sluice_error *error)
{
    sluice_status status = work->result == ncclInvalidArgument ? SLUICE_OK : slc_wait_reason(wait, error);
    if (status != SLUICE_OK)
        return status;
    return slc_fail(error, SLUICE_SYSTEM, wait->stage, "%s%s%s on rank %d: %s%s%s%s", work->call, work->name == NULL ? "" : " of ",
                    work->name == NULL ? "" : work->name, (int)member->comm.rank,
                    member->nccl.GetErrorString(work->result), work->said[0] == '\0' ? "" : " (", work->said,
                    work->said[0] == '\0' ? "" : ")");
}

sluice_status slc_epoch_submit(slc_m2n_member *member, slc_orders *orders, bool grouped, slc_wait *wait, sluice_error *error)
{
    slc_apart *apart;
    int tries = 0;
    if (member->broken)
        return slc_fail(error, SLUICE_STATE, wait->stage, "an earlier reshard failed: nothing moves by nccl_m2n any more");
    struct work *work = slc_allocate_zeroed(1, sizeof *work);
    if (work == NULL)
        return slc_fail_memory(error, wait->stage, "reshards", sizeof *work);
    *work = (struct work){ .member = member, .twin = member->twin.handle, .grouped = grouped, .orders = *orders };
    *orders = (slc_orders){ .count = 0 };
    sluice_status status = slc_apart_start(run, release_work, work, &apart, error);
    if (status != SLUICE_OK) {
        release_work(work);
        return status;
    }
    while (status == SLUICE_OK && !slc_apart_over(apart))
        status = slc_comm_tick(wait, "submitting reshards", &tries, error);
    if (status != SLUICE_OK) {
        atomic_store(&work->given_up, true);
        slc_epoch_break(member);
    }
    if (!slc_apart_end(apart, LONGEST_END_S)) {
        lose(NULL, "a call did not return");
        return status;
    }
    if (status == SLUICE_OK && work->result != ncclSuccess) {
        status = failed_call(member, work, wait, error);
        member->broken = true;
    }
    release_work(work);
    return status;
}

/* ---- the end ---- */

struct revoke {
    ncclResult_t (*call)(ncclComm_t comm, int flags);
    ncclComm_t comm;
    slc_current current;
};

static void run_revoke(void *context)
{
    const struct revoke *revoke = context;
    bool entered = slc_current_enter(&revoke->current) == CUDA_SUCCESS;
    (void)revoke->call(revoke->comm, 0);
    if (entered)
        slc_current_leave(&revoke->current);
}

void slc_epoch_break(slc_m2n_member *member)
{
    slc_apart *apart = NULL;
    bool again = member->comm.broken && member->broken;
    member->broken = member->comm.broken = true;
    struct revoke *revoke = member->twin.handle == NULL || again ? NULL : slc_allocate_zeroed(1, sizeof *revoke);
    if (revoke == NULL)
        return;
    *revoke = (struct revoke){ .call = member->m2n.revoke, .comm = member->twin.handle, .current = member->current };
    if (slc_apart_start(run_revoke, slc_release, revoke, &apart, NULL) != SLUICE_OK || slc_apart_end(apart, LONGEST_END_S))
        slc_release(revoke);
}

/* Device work has ended. False: the library did not come back, or said no. */
static bool finalize(slc_m2n_member *member, const slc_log *log)
{
    slc_apart *apart;
    struct work *work = slc_allocate_zeroed(1, sizeof *work);
    if (work == NULL)
        return false;
    *work = (struct work){ .member = member, .ends = true };
    if (slc_apart_start(run, release_work, work, &apart, NULL) != SLUICE_OK) {
        release_work(work);
        return false;
    }
    if (!slc_apart_end(apart, LONGEST_END_S))
        return false;
    bool good = work->result == ncclSuccess;
    if (!good)
        slc_say(log, SLUICE_LOG_WARN, "m2n: %s: %s (%s)", work->call, member->nccl.GetErrorString(work->result), work->said);
    release_work(work);
    return good;
}

/* The twin has nothing under way: to abort it is to free it, and unlike its finalization waits for no other rank. */
static void close_both(slc_comm *comm, slc_comm *twin, const slc_log *log)
{
    slc_comm_abort(twin, log);
    slc_comm_close(comm, log);
}

static void close_waiting(const slc_log *log)
{
    pthread_mutex_lock(&process.books);
    struct waiting *list = process.members == 0 ? process.waiting : NULL;
    if (list != NULL)
        process.waiting = NULL;
    pthread_mutex_unlock(&process.books);
    while (list != NULL) {
        struct waiting *next = list->next;
        list->comm.nccl = list->twin.nccl = &list->nccl;
        close_both(&list->comm, &list->twin, log);
        slc_release(list);
        list = next;
    }
}

/* The communicators go now, or with the last member. */
static void part(slc_m2n_member *member, const slc_log *log)
{
    struct waiting *waiting = slc_allocate_zeroed(1, sizeof *waiting);
    pthread_mutex_lock(&process.books);
    bool last = --process.members == 0;
    if (!last && waiting != NULL && member->comm.handle != NULL) {
        *waiting = (struct waiting){ .next = process.waiting, .nccl = member->nccl, .comm = member->comm, .twin = member->twin };
        process.waiting = waiting;
        member->comm.handle = member->twin.handle = NULL;
        waiting = NULL;
    }
    pthread_mutex_unlock(&process.books);
    slc_release(waiting);
    close_both(&member->comm, &member->twin, log);
    close_waiting(log);
    slc_release(member);
}

void slc_epoch_leave(slc_keep *keep, slc_m2n_member *member, const slc_cuda *cuda, bool settled, const slc_log *log)
{
    if (--member->users > 0)
        return;
    *keep = (slc_keep){ .what = NULL };
    if (!is_lost() && member->handle != NULL) {
        if (!settled)
            lose(log, "a reshard did not come to an end");
        else if (!finalize(member, log))
            lose(log, "ncclM2nFinalize failed, or did not return");
    }
    if (!is_lost()) {
        (void)cuda->StreamDestroy(member->stream);
        part(member, log);
        return;
    }
    slc_comm_abort(&member->twin, log); /* what its kernels hold of the GPU */
    slc_comm_abort(&member->comm, log);
}
