/*
 * nccl_find.h: which NCCL a process uses. There must be one: the one that is there already, whoever brought it, else the file
 * that SLUICE_NCCL_LIBRARY names, else the system's.
 */
#ifndef SLC_TRANSPORT_NCCL_FIND_H
#define SLC_TRANSPORT_NCCL_FIND_H

#include "base/log.h"

#include <stdbool.h>

/* What is known to work: from 2.18 on, all of NCCL 2. */
#define SLC_NCCL_LOWEST 21800
#define SLC_NCCL_BEYOND 30000

typedef struct slc_nccl_file {
    void *library;   /* of dlopen, never closed: NCCL has threads that do not survive it */
    int version;     /* as NCCL counts: 22809 is 2.28.9 */
    bool was_there;  /* in the process before */
    char path[1024]; /* the file that its code is in */
} slc_nccl_file;

/*
 * Finds it, loading it only where the process has none. UNSUPPORTED says where it was looked for, that it is too old or too
 * new, or which two the process has.
 */
sluice_status slc_nccl_find(const slc_log *log, slc_nccl_file *file, sluice_error *error);

/* Whether the process has one already, so that slc_nccl_find would take that. */
bool slc_nccl_is_there(void);

/* The version as people say it, "2.28.9". */
void slc_nccl_version_text(int version, char *text, size_t size);

#endif
