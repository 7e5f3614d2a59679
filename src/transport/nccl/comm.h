/*
 * comm.h: NCCL as the process has it, and one communicator. Nothing here waits without an end: calls are made on a
 * communicator that does not block, and what they begin is watched until it is done, fails, or the wait ends.
 */
#ifndef SLC_TRANSPORT_NCCL_COMM_H
#define SLC_TRANSPORT_NCCL_COMM_H

#include "transport/nccl/device.h"
#include "transport/nccl_find.h"
#include "transport/wait.h"

#include <nccl.h>

#define SLC_NCCL_LIST(X)                                                                                               \
    X(GetUniqueId)                                                                                                     \
    X(CommInitRankConfig)                                                                                              \
    X(CommFinalize)                                                                                                    \
    X(CommDestroy)                                                                                                     \
    X(CommAbort)                                                                                                       \
    X(CommGetAsyncError)                                                                                               \
    X(GroupStart)                                                                                                      \
    X(GroupEnd)                                                                                                        \
    X(Send)                                                                                                            \
    X(Recv)                                                                                                            \
    X(GetErrorString)                                                                                                  \
    X(GetLastError)

typedef struct slc_nccl {
    slc_nccl_file file; /* zeroed until it is found */
    char text[1100];    /* "NCCL 2.28.9 (/usr/lib/libnccl.so.2)" */
#define SLC_NCCL_MEMBER(name) __typeof__(nccl##name) *name;
    SLC_NCCL_LIST(SLC_NCCL_MEMBER)
#undef SLC_NCCL_MEMBER
} slc_nccl;

/* Finds NCCL, unless that was done before. UNSUPPORTED says what is missing and where it was looked for. */
sluice_status slc_nccl_load(slc_nccl *nccl, const slc_log *log, sluice_error *error);

/* The environment that two ranks of a communicator must have in common, as "name=value" lines. */
void slc_nccl_environment(slc_buffer *lines);

/* An id that nobody has used, 128 bytes. */
sluice_status slc_nccl_make_id(const slc_nccl *nccl, unsigned char *id, sluice_error *error);

typedef struct slc_comm {
    const slc_nccl *nccl; /* borrowed */
    ncclComm_t handle;    /* NULL: none */
    slc_current current;  /* the device that NCCL finds there, also on a thread that only ends it */
    int32_t rank;         /* of this process, in the world, for messages */
    bool broken;          /* only abort may follow */
} slc_comm;

/* Member `index` of `count`, on the device that is entered. On failure there is none. */
sluice_status slc_comm_join(slc_comm *comm, const unsigned char *id, int32_t index, int32_t count, int32_t max_cta, slc_wait *wait,
                            sluice_error *error);

/*
 * After a call that returned `result`: OK once the communicator is through with what it began. SYSTEM with the call, the
 * rank and NCCL's own words; PEER where another rank's end is what NCCL met.
 */
sluice_status slc_comm_settle(slc_comm *comm, ncclResult_t result, const char *call, slc_wait *wait, sluice_error *error);

/* Without waiting: OK unless NCCL has met an error meanwhile. */
sluice_status slc_comm_check(slc_comm *comm, slc_wait *wait, sluice_error *error);

/*
 * One step of a wait: looks at the watch and at the deadline, whose error names no rank, since what is waited for is a step
 * of many; sleeps a little once there were many `tries`.
 */
sluice_status slc_comm_tick(slc_wait *wait, const char *what, int *tries, sluice_error *error);

/* Ends what is under way; its kernels leave the GPU. Never takes longer than a few seconds. */
void slc_comm_abort(slc_comm *comm, const slc_log *log);
void slc_comm_close(slc_comm *comm, const slc_log *log); /* one without work in good order; any other as abort */

#endif
