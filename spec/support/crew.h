/*
 * crew.h: the processes of a program that moves tensors between GPUs: they start, meet, and end together. The first that fails
 * says why and ends the others. A crew lies in memory that all of them share; a process is in one crew at most.
 */
#ifndef SPEC_SUPPORT_CREW_H
#define SPEC_SUPPORT_CREW_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CREW_MOST = 256, CREW_TEXT = 1024 };

typedef struct crew {
    _Atomic uint32_t arrived, turn;
    _Atomic int step;   /* raised as the work goes on, where the clock of crew_await is to begin anew */
    _Atomic int blamed; /* 1 + the process that failed first: others may only have heard of it; 0: none, or the clock */
    char why[CREW_TEXT]; /* one line */
} crew;

/* Zeroes that all processes to come share. */
void *crew_memory(size_t bytes);
/* A socket of the loopback interface that listens, and its port. */
int crew_listen(int *port);

/* As fork: in the new process, which is the crew's `number`-th and ends with its parent, 0. */
pid_t crew_start(crew *c, int number);
/* All `count` processes, or threads of them, come here before any goes on. */
void crew_meet(crew *c, int count);
/*
 * Waits for the end of all. Where one fails, the others have `notice_s` more to hear of it; where no step comes for `longest_s`,
 * all are ended. 0: each ended well; else the exit status of the one to blame, 1 for a signal or the clock, and why.
 */
int crew_await(crew *c, const pid_t *pid, int count, double longest_s, double notice_s);

/* Ends the process; in a crew the parent gets to know why, elsewhere standard error. `die` is `leave` with 1. */
__attribute__((noreturn, format(printf, 2, 3))) void leave(int code, const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
void *need(void *block); /* dies of NULL */

#endif
