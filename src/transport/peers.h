/* peers.h: the ranks on the other side of a transport, by their position among the peers of a program. */
#ifndef SLC_TRANSPORT_PEERS_H
#define SLC_TRANSPORT_PEERS_H

#include "transport/transport.h"

#define SLC_NO_PEER UINT32_MAX

/*
 * *index: for each rank of the other side, counted from its first, the position in program->peer or SLC_NO_PEER; released with
 * slc_release. INTERNAL where the program names a peer of this side.
 */
sluice_status slc_peers_index(const slc_transport_config *config, uint32_t **index, sluice_error *error);

#endif
