/*
 * report.h: what a rank tells whoever started it: one JSON object a line, with "event" and whatever belongs to it.
 *
 *   prepared  update (0), seconds, bytes                    filled    update, seconds, bytes
 *   waiting   update (0: before init)                       ready     seconds, plan (of the first worker only)
 *   progress  update, done, total                           updated   update, from, to (monotonic clock), moving (seconds in
 *                                                                     its batches), bytes, full
 *   verified  update, seconds, bytes                        log       level, text
 *   saved     update, seconds, bytes
 *   failed    status, code, stage, text, rank, exit         done
 *   alive     nothing; at least every second under `sluice run`
 */
#ifndef SLC_CLI_REPORT_H
#define SLC_CLI_REPORT_H

#include "base/memory.h"
#include "sluice.h"

/* Where lines go. `write` gets one whole line with its newline and may be called from two threads. */
typedef struct slc_report {
    void (*write)(void *user, const char *line, size_t length);
    void *user;
    bool progress; /* whether it wants progress events, which come from the thread that moves bytes */
    int go;        /* a descriptor that gives one byte when all ranks wait and may go on; -1: they do not wait for each other */
} slc_report;

/* Opens a line: {"event":"<name>". */
void slc_report_begin(slc_buffer *line, const char *event);
void slc_report_text(slc_buffer *line, const char *key, const char *value); /* bytes that are no UTF-8 become '?' */
void slc_report_count(slc_buffer *line, const char *key, uint64_t value);
void slc_report_seconds(slc_buffer *line, const char *key, double value);
void slc_report_raw(slc_buffer *line, const char *key, const char *json);
/* Closes, writes and clears the line. */
void slc_report_end(const slc_report *report, slc_buffer *line);

/* The event failed, whole. */
void slc_report_failed(const slc_report *report, const sluice_error *error, int exit_code);

#endif
