/*
 * product.h: matrix products of many rows with one weight, in which a row's result is the same bits whatever the other rows are,
 * and how many: a sentence's answer must not depend on what else is asked. BLAS promises no such thing (OpenBLAS rounds a row
 * by where it stands), and lays the weight out anew in each call, which costs as much as the product where rows are few.
 */
#ifndef PRODUCT_H
#define PRODUCT_H

enum { PRODUCT_ROWS = 6, PRODUCT_COLUMNS = 16 }; /* rows of x and rows of a weight come in such groups */

/* A weight [rows, columns], row-major, laid out for product_multiply; `rows` must be a multiple of PRODUCT_COLUMNS. */
void product_pack(const float *weight, int rows, int columns, float *packed);
/* y [count, rows] = x [count, columns] times the transposed weight, plus `bias` (may be NULL); count is rounded up to PRODUCT_ROWS. */
void product_multiply(const float *x, int count, const float *packed, const float *bias, int rows, int columns, float *y);

#endif
