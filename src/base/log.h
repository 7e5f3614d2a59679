/* log.h: where log lines go. The library prints nothing: a line goes to the host's callback or nowhere. */
#ifndef SLC_BASE_LOG_H
#define SLC_BASE_LOG_H

#include "sluice.h"

typedef struct slc_log {
    void (*write)(void *user, sluice_log_level level, const char *text); /* NULL: nowhere */
    void *user;
} slc_log;

/* A line of at most 1 KiB, cut beyond that. `log` may be NULL. Never pass a secret. */
void slc_say(const slc_log *log, sluice_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
