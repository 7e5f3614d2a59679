/* m2n.h: updates by NVIDIA's nccl_m2n, and by the nccl transport for what that cannot express. See transport.h. */
#ifndef SLC_TRANSPORT_M2N_M2N_H
#define SLC_TRANSPORT_M2N_M2N_H

#include "transport/transport.h"

extern const slc_transport_ops slc_m2n_transport;

#endif
