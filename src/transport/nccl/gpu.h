/* gpu.h: memory of a GPU for programs that keep tensors there themselves, see plugin.h. */
#ifndef SLC_TRANSPORT_NCCL_GPU_H
#define SLC_TRANSPORT_NCCL_GPU_H

#include "transport/nccl/plugin.h"

extern const slc_gpu_ops slc_gpu_table;

#endif
