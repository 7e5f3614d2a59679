/* streams_on_cpu.h: what a stream of the driver on processors can be told. */
#ifndef SPEC_SUPPORT_STREAMS_ON_CPU_H
#define SPEC_SUPPORT_STREAMS_ON_CPU_H

#include "cuda_on_cpu.h"
#include "kernels_on_cpu.h"

/* One thing that a stream does; a box of rows for copies and fills. */
struct work {
    struct work *next;
    enum { COPY, FILL, RAISE, WAIT, MARK, PASS, CALL, KERNEL } what;
    unsigned char *to;
    const unsigned char *from;
    size_t width, height, depth, to_pitch, from_pitch, to_layer, from_layer;
    int byte;
    uint64_t value;
    struct CUevent_st *event; /* MARK: `value` records of it are done; PASS: waits for that many */
    CUhostFn function;        /* CALL */
    void *context;
    const kernel *launched;
    uint32_t blocks, threads;
    _Alignas(16) unsigned char parameters[KERNEL_PARAMETERS];
};

/* Behind what the stream has, or into what it captures. */
CUresult cpu_enqueue(CUstream stream, const struct work *what);
bool cpu_is_captured(CUstream stream);

#endif
