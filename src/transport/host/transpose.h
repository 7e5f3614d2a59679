/* transpose.h: a matrix of small elements from one order of dims into the other, in this process' memory. */
#ifndef SLC_TRANSPORT_HOST_TRANSPOSE_H
#define SLC_TRANSPORT_HOST_TRANSPOSE_H

#include "plan/program.h"

/* Elements of `run` bytes; `a` is the dim whose steps are short at the source, `b` the one whose steps are short at the destination. */
void slc_transpose(unsigned char *destination, const unsigned char *source, int64_t run, slc_stride a, slc_stride b);

#endif
