/* flag.h: a flag that one thread raises and others look at, such as a cancel. Orders nothing else in memory. */
#ifndef SLC_BASE_FLAG_H
#define SLC_BASE_FLAG_H

#include <stdbool.h>
#include <stddef.h>

/* NULL counts as a flag that is never raised. */
static inline bool slc_flag_raised(const volatile bool *flag) { return flag != NULL && __atomic_load_n(flag, __ATOMIC_RELAXED); }
static inline void slc_flag_set(volatile bool *flag, bool raised) { __atomic_store_n(flag, raised, __ATOMIC_RELAXED); }

#endif
