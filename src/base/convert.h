/*
 * convert.h: the conversions of cast.h as processors do them: from one dtype to another, over rows of elements and over parts of
 * a rectangle that is cut in blocks.
 */
#ifndef SLC_BASE_CONVERT_H
#define SLC_BASE_CONVERT_H

#include "base/cast.h"
#include "base/dtype.h"

#define SLC_CASTS_KNOWN "float32 to bfloat16 and float16, bfloat16 and float32 to float8_e4m3fn"

/* The conversion of elements from one to the other; NONE where there is none, and from a dtype to itself. */
slc_cast slc_cast_find(const slc_dtype *from, const slc_dtype *to);
/* The one that brings the scales to elements of `from`; NONE where there is none. */
slc_cast slc_cast_find_scales(const slc_dtype *from);

/* Converts `count` elements at any alignment, not in blocks; strides in bytes. */
void slc_cast_row(slc_cast cast, unsigned char *to, int64_t to_stride, const unsigned char *from, int64_t from_stride, int64_t count);

/*
 * A rectangle of a tensor that is cut in blocks from its first element on, so that those at its far edges may be smaller:
 * `extent` in rows and columns, of elements; `step` in bytes from one to the next. `at`: which element of it is meant.
 */
typedef struct slc_grid {
    int64_t extent[2], step[2], at[2];
} slc_grid;

/* Elements of a grid from one number that lands to the next. */
static inline int64_t slc_grid_unit(slc_cast cast) { return slc_cast_scales(cast) ? SLC_BLOCK : 1; }

/* The scale of the block that holds the element at `row` and `column`; `from` is the rectangle's first element. */
float slc_grid_scale(slc_cast cast, const slc_grid *grid, const unsigned char *from, int64_t row, int64_t column);

enum { SLC_GRID_SCALES = 512 };

/* Scales of one row of blocks, so that rows one after the other need not ask again. Initialise with row -1. */
typedef struct slc_grid_scales {
    int64_t row, first, count; /* of blocks; those that are known */
    float scale[SLC_GRID_SCALES];
} slc_grid_scales;

/* Converts `count` elements of a row, or scales of blocks side by side, from `row` and `column` (of elements) on. */
void slc_grid_row(slc_cast cast, const slc_grid *grid, const unsigned char *from, int64_t row, int64_t column, int64_t count,
                  unsigned char *to, int64_t to_stride, slc_grid_scales *known);

#endif
