/* crew.c: see crew.h. Owns which process of which crew this one is. */
#include "crew.h"

#include "base/clock.h"
#include "driver.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static crew *own_crew;
static int own_number;

static bool take_blame(crew *c, int number)
{
    int nobody = 0;
    return atomic_compare_exchange_strong(&c->blamed, &nobody, number + 1);
}

static _Noreturn void leave_with(int code, const char *format, va_list arguments)
{
    char text[CREW_TEXT];
    vsnprintf(text, sizeof text, format, arguments);
    for (char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ')
            *at = ' ';
    if (own_crew == NULL)
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
    else if (take_blame(own_crew, own_number))
        memcpy(own_crew->why, text, sizeof text);
    _exit(code);
}

void leave(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    leave_with(code, format, arguments);
}

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    leave_with(1, format, arguments);
}

void *need(void *block)
{
    if (block == NULL)
        die("out of memory");
    return block;
}

void *crew_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap: %s", strerror(errno));
    return memory;
}

int crew_listen(int *port)
{
    int fd = listen_at(INADDR_LOOPBACK, port);
    if (fd < 0)
        die("a listening socket: %s", strerror(errno));
    return fd;
}

pid_t crew_start(crew *c, int number)
{
    fflush(stdout); /* what waits there is not the new process' to say */
    pid_t pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0) {
        own_crew = c;
        own_number = number;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

void crew_meet(crew *c, int count)
{
    uint32_t turn = c->turn;
    if (++c->arrived == (uint32_t)count) {
        c->arrived = 0;
        c->turn = turn + 1;
        return;
    }
    for (unsigned tries = 0; c->turn == turn; tries++)
        if (tries > 2000) /* the others may have only this processor */
            (void)sched_yield();
}

/* ---- the end ---- */

struct wake {
    crew *crew;
    const pid_t *pid;
    int count, left, code;
    bool gone[CREW_MOST], signalled, ending;
};

/* Of a process that was ended from without, others have heard; of one that ended itself, they may have told why before it did. */
static void judge(struct wake *w, int number, int status)
{
    crew *c = w->crew;
    w->gone[number] = true;
    w->left--;
    if (WIFSIGNALED(status) && !w->signalled && !w->ending) {
        w->signalled = true;
        w->code = 1;
        c->blamed = number + 1;
        snprintf(c->why, sizeof c->why, "ended by signal %d", WTERMSIG(status));
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || w->signalled)
        return;
    if (!w->ending && take_blame(c, number))
        snprintf(c->why, sizeof c->why, "ended with status %d", WEXITSTATUS(status));
    if (w->code == 0 || c->blamed == number + 1)
        w->code = WEXITSTATUS(status);
}

static void end_all(struct wake *w)
{
    w->ending = true;
    for (int i = 0; i < w->count; i++)
        if (!w->gone[i])
            kill(w->pid[i], SIGKILL);
}

int crew_await(crew *c, const pid_t *pid, int count, double longest_s, double notice_s)
{
    const struct timespec pause = { .tv_nsec = 2000000 };
    struct wake w = { .crew = c, .pid = pid, .count = count, .left = count };
    double since = slc_now_s(), failed = 0;
    for (int step = c->step; w.left > 0;) {
        int status, number = 0;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        while (ended > 0 && number < count && pid[number] != ended)
            number++;
        if (ended > 0 && number < count)
            judge(&w, number, status);
        double now = slc_now_s();
        if (c->step != step) {
            step = c->step;
            since = now;
        }
        if (w.code == 0 && now - since > longest_s) {
            w.code = 1;
            snprintf(c->why, sizeof c->why, "no end within %g s", longest_s);
            end_all(&w);
        }
        failed = w.code != 0 && failed == 0 ? now : failed;
        if (w.code != 0 && !w.ending && now - failed >= notice_s)
            end_all(&w);
        if (ended <= 0)
            (void)nanosleep(&pause, NULL);
    }
    return w.code;
}
