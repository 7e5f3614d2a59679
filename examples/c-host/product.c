/* product.c: see product.h. A group of a weight's rows lies column by column, so that what is multiplied together is a vector. */
#include "product.h"

#include <string.h>

enum { LANES = 8 };
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

void product_pack(const float *weight, int rows, int columns, float *packed)
{
    for (int group = 0; group < rows; group += PRODUCT_COLUMNS)
        for (int k = 0; k < columns; k++)
            for (int i = 0; i < PRODUCT_COLUMNS; i++)
                *packed++ = weight[(group + i) * columns + k];
}

/* A sum a row and half of the group's columns, each in a register: names of their own, since an array would lie in memory. */
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#define START(row) lanes low##row = low, high##row = high;
#define ADD(row) low##row += x[row * columns + k] * low, high##row += x[row * columns + k] * high;
#define STORE(row) memcpy(y + row * rows, &low##row, sizeof low), memcpy(y + row * rows + LANES, &high##row, sizeof high);

/* Each element is one sum in the order of k: this is what makes rows independent of each other. */
static void multiply_group(const float *x, const float *packed, const float *bias, int rows, int columns, float *y)
{
    lanes low, high;
    memcpy(&low, bias, sizeof low);
    memcpy(&high, bias + LANES, sizeof high);
    EACH_ROW(START)
    for (int k = 0; k < columns; k++, packed += PRODUCT_COLUMNS) {
        memcpy(&low, packed, sizeof low);
        memcpy(&high, packed + LANES, sizeof high);
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}

void product_multiply(const float *x, int count, const float *packed, const float *bias, int rows, int columns, float *y)
{
    static const float none[PRODUCT_COLUMNS];
    for (int group = 0; group < rows; group += PRODUCT_COLUMNS, packed += PRODUCT_COLUMNS * columns)
        for (int row = 0; row < count; row += PRODUCT_ROWS)
            multiply_group(x + row * columns, packed, bias == NULL ? none : bias + group, rows, columns, y + row * rows + group);
}
