/* nccl.h: the `nccl` transport: memory of GPUs. One road so far, `link`: peers of one machine, by copy engines. */
#ifndef SLC_TRANSPORT_NCCL_NCCL_H
#define SLC_TRANSPORT_NCCL_NCCL_H

#include "transport/transport.h"

extern const slc_transport_ops slc_nccl_transport;

#endif
