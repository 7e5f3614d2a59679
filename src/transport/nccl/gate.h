/*
 * gate.h: a place inside a graph of the host's where an update belongs: two words of device memory. The graph, when it comes
 * there, raises `came` and waits until `open` is raised; the transport waits for the one before it moves anything, and raises
 * the other when all is in place. Outside of a replay the gate is open: whoever launches the graph then is not held.
 *
 * The graph holds the words' addresses as long as it lives, so that a gate lives as long as the engine, whatever becomes of
 * transports: it stays with what the engine keeps for them (slc_keep).
 */
#ifndef SLC_TRANSPORT_NCCL_GATE_H
#define SLC_TRANSPORT_NCCL_GATE_H

#include "transport/nccl/device.h"
#include "transport/transport.h"

typedef struct slc_gate slc_gate;

/* The engine's gate, made if there is none yet, open. The device is entered, here and below. */
sluice_status slc_gate_of(slc_keep *keep, const slc_device *device, slc_gate **gate, sluice_error *error);

/* Puts a place into the capture of a stream. */
sluice_status slc_gate_place(const slc_gate *gate, CUstream captured, sluice_error *error);

/* Closed from the return on, until it is opened. */
sluice_status slc_gate_close(slc_gate *gate, sluice_error *error);
CUresult slc_gate_open(slc_gate *gate); /* as soon as the GPU comes to it; any number of times */

/* What `stream` does from here on comes behind the arrival of a graph at the place. */
CUresult slc_gate_follow(const slc_gate *gate, CUstream stream);

#endif
