/* available.h: how much memory this process could still have. */
#ifndef SLC_BASE_AVAILABLE_H
#define SLC_BASE_AVAILABLE_H

#include <stdint.h>

/* In bytes: what the machine has left without swapping, or less where the control group allows less; INT64_MAX where neither says. */
int64_t slc_memory_available(void);

#endif
