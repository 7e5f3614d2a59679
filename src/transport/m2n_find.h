/*
 * m2n_find.h: which nccl_m2n a process uses, and with which NCCL: the very same one that everything else in the process has,
 * at least 2.30.5. nccl_m2n is linked to NCCL, and brings one along only where the process has none and none is named.
 */
#ifndef SLC_TRANSPORT_M2N_FIND_H
#define SLC_TRANSPORT_M2N_FIND_H

#include "transport/nccl_find.h"

#define SLC_M2N_LOWEST_NCCL 23005

typedef struct slc_m2n_file {
    void *library; /* of dlopen, never closed */
    char path[1024];
    slc_nccl_file nccl;
} slc_m2n_file;

/*
 * The file that SLUICE_M2N_LIBRARY names, else nccl/m2n/lib of the Python environment that this process runs in (or that
 * VIRTUAL_ENV or CONDA_PREFIX names), else the system's. UNSUPPORTED says where it was looked for, which NCCL is too old, or
 * which two there would be.
 */
sluice_status slc_m2n_find(const slc_log *log, slc_m2n_file *file, sluice_error *error);

#endif
