/* comm.c: see comm.h. Owns a communicator's handle. */
#include "transport/nccl/comm.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/symbol.h"
#include "transport/apart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char STAGE[] = "runtime";
static const double LONGEST_END_S = 5;

/* ---- the library ---- */

sluice_status slc_nccl_load(slc_nccl *nccl, const slc_log *log, sluice_error *error)
{
    char version[32];
    if (nccl->file.library != NULL)
        return SLUICE_OK;
    slc_nccl_file file;
    sluice_status status = slc_nccl_find(log, &file, error);
    if (status != SLUICE_OK)
        return status;
    slc_nccl_version_text(file.version, version, sizeof version);
    snprintf(nccl->text, sizeof nccl->text, "NCCL %s (%s)", version, file.path);
#define SLC_NCCL_FIND(name) \
    if (status == SLUICE_OK) \
        status = slc_symbol_need(file.library, nccl->text, "nccl" #name, &nccl->name, error);
    SLC_NCCL_LIST(SLC_NCCL_FIND)
#undef SLC_NCCL_FIND
    if (status == SLUICE_OK)
        nccl->file = file;
    return status;
}

void slc_nccl_environment(slc_buffer *lines)
{
    /* Both ends of a pair choose channels, buffers and roads from these by themselves. */
    static const char *const names[] = {
        "NCCL_ALGO",           "NCCL_BUFFSIZE",           "NCCL_CHANNELS_PER_NET_PEER", "NCCL_COLLNET_ENABLE",
        "NCCL_CROSS_NIC",      "NCCL_CUMEM_ENABLE",       "NCCL_CUMEM_HOST_ENABLE",     "NCCL_IB_DISABLE",
        "NCCL_LL128_BUFFSIZE", "NCCL_LL_BUFFSIZE",        "NCCL_MAX_CTAS",              "NCCL_MAX_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS", "NCCL_MIN_CTAS",        "NCCL_MIN_NCHANNELS",         "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MNNVL_ENABLE",   "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_NET",
        "NCCL_NET_PLUGIN",     "NCCL_NTHREADS",           "NCCL_NVLS_ENABLE",           "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",      "NCCL_P2P_LL_THRESHOLD",   "NCCL_P2P_NET_CHUNKSIZE",     "NCCL_P2P_NVL_CHUNKSIZE",
        "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_PXN_LEVEL",   "NCCL_PROTO",                 "NCCL_PXN_DISABLE",
        "NCCL_SHM_DISABLE",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        slc_buffer_text(lines, "%s=%.200s\n", names[i], value == NULL ? "(unset)" : value);
    }
}

sluice_status slc_nccl_make_id(const slc_nccl *nccl, unsigned char *id, sluice_error *error)
{
    ncclUniqueId made;
    ncclResult_t result = nccl->GetUniqueId(&made);
    if (result != ncclSuccess)
        return slc_fail(error, SLUICE_SYSTEM, STAGE, "ncclGetUniqueId: %s (%s)", nccl->GetErrorString(result),
                        nccl->GetLastError(NULL));
    memcpy(id, &made, sizeof made);
    explicit_bzero(&made, sizeof made);
    return SLUICE_OK;
}

/* ---- calls and what they begin ---- */

static sluice_status fail(slc_comm *comm, ncclResult_t result, const char *call, slc_wait *wait, sluice_error *error)
{
    const slc_nccl *nccl = comm->nccl;
    const char *words = nccl->GetLastError(comm->handle);
    comm->broken = true;
    /* A peer that ended is known to the watch in a moment, with its cause. */
    if (result == ncclRemoteError) {
        sluice_status status = slc_wait_reason(wait, error);
        if (status != SLUICE_OK)
            return status;
    }
    return slc_fail(error, result == ncclRemoteError ? SLUICE_PEER : SLUICE_SYSTEM, wait->stage, "%s on rank %d: %s%s%s%s", call,
                    (int)comm->rank, nccl->GetErrorString(result), words == NULL || *words == '\0' ? "" : " (",
                    words == NULL ? "" : words, words == NULL || *words == '\0' ? "" : ")");
}

sluice_status slc_comm_tick(slc_wait *wait, const char *what, int *tries, sluice_error *error)
{
    enum { EAGER = 2000 };
    const struct timespec pause = { .tv_nsec = 20000 };
    if (slc_deadline_passed(wait->deadline))
        return slc_fail(error, SLUICE_TIMEOUT, wait->stage, "%s took longer than %g s", what, wait->deadline.seconds);
    sluice_status status = slc_wait_tick(wait, what, -1, error);
    if (*tries < EAGER)
        ++*tries;
    else if (status == SLUICE_OK)
        (void)nanosleep(&pause, NULL);
    return status;
}

sluice_status slc_comm_settle(slc_comm *comm, ncclResult_t result, const char *call, slc_wait *wait, sluice_error *error)
{
    int tries = 0;
    while (result == ncclInProgress || result == ncclSuccess) {
        ncclResult_t state = ncclSuccess;
        result = comm->nccl->CommGetAsyncError(comm->handle, &state);
        if (result == ncclSuccess && state == ncclSuccess)
            return SLUICE_OK;
        if (result == ncclSuccess)
            result = state;
        sluice_status status = result == ncclInProgress ? slc_comm_tick(wait, call, &tries, error) : SLUICE_OK;
        if (status != SLUICE_OK) {
            comm->broken = true;
            return status;
        }
    }
    return fail(comm, result, call, wait, error);
}

sluice_status slc_comm_check(slc_comm *comm, slc_wait *wait, sluice_error *error)
{
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = comm->nccl->CommGetAsyncError(comm->handle, &state);
    if (result == ncclSuccess)
        result = state;
    return result == ncclSuccess || result == ncclInProgress ? SLUICE_OK
                                                             : fail(comm, result, "moving parameters by NCCL", wait, error);
}

sluice_status slc_comm_join(slc_comm *comm, const unsigned char *id, int32_t index, int32_t count, int32_t max_cta, slc_wait *wait,
                            sluice_error *error)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId given;
    config.blocking = 0;
    if (max_cta > 0)
        config.maxCTAs = max_cta;
    memcpy(&given, id, sizeof given);
    comm->broken = false;
    ncclResult_t result = comm->nccl->CommInitRankConfig(&comm->handle, count, given, index, &config);
    explicit_bzero(&given, sizeof given);
    if (comm->handle == NULL)
        return fail(comm, result, "ncclCommInitRankConfig", wait, error);
    sluice_status status = slc_comm_settle(comm, result, "ncclCommInitRankConfig", wait, error);
    if (status != SLUICE_OK)
        slc_comm_abort(comm, NULL);
    return status;
}

