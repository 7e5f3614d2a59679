/* faults_injure.c: see faults.h. */
#include "faults.h"

#include "base/memory.h"
#include "control/frame.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

void sleep_s(double seconds)
{
    double until = now_s() + seconds;
    while (now_s() < until)
        usleep(2000);
}

static uint16_t own_port(const case_board *shared, int rank)
{
    return rank == 0 ? shared->port : shared->victims_port;
}

static void send_to_all(const case_board *shared, int rank, const void *bytes, size_t length)
{
    int fd[RANKS];
    size_t count = control_sockets(own_port(shared, rank), fd, RANKS);
    for (size_t i = 0; i < count; i++)
        (void)!send(fd[i], bytes, length, MSG_NOSIGNAL);
}

static void cut(const case_board *shared, int rank)
{
    int fd[RANKS];
    size_t count = control_sockets(own_port(shared, rank), fd, RANKS);
    for (size_t i = 0; i < count; i++)
        shutdown(fd[i], SHUT_RDWR);
}

/* A header that promises more than comes; what the rank says next is taken for the rest. */
static void send_half(const case_board *shared, int rank)
{
    unsigned char bytes[SLC_FRAME_HEADER + 10] = { 0 };
    slc_frame_header header = { .version = SLC_PROTOCOL_VERSION, .type = SLC_FRAME_ABORT, .length = 60 };
    slc_frame_encode(&header, bytes);
    send_to_all(shared, rank, bytes, sizeof bytes);
}

static void send_garbage(const case_board *shared, int rank)
{
    unsigned char bytes[200];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37 + 11);
    send_to_all(shared, rank, bytes, sizeof bytes);
}

static void leave_relay(case_board *shared)
{
    atomic_store(&shared->relay, 1);
    while (atomic_load(&shared->relay) != 2)
        usleep(500);
}

static volatile bool leaves;

/*
 * Asked by the leak checker when a process ends. One that exits in the middle of a call leaves to the system what it holds, and
 * a report would keep it, and so its connections, alive for seconds.
 */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return leaves;
}

static _Noreturn void leave(void)
{
    leaves = true;
    exit(0);
}

void injure(case_board *shared, int rank)
{
    const case_plan *plan = &shared->plan;
    if (atomic_load(&shared->done) != 0)
        return;
    shared->fault_at = now_s();
    atomic_store(&shared->done, 1);
    switch (plan->fault) {
    case FAULT_KILL: kill(getpid(), SIGKILL); break;
    case FAULT_STOP: kill(getpid(), SIGSTOP); break;
    case FAULT_EXIT: leave();
    case FAULT_CUT: cut(shared, rank); break;
    case FAULT_RELAY: leave_relay(shared); break;
    case FAULT_NAMESPACE: network_cut(); break;
    case FAULT_TRUNCATED: send_half(shared, rank); break;
    case FAULT_GARBAGE: send_garbage(shared, rank); break;
    case FAULT_DELAY: sleep_s(plan->delay); break;
    case FAULT_LATE: sleep_s(2 * (plan->phase == PHASE_CONNECT ? plan->connect : plan->phase_deadline)); break;
    case FAULT_ALLOCATION: slc_fail_allocation(1, false); break;
    case FAULT_CALLBACK:
    case FAULT_DISAGREE:
    case FAULT_NONE: break; /* done by what the callback returns and by other input */
    }
}
