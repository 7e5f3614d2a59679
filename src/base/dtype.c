/* dtype.c: the table of dtype.h and its look-ups. */
#include "base/dtype.h"

#include <stddef.h>
#include <string.h>

enum {
#define CODE(name, safetensors, bytes) CODE_##name,
    SLC_DTYPE_LIST(CODE)
#undef CODE
        DTYPES
};

static const slc_dtype table[DTYPES] = {
#define ROW(name, safetensors, bytes) { #name, safetensors, bytes, CODE_##name },
    SLC_DTYPE_LIST(ROW)
#undef ROW
};

const slc_dtype *slc_dtype_find(const char *name)
{
    for (size_t i = 0; i < DTYPES; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const slc_dtype *slc_dtype_find_safetensors(const char *name)
{
    for (size_t i = 0; i < DTYPES; i++)
        if (table[i].safetensors != NULL && strcmp(table[i].safetensors, name) == 0)
            return &table[i];
    return NULL;
}

const slc_dtype *slc_dtype_by_code(uint8_t code)
{
    return code < DTYPES ? &table[code] : NULL;
}
