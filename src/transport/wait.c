/* wait.c: see wait.h. */
#include "transport/wait.h"

#include "base/error.h"

#include <inttypes.h>
#include <poll.h>

sluice_status slc_wait_tick(slc_wait *wait, const char *what, int32_t rank, sluice_error *error)
{
    int64_t now = slc_now_ns();
    if (now >= wait->deadline.at_ns) {
        slc_fail(error, SLUICE_TIMEOUT, wait->stage, "%s rank %" PRId32 " took longer than %g s", what, rank,
                 wait->deadline.seconds);
        if (error != NULL)
            error->rank = rank;
        return SLUICE_TIMEOUT;
    }
    if (now < *wait->next_ns)
        return SLUICE_OK;
    *wait->next_ns = now + SLC_TICK_MS * 1000000;
    return wait->watch.check == NULL ? SLUICE_OK : wait->watch.check(wait->watch.context, error);
}

sluice_status slc_wait_reason(slc_wait *wait, sluice_error *error)
{
    enum { LONGEST_MS = 1000 };
    sluice_status status = SLUICE_OK;
    for (int ms = 0; status == SLUICE_OK && wait->watch.check != NULL && ms < LONGEST_MS; ms += SLC_TICK_MS) {
        status = wait->watch.check(wait->watch.context, error);
        if (status == SLUICE_OK)
            (void)poll(NULL, 0, SLC_TICK_MS);
    }
    return status;
}

slc_wait slc_wait_sooner(const slc_wait *wait)
{
    const double least = 0.5, part = 0.1;
    double seconds = wait->deadline.seconds * part < least ? wait->deadline.seconds * part : least;
    slc_wait own = *wait;
    own.deadline.at_ns -= (int64_t)(seconds * 1e9);
    return own;
}
