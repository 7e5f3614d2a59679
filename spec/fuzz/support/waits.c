/*
 * waits.c: no wait takes time. Where epoll_wait would wait, the monotonic clock goes on by as much instead, so that deadlines
 * pass at once and the same input does the same on a busy machine. The linker puts these in place (--wrap in CMakeLists.txt).
 */
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

static int64_t skipped_ms;

int __real_epoll_wait(int poller, struct epoll_event *events, int most, int wait_ms);
int __wrap_epoll_wait(int poller, struct epoll_event *events, int most, int wait_ms);
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_epoll_wait(int poller, struct epoll_event *events, int most, int wait_ms)
{
    int count = __real_epoll_wait(poller, events, most, 0);
    if (count == 0 && wait_ms > 0)
        skipped_ms += wait_ms;
    return count;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int status = __real_clock_gettime(clock, now);
    if (clock == CLOCK_MONOTONIC)
        now->tv_sec += skipped_ms / 1000, now->tv_nsec += skipped_ms % 1000 * 1000000;
    if (now->tv_nsec >= 1000000000)
        now->tv_sec++, now->tv_nsec -= 1000000000;
    return status;
}