/* ---- the end ---- */

struct ending {
    ncclResult_t (*call)(ncclComm_t comm);
    ncclComm_t handle;
    slc_current current;
};

/* On a thread without a device NCCL would make the first one current when it is through, which costs a context there. */
static void run_ending(void *context)
{
    const struct ending *ending = context;
    bool entered = slc_current_enter(&ending->current) == CUDA_SUCCESS;
    (void)ending->call(ending->handle);
    if (entered)
        slc_current_leave(&ending->current);
}

/* NCCL's abort waits for its own threads and kernels. */
void slc_comm_abort(slc_comm *comm, const slc_log *log)
{
    slc_apart *apart = NULL;
    if (comm->handle == NULL)
        return;
    struct ending *ending = slc_allocate_zeroed(1, sizeof *ending);
    if (ending != NULL)
        *ending = (struct ending){ .call = comm->nccl->CommAbort, .handle = comm->handle, .current = comm->current };
    if (ending == NULL || slc_apart_start(run_ending, slc_release, ending, &apart, NULL) != SLUICE_OK) {
        slc_release(ending);
        (void)comm->nccl->CommAbort(comm->handle);
    } else if (slc_apart_end(apart, LONGEST_END_S)) {
        slc_release(ending);
    } else {
        slc_say(log, SLUICE_LOG_ERROR, "nccl: ncclCommAbort did not return within %g s; its thread is left to itself", LONGEST_END_S);
    }
    comm->handle = NULL;
}

void slc_comm_close(slc_comm *comm, const slc_log *log)
{
    int64_t next = 0;
    sluice_error ignored = SLUICE_ERROR_INIT;
    slc_wait wait = { .deadline = slc_deadline_in(LONGEST_END_S / 5), .stage = STAGE, .next_ns = &next };
    if (comm->handle == NULL)
        return;
    if (!comm->broken && slc_comm_settle(comm, comm->nccl->CommFinalize(comm->handle), "ncclCommFinalize", &wait, &ignored) == SLUICE_OK)
        (void)comm->nccl->CommDestroy(comm->handle);
    else
        slc_comm_abort(comm, log);
    comm->handle = NULL;
}
