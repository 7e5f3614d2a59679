/*
 * epoch.h: what nccl_m2n is to a process. The library has one state for all that use it, from the first handle to the last
 * (an epoch, in its words), takes one call at a time, keeps windows of communicators until the last handle is finalized, and
 * may hang with the peers of a call. So here: one call at a time in the process, each on a thread that may be left behind;
 * device work ends before a handle is finalized, and no communicator goes before the last handle did.
 *
 * A member of an epoch is one rank of one engine: a communicator of all its world's ranks that does not block, by which they
 * find each other under a deadline; its twin, which blocks, for the library's calls, since each would cost NCCL a thread on one
 * that does not; and a handle. Rules that are reloaded go on with the member that there is.
 */
#ifndef SLC_TRANSPORT_M2N_EPOCH_H
#define SLC_TRANSPORT_M2N_EPOCH_H

#include "transport/m2n/express.h"
#include "transport/m2n/library.h"
#include "transport/nccl/comm.h"
#include "transport/nccl/device.h"

typedef struct slc_m2n_member {
    slc_m2n m2n;
    slc_nccl nccl;
    slc_comm comm;          /* not joined yet: handle is NULL; transport nccl's, too */
    slc_comm twin;          /* the library's alone */
    CUstream stream;        /* of all its reshards */
    slc_m2n_handle *handle; /* NULL until the first call */
    int32_t max_cta;        /* 0: the library's own choice */
    int users;              /* transports */
    bool broken;            /* a call or its device work failed: nothing but the end may follow */
    slc_current current;
} slc_m2n_member;

/*
 * The twin of a communicator that was joined, by every rank alike. What NCCL answers, as slc_comm_settle tells it.
 */
sluice_status slc_epoch_twin(slc_m2n_member *member, slc_wait *wait, sluice_error *error);

/* A reshard to be submitted: where this rank's data lies, NULL on the side that it is not of. */
typedef struct slc_order {
    const char *name; /* for messages; of the plan */
    slc_m2n_call call;
    void *source, *destination;
} slc_order;

typedef struct slc_orders {
    slc_order *order;
    size_t count, capacity;
} slc_orders;

/* Appends one; NO_MEMORY. */
sluice_status slc_orders_add(slc_orders *orders, const slc_order *order, sluice_error *error);
void slc_orders_clear(slc_orders *orders); /* a cleared list may be cleared again */

/*
 * A member for the transport that is being opened, on the device that is entered: the one that `keep` has, or a new one, kept
 * there. UNSUPPORTED where the library is missing, or is of no use to this process any more.
 */
sluice_status slc_epoch_open(slc_keep *keep, const slc_device *device, int32_t max_cta, const slc_log *log, slc_m2n_member **member,
                             sluice_error *error);

/*
 * Submits the orders, which are given over; with `grouped` as one group. Returns when the library has taken them; their device
 * work comes behind what the member's stream has.
 */
sluice_status slc_epoch_submit(slc_m2n_member *member, slc_orders *orders, bool grouped, slc_wait *wait, sluice_error *error);

/* Ends what is under way on the communicator, which stays. */
void slc_epoch_break(slc_m2n_member *member);

/*
 * A transport leaves; `settled`: its device work has come to rest. The last one ends the member, and where that was the last of
 * the process, every communicator that waited for that goes.
 */
void slc_epoch_leave(slc_keep *keep, slc_m2n_member *member, const slc_cuda *cuda, bool settled, const slc_log *log);

#endif
