/* log.c: see log.h. */
#include "base/log.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

void slc_say(const slc_log *log, sluice_log_level level, const char *format, ...)
{
    if (log == NULL || log->write == NULL)
        return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    slc_text_tame(line);
    log->write(log->user, level, line);
}
