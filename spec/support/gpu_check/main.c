/*
 * main.c: gpu_check: one case between two GPUs (or on one), for scripts/check-gpu. Prints one JSON object.
 *
 *     gpu_check [--memory alloc|vmm|pieces|nccl] [--how names|replay|place] [--road link|wire] [--stream] [--full] [--moves]
 *               [--no-sm] [--kill 0|1] [--updates N] [--gpus T,W] [--nccl FILE] [--timeout S]
 *     gpu_check --spoil                 a word is overwritten before it is compared, for a spec of the check
 *
 * Exit: 0 every byte was as it must be, 1 a fault, 2 wrong arguments, 3 this cannot run here.
 */
#include "check.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const memory_names[MEMORY_KINDS] = { "alloc", "vmm", "pieces", "nccl" };
static const char *const how_names[HOWS] = { "names", "replay", "place" };

static board *everything;
static int own = -1; /* rank of this process */

void leave(int code, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int nobody = 0;
    if (own >= 0) {
        (void)atomic_compare_exchange_strong(&everything->blamed, &nobody, own + 1);
        snprintf(everything->text[own], sizeof everything->text[0], "%s", text);
    } else
        fprintf(stderr, "gpu_check: %s\n", text);
    _exit(code);
}

/* ---- processes ---- */

static int listener(int *port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        leave(1, "a listening socket: %s", strerror(errno));
    *port = ntohs(address.sin_port);
    return fd;
}

static pid_t start(const ask *asked, int rank, int life)
{
    enum { LONGEST_S = 240 };
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    own = rank;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LONGEST_S);
    rank_live(asked, everything, rank, life);
}

static void kill_when_stuck(const ask *asked, pid_t pid[RANKS])
{
    const struct timespec pause = { .tv_nsec = 10000000 }, moment = { .tv_nsec = 300000000 };
    siginfo_t ended = { .si_pid = 0 };
    while (!everything->stuck && ended.si_pid == 0 && waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0)
        (void)nanosleep(&pause, NULL);
    if (!everything->stuck)
        return;
    (void)nanosleep(&moment, NULL); /* it is in the middle by then */
    kill(pid[asked->kill], SIGKILL);
    (void)waitpid(pid[asked->kill], NULL, 0);
    pid[asked->kill] = start(asked, asked->kill, 1);
}

/* A rank whose partner failed hears of it, and says so, in a moment; one that does not must not wait for its deadline. */
static void give_notice(pid_t pid)
{
    const struct timespec pause = { .tv_nsec = 10000000 };
    siginfo_t ended = { .si_pid = 0 };
    for (int i = 0; i < 300 && waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0; i++)
        (void)nanosleep(&pause, NULL);
    kill(pid, SIGKILL);
}

/* What a rank failed with ends the other. */
static int await_both(const pid_t pid[RANKS])
{
    int code = 0;
    for (int i = 0; i < RANKS; i++) {
        int status;
        pid_t ended = wait(&status);
        int rank = ended == pid[WORKER];
        if (ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
            continue;
        if (WIFEXITED(status) && (code == 0 || everything->blamed == rank + 1))
            code = WEXITSTATUS(status);
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
            code = 1;
            everything->blamed = rank + 1;
            snprintf(everything->text[rank], sizeof everything->text[0], "ended by signal %d", WTERMSIG(status));
        }
        if (i == 0)
            give_notice(pid[1 - rank]);
    }
    return code;
}

/* ---- the answer ---- */

static void print_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar((unsigned char)*text < ' ' ? ' ' : *text);
    putchar('"');
}

static void print_answer(int code, double seconds)
{
    const board *b = everything;
    int rank = b->blamed > 0 ? b->blamed - 1 : WORKER;
    printf("{\"code\":%d,\"seconds\":%.3f,\"roads\":%s,\"late\":[%d,%d],\"compared\":%llu", code, seconds, b->roads[0] != '\0' ? b->roads : "{}",
           b->late[TRAINER], b->late[WORKER], (unsigned long long)b->compared[WORKER]);
    if (b->survived[0] != '\0') {
        printf(",\"survived\":");
        print_text(b->survived);
    }
    if (code != 0) {
        printf(",\"rank\":%d,\"why\":", rank);
        print_text(b->text[rank]);
    }
    printf("}\n");
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int run(const ask *asked)
{
    pid_t pid[RANKS];
    double began = now_s();
    everything = mmap(NULL, sizeof *everything, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (everything == MAP_FAILED)
        leave(1, "mmap: %s", strerror(errno));
    for (int life = 0; life < LIVES_IN_TURN; life++) {
        int port;
        everything->listen_fd[life] = listener(&port);
        everything->init_info[life] = rank_init_info(asked, port);
    }
    for (int rank = 0; rank < RANKS; rank++)
        pid[rank] = start(asked, rank, 0);
    if (asked->kill >= 0)
        kill_when_stuck(asked, pid);
    int code = await_both(pid);
    print_answer(code, now_s() - began);
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
