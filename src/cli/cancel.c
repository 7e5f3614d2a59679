/* cancel.c: owns the waiting thread and its two descriptors. */
#include "cli/cancel.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/error.h"
#include "base/flag.h"

static void *wait_for_signals(void *user)
{
    slc_cancel *cancel = user;
    int seen[2][2] = { 0 };
    for (;;) {
        struct pollfd on[2] = { { .fd = cancel->signals, .events = POLLIN }, { .fd = cancel->stop, .events = POLLIN } };
        if (poll(on, 2, -1) < 0)
            continue;
        if (on[1].revents != 0)
            return NULL;
        struct signalfd_siginfo got;
        if (on[0].revents == 0 || read(cancel->signals, &got, sizeof got) != (ssize_t)sizeof got)
            continue;
        if (++seen[got.ssi_signo == SIGTERM][got.ssi_pid == (uint32_t)getppid()] > 1)
            _exit(130);
        slc_flag_set(&cancel->cancelled, true);
        sluice_cancel(cancel->engine);
    }
}

sluice_status slc_cancel_begin(slc_cancel *cancel, sluice_engine *engine, sluice_error *error)
{
    *cancel = (slc_cancel){ .engine = engine, .stop = -1, .signals = -1 };
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    int failed = pthread_sigmask(SIG_BLOCK, &both, NULL);
    cancel->signals = signalfd(-1, &both, SFD_CLOEXEC);
    cancel->stop = eventfd(0, EFD_CLOEXEC);
    if (failed == 0 && (cancel->signals < 0 || cancel->stop < 0))
        failed = errno;
    if (failed == 0)
        failed = pthread_create(&cancel->thread, NULL, wait_for_signals, cancel);
    if (failed == 0)
        return SLUICE_OK;
    if (cancel->signals >= 0)
        close(cancel->signals);
    if (cancel->stop >= 0)
        close(cancel->stop);
    cancel->engine = NULL;
    return slc_fail_errno(error, failed, "rank", "cannot wait for signals");
}

void slc_cancel_end(slc_cancel *cancel)
{
    if (cancel->engine == NULL)
        return;
    uint64_t one = 1;
    while (write(cancel->stop, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    pthread_join(cancel->thread, NULL);
    close(cancel->signals);
    close(cancel->stop);
    cancel->engine = NULL;
}
