/* report.c: writing of report lines; owns a line's buffer between begin and end. */
#include "cli/report.h"

#include "base/text.h"

#include <string.h>

static void string(slc_buffer *line, const char *value)
{
    const unsigned char *end = (const unsigned char *)value + strlen(value);
    slc_buffer_append(line, "\"", 1);
    for (const unsigned char *at = (const unsigned char *)value; at < end;) {
        size_t length = slc_utf8_length(at, end);
        if (length == 0)
            slc_buffer_append(line, "?", 1);
        else if (*at < 0x20 || *at == '"' || *at == '\\')
            slc_buffer_text(line, "\\u%04x", *at);
        else
            slc_buffer_append(line, at, length);
        at += length == 0 ? 1 : length;
    }
    slc_buffer_append(line, "\"", 1);
}

void slc_report_begin(slc_buffer *line, const char *event)
{
    *line = (slc_buffer){ 0 };
    slc_buffer_text(line, "{\"event\":\"%s\"", event);
}

void slc_report_text(slc_buffer *line, const char *key, const char *value)
{
    slc_buffer_text(line, ",\"%s\":", key);
    string(line, value);
}

void slc_report_count(slc_buffer *line, const char *key, uint64_t value)
{
    slc_buffer_text(line, ",\"%s\":%llu", key, (unsigned long long)value);
}

void slc_report_seconds(slc_buffer *line, const char *key, double value)
{
    slc_buffer_text(line, ",\"%s\":%.9f", key, value);
}

void slc_report_raw(slc_buffer *line, const char *key, const char *json)
{
    slc_buffer_text(line, ",\"%s\":", key);
    for (const char *at = json; *at != 0; at++)
        if (*at != '\n')
            slc_buffer_append(line, at, 1);
}

void slc_report_end(const slc_report *report, slc_buffer *line)
{
    slc_buffer_append(line, "}\n", 2);
    if (!line->failed)
        report->write(report->user, (const char *)line->data, line->length);
    slc_buffer_clear(line);
}

void slc_report_failed(const slc_report *report, const sluice_error *error, int exit_code)
{
    slc_buffer line;
    slc_report_begin(&line, "failed");
    slc_report_text(&line, "status", sluice_status_text(error->status));
    slc_report_count(&line, "code", (uint64_t)error->status);
    slc_report_text(&line, "stage", error->stage);
    slc_report_text(&line, "text", error->text);
    if (error->rank >= 0)
        slc_report_count(&line, "rank", (uint64_t)error->rank);
    slc_report_count(&line, "exit", (uint64_t)exit_code);
    slc_report_end(report, &line);
}
