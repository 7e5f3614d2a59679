/* nccl_calls.h: the part of NCCL that benchmarks call, found when the process runs; they link no NCCL. */
#ifndef SPEC_GPU_BENCH_NCCL_CALLS_H
#define SPEC_GPU_BENCH_NCCL_CALLS_H

#include <nccl.h>
#include <stdbool.h>

#define NCCL_CALL_LIST(X) \
    X(GetVersion) \
    X(GetUniqueId) X(CommInitRankConfig) X(CommDestroy) X(Broadcast) X(Send) X(Recv) X(GroupStart) X(GroupEnd) X(GetErrorString)

typedef struct nccl_calls {
#define NCCL_CALL_MEMBER(name) __typeof__(nccl##name) *name;
    NCCL_CALL_LIST(NCCL_CALL_MEMBER)
#undef NCCL_CALL_MEMBER
} nccl_calls;

/* Opens the library at `path` for as long as the process lives. False where it is none, or lacks a call. */
bool nccl_calls_find(nccl_calls *calls, const char *path);

#endif
