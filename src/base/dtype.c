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

slc_cast slc_cast_find(const slc_dtype *from, const slc_dtype *to)
{
#define IS(name, before, behind) \
    if (from->code == CODE_##before && to->code == CODE_##behind) \
        return SLC_CAST_##name;
    SLC_CAST_LIST(IS)
#undef IS
    return SLC_CAST_NONE;
}

void slc_cast_row(slc_cast cast, unsigned char *to, int64_t to_stride, const unsigned char *from, int64_t from_stride, int64_t count)
{
    for (; count > 0; count--, to += to_stride, from += from_stride) {
        uint32_t before;
        memcpy(&before, from, sizeof before);
        uint16_t behind = slc_cast_one(cast, before);
        memcpy(to, &behind, sizeof behind);
    }
}
