/*
 * faults_crowd.c: see faults.h. How long init takes many ranks of one machine, and how long beside strangers: who say nothing,
 * say garbage, stop in the middle of a frame, only knock, or speak another protocol. One line of JSON.
 */
#include "faults.h"

#include "control/frame.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FLOODS = 4, HELD = 60, KINDS = 5 };

typedef struct crowd {
    int ranks;
    bool secure;
    long wanted; /* connections of strangers before the last rank comes */
    uint16_t port;
    atomic_long connections;
    atomic_int last_may_come, ready, failed, over;
    double last_came_at, ready_at;
    char text[TEXT];
} crowd;

static crowd *all;

static sluice_status pull_nothing(void *user, sluice_weights *weights, sluice_error *error)
{
    (void)user;
    (void)weights;
    (void)error;
    return SLUICE_INTERNAL; /* init alone is measured: no update comes */
}

static sluice_status init_once(int rank, sluice_engine **engine, model *own, sluice_error *error)
{
    int end[2], trainers = all->ranks / 2;
    sluice_options options = SLUICE_OPTIONS_INIT;
    options.rank = rank;
    options.timeout_s = 60;
    options.callbacks.load_weights = pull_nothing;
    static const char key[] = "a key for a crowd of ranks, long enough";
    if (all->secure && pipe(end) == 0 && write(end[1], key, sizeof key) == (ssize_t)sizeof key && close(end[1]) == 0)
        options.key_fd = end[0];
    char *info = NULL;
    sluice_status status = sluice_engine_create(&options, engine, error);
    *own = (model){ .rank = rank, .trainers = trainers, .workers = all->ranks - trainers };
    if (status == SLUICE_OK)
        status = model_own(own, *engine, false, 1, error);
    if (status == SLUICE_OK)
        status = model_info("127.0.0.1", all->port, own->trainers, own->workers, false, &info, error);
    if (rank == all->ranks - 1)
        all->last_came_at = now_s();
    if (status == SLUICE_OK)
        status = sluice_init(*engine, info, strlen(info), error);
    sluice_free(info);
    return status;
}

static _Noreturn void join_crowd(int rank)
{
    sluice_engine *engine = NULL;
    sluice_error error = SLUICE_ERROR_INIT;
    model own = { 0 };
    while (rank == all->ranks - 1 && atomic_load(&all->last_may_come) == 0)
        usleep(500);
    sluice_status status = init_once(rank, &engine, &own, &error);
    if (status == SLUICE_OK && atomic_fetch_add(&all->ready, 1) + 1 == all->ranks)
        all->ready_at = now_s();
    if (status != SLUICE_OK && atomic_fetch_add(&all->failed, 1) == 0)
        snprintf(all->text, sizeof all->text, "%.1400s", error.text);
    while (atomic_load(&all->ready) + atomic_load(&all->failed) < all->ranks)
        usleep(1000);
    sluice_shutdown(engine, NULL);
    model_free(&own, engine);
    sluice_engine_destroy(engine);
    exit(status == SLUICE_OK ? 0 : 1);
}

/* ---- strangers ---- */

static void speak(int fd, long kind)
{
    unsigned char bytes[SLC_FRAME_HEADER + 100];
    slc_frame_header header = { .version = SLC_PROTOCOL_VERSION, .type = SLC_FRAME_JOIN, .length = 60 };
    struct linger at_once = { .l_onoff = 1, .l_linger = 0 };
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 53 + 7);
    if (kind == 2)
        slc_frame_encode(&header, bytes);
    if (kind == 1 || kind == 2)
        (void)!send(fd, bytes, kind == 1 ? sizeof bytes : SLC_FRAME_HEADER + 10, MSG_NOSIGNAL);
    else if (kind == 3)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    else if (kind == 4)
        (void)!send(fd, "GET / HTTP/1.1\r\nHost: here\r\n\r\n", 30, MSG_NOSIGNAL);
}

static _Noreturn void flood(void)
{
    int held[HELD];
    memset(held, -1, sizeof held);
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(all->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    for (long i = 0; atomic_load(&all->over) == 0; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&name, sizeof name) != 0) {
            close(fd);
            usleep(1000);
            continue;
        }
        speak(fd, i % KINDS);
        if (i % KINDS == 3) {
            close(fd);
        } else {
            close(held[i % HELD]);
            held[i % HELD] = fd;
        }
        if (atomic_fetch_add(&all->connections, 1) + 1 >= all->wanted)
            atomic_store(&all->last_may_come, 1);
    }
    _exit(0);
}

/* ---- both ---- */

static pid_t start(void)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

int crowd_main(int ranks, long strangers, bool secure)
{
    pid_t floods[FLOODS] = { 0 };
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    all->ranks = ranks;
    all->secure = secure;
    all->wanted = strangers;
    all->port = hold_port();
    atomic_store(&all->last_may_come, strangers == 0);
    double began = now_s();
    for (int i = 0; i < FLOODS && strangers > 0; i++)
        if ((floods[i] = start()) == 0)
            flood();
    for (int rank = 0; rank < ranks; rank++)
        if (start() == 0)
            join_crowd(rank);
    int bad = 0, how;
    for (int left = ranks; left > 0; left--) {
        pid_t pid = wait(&how);
        bool is_flood = false;
        for (int i = 0; i < FLOODS; i++)
            is_flood = is_flood || pid == floods[i];
        left += is_flood;
        bad += !is_flood && (!WIFEXITED(how) || WEXITSTATUS(how) != 0);
    }
    atomic_store(&all->over, 1);
    for (int i = 0; i < FLOODS && strangers > 0; i++) {
        kill(floods[i], SIGKILL); /* it may wait in a connect */
        waitpid(floods[i], &how, 0);
    }
    printf("{\"ranks\":%d,\"secure\":%s,\"strangers\":%ld,\"seconds\":%.3f,\"seconds_from_the_last\":%.3f,\"bad\":%d,\"text\":\"%s\"}\n", ranks,
           secure ? "true" : "false", atomic_load(&all->connections), all->ready_at - began, all->ready_at - all->last_came_at, bad, all->text);
    return bad == 0 ? 0 : 1;
}
