/* text.h: composing long messages within a fixed room and without the heap, so that an error can always be said. */
#ifndef SLC_CONTROL_TEXT_H
#define SLC_CONTROL_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A terminated text that grows in place; what does not fit is cut at a whole UTF-8 character. */
typedef struct slc_line {
    char *text;
    size_t room, length; /* room counts the terminator */
} slc_line;

/* An empty line in `room` bytes, at least 1, of the caller's. */
slc_line slc_line_in(char *text, size_t room);
/* Appends as printf does. */
void slc_line_add(slc_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* At most `longest` bytes of a text, with "..." in place of the rest. */
void slc_line_add_cut(slc_line *line, const char *text, size_t length, size_t longest);
size_t slc_line_left(const slc_line *line);

/* "rank 3", "ranks 2-5, 7", "ranks 1, 3, 5 and 997 more": ascending ranks in at most about `longest` bytes. */
void slc_line_add_ranks(slc_line *line, const int32_t *rank, size_t count, size_t longest);

/* What one rank says, for a list that says equal things once. */
typedef struct slc_saying {
    int32_t rank;
    const void *key; /* equal keys are one group */
    size_t length;
} slc_saying;

/* Writes a key within `longest` bytes. */
typedef void (*slc_show)(slc_line *line, const slc_saying *saying, size_t longest);

/*
 * "rank 3: <text>; ranks 5-7, 9: <text>" in the order of each group's lowest rank; what does not fit ends as
 * "; and 12 more of 300 ranks". Reorders `saying`.
 */
void slc_line_add_sayings(slc_line *line, slc_saying *saying, size_t count, slc_show show);

void slc_show_text(slc_line *line, const slc_saying *saying, size_t longest);   /* the key as it stands */
void slc_show_quoted(slc_line *line, const slc_saying *saying, size_t longest); /* in quotes; bytes that are no text as their number and digest */

#endif
