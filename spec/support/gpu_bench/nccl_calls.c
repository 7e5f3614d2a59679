/* nccl_calls.c: see nccl_calls.h. */
#include "nccl_calls.h"

#include "base/symbol.h"

#include <dlfcn.h>
#include <stddef.h>

bool nccl_calls_find(nccl_calls *calls, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
#define NCCL_CALL_FIND(name) \
    slc_symbol(library, "nccl" #name, &calls->name); \
    if (calls->name == NULL) \
        return false;
    NCCL_CALL_LIST(NCCL_CALL_FIND)
#undef NCCL_CALL_FIND
    return true;
}
