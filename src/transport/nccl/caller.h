/*
 * caller.h: the stream that the host gave, if any, and what is ordered with it. Nothing is ever queued there but events:
 * streams of the transport wait for what the host queued before a batch, and a staging slot is filled again only behind what
 * the host queued there until it gave the slot back. A batch of a recording that was made inside a capture waits for the
 * host's graph instead. Without a stream each of these calls does nothing.
 */
#ifndef SLC_TRANSPORT_NCCL_CALLER_H
#define SLC_TRANSPORT_NCCL_CALLER_H

#include "transport/nccl/gate.h"
#include "transport/wait.h"

typedef struct slc_caller {
    const slc_cuda *cuda; /* borrowed */
    CUstream stream;      /* NULL: none was given */
    CUevent came;         /* behind all that is older than the batch under way */
    CUevent *read;        /* one a staging slot: behind all that reads it */
    size_t nslots;
    _Atomic CUresult failed; /* of the first mark that could not be made; by who reads and who moves */
    slc_gate *gate;       /* of the batch under way, which began in a graph of the host's; else NULL */
} slc_caller;

/* The GPU that a host without tensors is on: its stream's, else the one that is current on this thread, else the first. */
sluice_status slc_caller_device(const slc_cuda *cuda, void *stream, int *ordinal, sluice_error *error);

/* INVALID where the stream is not one of this device's primary context. The device is entered, here and below. */
sluice_status slc_caller_open(const slc_device *device, void *stream, slc_caller *caller, sluice_error *error);
sluice_status slc_caller_slots(slc_caller *caller, size_t count, sluice_error *error); /* at most once */
void slc_caller_close(slc_caller *caller); /* a zeroed one is allowed */

/* Whether the stream is being captured now. */
sluice_status slc_caller_captured(const slc_caller *caller, const char *stage, bool *captured, sluice_error *error);
/* STATE while the stream is captured: what is queued there then runs later, or never. */
sluice_status slc_caller_check(const slc_caller *caller, const char *stage, sluice_error *error);

/* A batch begins: what has been queued on the host's stream so far comes before what `stream` does from `follow` on. */
sluice_status slc_caller_begin(slc_caller *caller, sluice_error *error);
CUresult slc_caller_follow(const slc_caller *caller, CUstream stream);

/* The batch is over, or will never be: the host's graph goes on. */
CUresult slc_caller_end(slc_caller *caller);

/* The host gave a slot back; the next use of it waits, and says where that could not be marked. `rank` is this one. */
void slc_caller_gave(slc_caller *caller, size_t slot);
sluice_status slc_caller_await(const slc_caller *caller, size_t slot, int32_t rank, slc_wait *wait, sluice_error *error);
bool slc_caller_settled(const slc_caller *caller); /* nothing on the host's stream reads a slot any more */

#endif
