/* symbol.h: what a library that was opened while the process ran has by a name. */
#ifndef SLC_BASE_SYMBOL_H
#define SLC_BASE_SYMBOL_H

#include "sluice.h"

/* `function` is a pointer to a pointer to a function: set, or NULL where the library (NULL: there is none) has no such name. */
void slc_symbol(void *library, const char *name, void *function);

/* The same where it must be there: else UNSUPPORTED, with `file`, the library as people know it. */
sluice_status slc_symbol_need(void *library, const char *file, const char *name, void *function, sluice_error *error);

#endif
