/* symbol.c: see symbol.h. Owns nothing. */
#include "base/symbol.h"

#include "base/error.h"

#include <dlfcn.h>
#include <string.h>

/* By way of memcpy: C has no cast from an object's address to a function's. */
void slc_symbol(void *library, const char *name, void *function)
{
    void *symbol = library == NULL ? NULL : dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
}

sluice_status slc_symbol_need(void *library, const char *file, const char *name, void *function, sluice_error *error)
{
    static void (*const none)(void) = NULL;
    slc_symbol(library, name, function);
    return memcmp(function, &none, sizeof none) != 0 ? SLUICE_OK
                                                     : slc_fail(error, SLUICE_UNSUPPORTED, "runtime", "%s has no %s", file, name);
}
