/* clock.h: monotonic time and deadlines. A deadline is a point on the monotonic clock, in nanoseconds. */
#ifndef SLC_BASE_CLOCK_H
#define SLC_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct slc_deadline {
    int64_t at_ns;
    double seconds; /* how long it was when it was set, for messages */
} slc_deadline;

/* The monotonic clock, in nanoseconds and in seconds. */
int64_t slc_now_ns(void);
double slc_now_s(void);
slc_deadline slc_deadline_in(double seconds);      /* negative and NaN count as 0; at most ten years */
bool slc_deadline_passed(slc_deadline deadline);
int slc_deadline_poll_ms(slc_deadline deadline, int longest_ms); /* for poll(2): what is left, rounded up, at most longest_ms, at least 0 */
slc_deadline slc_deadline_sooner(slc_deadline a, slc_deadline b);

#endif
