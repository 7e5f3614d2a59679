/*
 * main.c: gpu_check: one case between two GPUs (or on one), for scripts/check-gpu. Prints one JSON object.
 *
 *     gpu_check [--memory alloc|vmm|pieces|nccl] [--how names|replay|place] [--road link|wire] [--stream] [--full] [--moves]
 *               [--no-sm] [--kill 0|1] [--updates N] [--gpus T,W] [--nccl FILE] [--timeout S]
 *     gpu_check --spoil                 a word is overwritten before it is compared, for a spec of the check
 *
 * Exit: 0 every byte was as it must be, 1 a fault, 2 wrong arguments, 3 this cannot run here.
 */
#include "base/clock.h"
#include "check.h"
#include "driver.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

static const char *const memory_names[MEMORY_KINDS] = { "alloc", "vmm", "pieces", "nccl" };
static const char *const how_names[HOWS] = { "names", "replay", "place" };

enum { LONGEST_S = 240, NOTICE_S = 3 }; /* a rank whose partner failed hears of it, and says so, in a moment */

/* ---- processes ---- */

static pid_t start(const ask *asked, board *shared, int rank, int life)
{
    pid_t pid = crew_start(&shared->crew, rank);
    if (pid == 0)
        rank_live(asked, shared, rank, life);
    return pid;
}

static void kill_when_stuck(const ask *asked, board *shared, pid_t pid[RANKS])
{
    const struct timespec pause = { .tv_nsec = 10000000 }, moment = { .tv_nsec = 300000000 };
    slc_deadline deadline = slc_deadline_in(LONGEST_S);
    siginfo_t ended = { .si_pid = 0 };
    while (!shared->stuck && !slc_deadline_passed(deadline) && ended.si_pid == 0 &&
           waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0)
        (void)nanosleep(&pause, NULL);
    if (!shared->stuck)
        return;
    (void)nanosleep(&moment, NULL); /* it is in the middle by then */
    kill(pid[asked->kill], SIGKILL);
    (void)waitpid(pid[asked->kill], NULL, 0);
    pid[asked->kill] = start(asked, shared, asked->kill, 1);
}

/* ---- the answer ---- */

static void print_answer(const board *b, int code, double seconds)
{
    printf("{\"code\":%d,\"seconds\":%.3f,\"roads\":%s,\"late\":[%d,%d],\"compared\":%llu", code, seconds, b->roads[0] != '\0' ? b->roads : "{}",
           b->late[TRAINER], b->late[WORKER], (unsigned long long)b->compared[WORKER]);
    if (b->survived[0] != '\0') {
        printf(",\"survived\":");
        print_text(b->survived, strlen(b->survived));
    }
    if (code != 0) {
        printf(",\"rank\":%d,\"why\":", b->crew.blamed > 0 ? b->crew.blamed - 1 : WORKER);
        print_text(b->crew.why, strlen(b->crew.why));
    }
    printf("}\n");
}

static int run(const ask *asked)
{
    pid_t pid[RANKS];
    double began = slc_now_s();
    board *shared = crew_memory(sizeof *shared);
    for (int life = 0; life < LIVES_IN_TURN; life++) {
        int port;
        shared->listen_fd[life] = crew_listen(&port);
        shared->init_info[life] = rank_init_info(asked, port);
    }
    for (int rank = 0; rank < RANKS; rank++)
        pid[rank] = start(asked, shared, rank, 0);
    if (asked->kill >= 0)
        kill_when_stuck(asked, shared, pid);
    int code = crew_await(&shared->crew, pid, RANKS, LONGEST_S, NOTICE_S);
    print_answer(shared, code, slc_now_s() - began);
    return code;
}

/* ---- arguments ---- */

static int number_of(const char *const *names, int count, const char *name)
{
    int at = 0;
    while (at < count && strcmp(names[at], name) != 0)
        at++;
    if (at == count)
        leave(2, "%s is none of the words that may stand there; scripts/check-gpu --help tells more", name);
    return at;
}

static bool take_flag(ask *asked, const char *key)
{
    if (strcmp(key, "--stream") == 0)
        asked->stream = true;
    else if (strcmp(key, "--full") == 0)
        asked->full = true;
    else if (strcmp(key, "--moves") == 0)
        asked->moves = true;
    else if (strcmp(key, "--no-sm") == 0)
        asked->no_sm = true;
    else if (strcmp(key, "--spoil") == 0)
        asked->spoils = true;
    else
        return false;
    return true;
}

static void take(ask *asked, const char *key, const char *text)
{
    if (text == NULL)
        leave(2, "%s is unknown, or wants a value", key);
    if (strcmp(key, "--memory") == 0)
        asked->memory = (memory_kind)number_of(memory_names, MEMORY_KINDS, text);
    else if (strcmp(key, "--how") == 0)
        asked->how = (ask_how)number_of(how_names, HOWS, text);
    else if (strcmp(key, "--road") == 0)
        asked->road = text;
    else if (strcmp(key, "--nccl") == 0)
        asked->nccl = text;
    else if (strcmp(key, "--kill") == 0 && (strcmp(text, "0") == 0 || strcmp(text, "1") == 0))
        asked->kill = text[0] - '0';
    else if (strcmp(key, "--updates") == 0 && atoi(text) > 0)
        asked->updates = atoi(text);
    else if (strcmp(key, "--timeout") == 0 && atof(text) > 0)
        asked->timeout_s = atof(text);
    else if (strcmp(key, "--gpus") != 0 || sscanf(text, "%d,%d", &asked->gpu[TRAINER], &asked->gpu[WORKER]) != RANKS)
        leave(2, "%s %s is unknown or wrong", key, text);
}

int main(int argc, char **argv)
{
    ask asked = { .kill = -1, .updates = 4, .gpu = { 0, 1 }, .nccl = "libnccl.so.2", .timeout_s = 60 };
    for (int i = 1; i < argc; i++) {
        if (take_flag(&asked, argv[i]))
            continue;
        take(&asked, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        i++;
    }
    if (asked.kill >= 0 && (!asked.stream || asked.updates < 2))
        leave(2, "--kill wants --stream, on which the victim is kept, and two updates");
    return run(&asked);
}
