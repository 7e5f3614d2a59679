/* dtype.h: the element types, by their torch names without prefix. */
#ifndef SLC_BASE_DTYPE_H
#define SLC_BASE_DTYPE_H

#include <stdint.h>

/*
 * X(name, safetensors name or NULL, bytes per element). Packed sub-byte types count as the bytes that hold them
 * (float4_e2m1fn_x2: two values a byte). The order is the code that crosses the wire: append only.
 */
#define SLC_DTYPE_LIST(X)                                                                                              \
    X(int8, "I8", 1) X(uint8, "U8", 1) X(bool, "BOOL", 1) X(float8_e4m3fn, "F8_E4M3", 1) X(float8_e5m2, "F8_E5M2", 1)  \
    X(float8_e8m0fnu, "F8_E8M0", 1) X(float16, "F16", 2) X(bfloat16, "BF16", 2) X(int16, "I16", 2)                     \
    X(uint16, "U16", 2) X(int32, "I32", 4) X(uint32, "U32", 4) X(float32, "F32", 4) X(int64, "I64", 8)                 \
    X(uint64, "U64", 8) X(float64, "F64", 8) X(float4_e2m1fn_x2, "F4", 1)

typedef struct slc_dtype {
    const char *name;
    const char *safetensors;
    int64_t bytes;
    uint8_t code; /* index in the list */
} slc_dtype;

/* NULL where there is none. Static storage: two dtypes are equal when the pointers are. */
const slc_dtype *slc_dtype_find(const char *name);
const slc_dtype *slc_dtype_find_safetensors(const char *name);
const slc_dtype *slc_dtype_by_code(uint8_t code);

#endif
