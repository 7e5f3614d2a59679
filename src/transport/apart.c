/* apart.c: see apart.h. Owns the thread, and whatever it left behind. */
#include "transport/apart.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

struct slc_apart {
    void (*run)(void *context);
    void (*release)(void *context);
    void *context;
    pthread_t thread;
    atomic_int users; /* the thread and the caller; whoever leaves last frees it */
    atomic_bool over;
};

static void leave(slc_apart *apart)
{
    if (atomic_fetch_sub(&apart->users, 1) == 1)
        slc_release(apart);
}

/* Of two that want the context, the first gets it. */
static void *work(void *argument)
{
    slc_apart *apart = argument;
    apart->run(apart->context);
    if (atomic_exchange(&apart->over, true))
        apart->release(apart->context);
    leave(apart);
    return NULL;
}

sluice_status slc_apart_start(void (*run)(void *context), void (*release)(void *context), void *context, slc_apart **apart,
                              sluice_error *error)
{
    *apart = NULL;
    slc_apart *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, "runtime", "a thread", sizeof *made);
    made->run = run;
    made->release = release;
    made->context = context;
    atomic_init(&made->users, 2);
    atomic_init(&made->over, false);
    int failed = slc_thread_start(&made->thread, false, work, made);
    if (failed != 0) {
        slc_release(made);
        return slc_fail(error, SLUICE_SYSTEM, "runtime", "starting a thread: %s", strerror(failed));
    }
    *apart = made;
    return SLUICE_OK;
}

bool slc_apart_over(const slc_apart *apart)
{
    return atomic_load(&apart->over);
}

bool slc_apart_end(slc_apart *apart, double seconds)
{
    const struct timespec pause = { .tv_nsec = 1000000 };
    slc_deadline deadline = slc_deadline_in(seconds);
    while (!atomic_load(&apart->over) && !slc_deadline_passed(deadline))
        (void)nanosleep(&pause, NULL);
    bool over = atomic_exchange(&apart->over, true);
    if (over)
        (void)pthread_join(apart->thread, NULL);
    else
        (void)pthread_detach(apart->thread);
    leave(apart);
    return over;
}
