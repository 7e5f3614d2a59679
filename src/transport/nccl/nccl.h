/* nccl.h: the `nccl` transport: GPUs, any number of machines. One road so far, `link`: peers of one NVLink domain, by copy engines. */
#ifndef SLC_TRANSPORT_NCCL_NCCL_H
#define SLC_TRANSPORT_NCCL_NCCL_H

#include "transport/transport.h"

extern const slc_transport_ops slc_nccl_transport;

#endif
