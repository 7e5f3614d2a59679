/*
 * library.h: NVIDIA's nccl_m2n as the process has it: API version 2, told in our own words, so that no header of it is wanted
 * to build (spec/transport/m2n/library_spec.lua holds these against the header of the package). Sizes and versions are part of
 * what the library checks.
 */
#ifndef SLC_TRANSPORT_M2N_LIBRARY_H
#define SLC_TRANSPORT_M2N_LIBRARY_H

#include "base/memory.h"
#include "transport/m2n_find.h"

#include <limits.h>
#include <nccl.h>

enum { SLC_M2N_API = 2 };
#define SLC_M2N_MAGIC 0x4d324e32u
#define SLC_M2N_DEFAULT INT_MIN

/* Ranks [first, first + product of dims) of a communicator; `dims` is read until the call returns. */
typedef struct slc_m2n_mesh {
    size_t size;
    unsigned version;
    int ndims; /* 1 or 2 */
    int *dims;
    int first;
} slc_m2n_mesh;

/* One side of a reshard, given by every rank in the same way, save that `data` is NULL on ranks that are not of that side. */
typedef struct slc_m2n_tensor {
    size_t size;
    unsigned version;
    void *data;
    size_t *shape; /* what each rank of the side holds */
    int ndims;     /* 1 to 3 */
    ncclDataType_t dtype;
    const slc_m2n_mesh *mesh;
    int *placements; /* by mesh axis: the dim that it cuts, or -1; at most one cuts */
} slc_m2n_tensor;

typedef struct slc_m2n_config {
    size_t size;
    unsigned magic, version;
    int max_cta; /* SLC_M2N_DEFAULT: the library's own choice */
} slc_m2n_config;

typedef struct slc_m2n_handle slc_m2n_handle; /* opaque */

/* X(name, member, what it takes) */
#define SLC_M2N_LIST(X)                                                                                                \
    X(ncclM2nInit, init, (slc_m2n_handle **, const slc_m2n_config *))                                                  \
    X(ncclM2nFinalize, finalize, (slc_m2n_handle *))                                                                   \
    X(ncclM2nGroupStart, group_start, (void))                                                                          \
    X(ncclM2nGroupEnd, group_end, (void))                                                                              \
    X(ncclM2nGroupAbort, group_abort, (void))                                                                          \
    X(ncclReshard, reshard,                                                                                            \
      (slc_m2n_handle *, ncclComm_t, const slc_m2n_tensor *, const slc_m2n_tensor *, struct CUstream_st *))

typedef struct slc_m2n {
    slc_m2n_file file; /* zeroed until it is found */
    char text[2300];   /* "nccl_m2n (FILE) with NCCL 2.30.7 (FILE)" */
#define SLC_M2N_MEMBER(name, member, takes) ncclResult_t (*member) takes;
    SLC_M2N_LIST(SLC_M2N_MEMBER)
#undef SLC_M2N_MEMBER
    const char *(*last_error)(void);                    /* of this thread */
    __typeof__(ncclCommSplit) *split;                   /* NCCL's */
    ncclResult_t (*revoke)(ncclComm_t comm, int flags); /* NCCL's: ends what is under way, and leaves the communicator */
} slc_m2n;

/* Finds it and all functions. UNSUPPORTED says what is missing. */
sluice_status slc_m2n_load(slc_m2n *m2n, const slc_log *log, sluice_error *error);

/* The environment that all ranks must have in common, as "name=value" lines. */
void slc_m2n_environment(slc_buffer *lines);

#endif
