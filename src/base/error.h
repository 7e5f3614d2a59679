/* error.h: how a failure is said. Every message reads "stage: where (what was found) the rule". */
#ifndef SLC_BASE_ERROR_H
#define SLC_BASE_ERROR_H

#include "sluice.h"

/*
 * Fills *error (which may be NULL) and returns `status`. `stage` goes in front of the text and into error->stage, both cut
 * to fit and always terminated; error->rank becomes -1. The text is tamed (text.h). The format must not be NULL.
 */
sluice_status slc_fail(sluice_error *error, sluice_status status, const char *stage, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same with the errno text appended as ": <text>". status is SLUICE_SYSTEM, or NO_MEMORY for ENOMEM, TIMEOUT for ETIMEDOUT. */
sluice_status slc_fail_errno(sluice_error *error, int errno_value, const char *stage, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Out of memory while making `what` of `bytes` bytes. */
sluice_status slc_fail_memory(sluice_error *error, const char *stage, const char *what, size_t bytes);

/* Copies a whole error; either may be NULL. Returns from->status (SLUICE_INTERNAL where from is NULL). */
sluice_status slc_error_copy(sluice_error *to, const sluice_error *from);

#endif
