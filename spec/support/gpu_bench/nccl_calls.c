/* nccl_calls.c: see nccl_calls.h. */
#include "nccl_calls.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

bool nccl_calls_find(nccl_calls *calls, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
#define NCCL_CALL_FIND(name) \
    symbol = library == NULL ? NULL : dlsym(library, "nccl" #name); \
    if (symbol == NULL) \
        return false; \
    memcpy(&calls->name, &symbol, sizeof symbol);
    NCCL_CALL_LIST(NCCL_CALL_FIND)
#undef NCCL_CALL_FIND
    return true;
}
