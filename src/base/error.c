/* error.c: formatting of errors; owns nothing. */
#include "base/error.h"

#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *sluice_status_text(sluice_status status)
{
    switch (status) {
#define TEXT_CASE(name, number, text) \
    case SLUICE_##name: return text;
        SLUICE_STATUS_LIST(TEXT_CASE)
#undef TEXT_CASE
    }
    return "unknown status";
}

static void fill(sluice_error *error, sluice_status status, const char *stage, const char *format, va_list arguments)
{
    error->status = status;
    error->rank = -1;
    snprintf(error->stage, sizeof error->stage, "%s", stage);
    int head = snprintf(error->text, sizeof error->text, "%s: ", stage);
    size_t used = head < 0 ? 0 : (size_t)head < sizeof error->text ? (size_t)head : sizeof error->text - 1;
    vsnprintf(error->text + used, sizeof error->text - used, format, arguments);
    slc_text_tame(error->text); /* names, paths and what callbacks say may hold any byte */
}

sluice_status slc_fail(sluice_error *error, sluice_status status, const char *stage, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, stage, format, arguments);
        va_end(arguments);
    }
    return status;
}

sluice_status slc_fail_errno(sluice_error *error, int errno_value, const char *stage, const char *format, ...)
{
    sluice_status status = errno_value == ENOMEM ? SLUICE_NO_MEMORY : errno_value == ETIMEDOUT ? SLUICE_TIMEOUT : SLUICE_SYSTEM;
    if (error == NULL)
        return status;
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, stage, format, arguments);
    va_end(arguments);
    char reason[128];
    const char *text = strerror_r(errno_value, reason, sizeof reason); /* GNU form: may point elsewhere */
    size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof error->text - used, ": %s", text);
    return status;
}

sluice_status slc_fail_memory(sluice_error *error, const char *stage, const char *what, size_t bytes)
{
    return slc_fail(error, SLUICE_NO_MEMORY, stage, "out of memory for %s (%zu bytes wanted)", what, bytes);
}

sluice_status slc_error_copy(sluice_error *to, const sluice_error *from)
{
    if (from == NULL)
        return SLUICE_INTERNAL;
    if (to != NULL) {
        to->status = from->status;
        to->rank = from->rank;
        memcpy(to->stage, from->stage, sizeof to->stage);
        memcpy(to->text, from->text, sizeof to->text);
    }
    return from->status;
}
