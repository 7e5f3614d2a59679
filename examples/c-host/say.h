/* say.h: how these programs speak of what they do, and end where they cannot go on. */
#ifndef SAY_H
#define SAY_H

#include <stddef.h>

/* A line on standard error, with the program's name in front; `die` then exits with status 1. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Seconds of a clock that only goes forward. */
double now(void);
void *must_allocate(size_t count, size_t size); /* zeroed */

#endif
