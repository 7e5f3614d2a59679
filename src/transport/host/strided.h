/* strided.h: copies between strided memory of this process. Pure loops: no waiting, no errors. */
#ifndef SLC_TRANSPORT_HOST_STRIDED_H
#define SLC_TRANSPORT_HOST_STRIDED_H

#include "plan/program.h"

/* `run` bytes repeated over ndim dims, outer first. The two sides must not overlap. */
void slc_strided_copy(unsigned char *destination, const unsigned char *source, int64_t run, uint32_t ndim, const slc_stride *dim);

/* The same with the copy's conversion. Of `copy` source, destination, peer, buffer and bytes are not looked at. */
void slc_strided_move(unsigned char *destination, const unsigned char *source, const slc_copy *copy);

enum { SLC_CROSSED_RUN = 64 };

/*
 * The dim along which the destination is written, where that is another than the last, as in a transposition: the one with
 * the shortest steps there. ndim where there is none, or where `run` is longer than SLC_CROSSED_RUN.
 */
uint32_t slc_strided_crossed(int64_t run, uint32_t ndim, const slc_stride *dim);

/* Clears the destination side of the same. */
void slc_strided_clear(unsigned char *destination, int64_t run, uint32_t ndim, const slc_stride *dim);

/*
 * One side of a copy as a stream of packed bytes that can stop anywhere. Begin with the strided side's base address;
 * `left` counts down to 0. What is read is converted.
 */
typedef struct slc_strided_cursor {
    const slc_copy *copy;
    unsigned char *at; /* of the row under way */
    int64_t index[SLC_MAX_DIMS];
    int64_t within; /* bytes of that row already done */
    int64_t left;
    bool reads; /* at walks the source strides */
    slc_grid_scales scales; /* of a conversion in blocks */
} slc_strided_cursor;

/* At the first byte of a copy's source side, or of its destination side. */
void slc_strided_read(slc_strided_cursor *cursor, const slc_copy *copy, const unsigned char *source);
void slc_strided_write(slc_strided_cursor *cursor, const slc_copy *copy, unsigned char *destination);

/* Moves up to `limit` bytes between the strided side and `packed`; returns how many, `limit` unless the copy ended. */
int64_t slc_strided_step(slc_strided_cursor *cursor, unsigned char *packed, int64_t limit);

#endif
