/* clock.c: see clock.h. */
#include "base/clock.h"

#include <time.h>

static const double TEN_YEARS = 3.2e8;

int64_t slc_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double slc_now_s(void)
{
    return (double)slc_now_ns() * 1e-9;
}

slc_deadline slc_deadline_in(double seconds)
{
    if (!(seconds > 0))
        seconds = 0;
    if (seconds > TEN_YEARS)
        seconds = TEN_YEARS;
    return (slc_deadline){ .at_ns = slc_now_ns() + (int64_t)(seconds * 1e9), .seconds = seconds };
}

bool slc_deadline_passed(slc_deadline deadline)
{
    return slc_now_ns() >= deadline.at_ns;
}

int slc_deadline_poll_ms(slc_deadline deadline, int longest_ms)
{
    int64_t left = deadline.at_ns - slc_now_ns();
    if (left <= 0)
        return 0;
    int64_t ms = (left + 999999) / 1000000;
    return ms > longest_ms ? longest_ms : (int)ms;
}

slc_deadline slc_deadline_sooner(slc_deadline a, slc_deadline b)
{
    return a.at_ns <= b.at_ns ? a : b;
}
