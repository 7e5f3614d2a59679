/*
 * faults_driver.c: one case of the fault suite (faults.h), printed as one object of JSON.
 *
 *     faults_driver phase=round2 fault=kill victim=3 [beat=0.4] [deadline=20] [connect=4] [phase_deadline=0] [delay=10]
 *                   [road=map|pull|ring|gpu|wire|m2n] [secure=0|1] [smaller=0|1]
 *     faults_driver crowd RANKS STRANGERS SECURE
 *
 * Owns the processes that it starts, and ends those that do not end by themselves. Judges nothing: scripts/faults.lua does.
 * With FAULTS_LOG in the environment every rank's log goes to standard error. Exit status 0 unless it was called wrongly.
 */
#include "faults.h"
#include "driver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const double SPARE_S = 40; /* beyond every deadline: then a rank hangs */

typedef struct process {
    pid_t pid;
    bool ended, had_to_be_killed;
    int how;
} process;

static case_board *shared;
static process children[RANKS + 1], relay_child;
static int report[2]; /* what sanitizers write */
static bool shared_memory_is_ours, link_stays;

/* ---- arguments ---- */

static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fprintf(stderr, "faults_driver: '%s' is unknown\n", name);
    exit(2);
}

static void read_argument(case_plan *plan, const char *argument)
{
#define TEXT_OF(name, text) text,
    static const char *const phases[] = { PHASE_LIST(TEXT_OF) }, *const faults[] = { FAULT_LIST(TEXT_OF) };
#undef TEXT_OF
    static const char *const known[] = { "phase", "fault", "victim", "beat", "deadline", "connect", "phase_deadline",
                                         "delay", "road", "secure", "smaller" };
    char name[32] = "";
    const char *value = strchr(argument, '=');
    if (value != NULL && value - argument < (ptrdiff_t)sizeof name)
        memcpy(name, argument, (size_t)(value++ - argument));
    double *const number[] = { &plan->beat, &plan->deadline, &plan->connect, &plan->phase_deadline, &plan->delay };
    int which = index_of(known, (int)(sizeof known / sizeof *known), name);
    switch (which) {
    case 0: plan->phase = (case_phase)index_of(phases, sizeof phases / sizeof *phases, value); break;
    case 1: plan->fault = (case_fault)index_of(faults, sizeof faults / sizeof *faults, value); break;
    case 2: plan->victim = atoi(value); break;
    case 8: plan->road = strcmp(value, "map") == 0 ? NULL : value; break;
    case 9: plan->secure = atoi(value) != 0; break;
    case 10: plan->smaller = atoi(value) != 0; break;
    default: *number[which - 3] = atof(value);
    }
}

/* ---- processes ---- */

static void start_rank(int rank, bool fresh)
{
    process *at = &children[fresh ? RANKS : rank];
    fflush(stdout);
    at->pid = fork();
    if (at->pid != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a case that is ended from outside leaves nobody */
    if (getenv("FAULTS_LOG") == NULL)
        dup2(report[1], STDERR_FILENO);
    close(report[0]);
    close(report[1]);
    rank_live(shared, rank, fresh);
}

static void reap(void)
{
    for (int i = 0; i <= RANKS; i++) {
        process *at = &children[i];
        if (at->pid > 0 && !at->ended && waitpid(at->pid, &at->how, WNOHANG) == at->pid)
            at->ended = true;
    }
}

static bool over(int seat)
{
    const process *at = &children[seat];
    return at->pid == 0 || at->ended || atomic_load(&shared->seat[seat].settled) != 0;
}

static bool others_settled(void)
{
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != shared->plan.victim && !over(rank))
            return false;
    return true;
}

static bool victim_settled(void)
{
    return shared->plan.victim < 0 || over(shared->plan.victim);
}

static bool all_ended(void)
{
    for (int i = 0; i <= RANKS; i++)
        if (children[i].pid > 0 && !children[i].ended)
            return false;
    return true;
}

static bool wait_until(bool (*is_so)(void), double seconds)
{
    for (double until = now_s() + seconds; now_s() < until; usleep(2000)) {
        reap();
        if (is_so())
            return true;
    }
    return false;
}

static bool injured(void)
{
    return atomic_load(&shared->done) != 0;
}

/* ---- the case ---- */

static void choose_addresses(void)
{
    unsigned pid = (unsigned)getpid();
    shared->port = hold_port();
    snprintf(shared->address, sizeof shared->address, "127.0.0.1");
    shared->victims_port = shared->port;
    if (shared->plan.fault == FAULT_NAMESPACE) {
        shared->plan.secure = true; /* off the loopback interface a key is required */
        snprintf(shared->address, sizeof shared->address, "10.213.%u.%u", pid / 64 % 256, pid % 64 * 4 + 1);
        snprintf(shared->other_address, sizeof shared->other_address, "10.213.%u.%u", pid / 64 % 256, pid % 64 * 4 + 2);
    }
    if (shared->plan.fault != FAULT_RELAY)
        return;
    uint16_t port = 0;
    int listener = listen_somewhere("127.0.0.1", &port);
    relay_child.pid = fork();
    if (relay_child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        relay(shared, listener, shared->port);
    }
    close(listener);
    shared->victims_port = port;
}

/* Where the fault hits a rank that waits for its world, another one is held back until then. */
static int held_back(void)
{
    const case_plan *plan = &shared->plan;
    bool waits = plan->phase == PHASE_CONNECT && plan->fault != FAULT_DELAY && plan->fault != FAULT_LATE
                 && plan->fault != FAULT_ALLOCATION && plan->fault != FAULT_DISAGREE && plan->fault != FAULT_NONE;
    return !waits ? -1 : plan->victim == 3 ? 2 : 3;
}

static double longest_wait(void)
{
    const case_plan *plan = &shared->plan;
    return plan->deadline + plan->connect + plan->delay + SPARE_S;
}

static void first_world(void)
{
    int held = held_back();
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != held)
            start_rank(rank, false);
    if (held >= 0) {
        wait_until(injured, SPARE_S);
        usleep(100000);
        start_rank(held, false);
    }
    wait_until(others_settled, longest_wait());
    if (shared->plan.fault == FAULT_STOP)
        kill(children[shared->plan.victim].pid, SIGCONT);
    wait_until(victim_settled, longest_wait());
}

static void second_world(void)
{
    const case_plan *plan = &shared->plan;
    shared->port_again = hold_port();
    bool gone = plan->victim >= 0 && children[plan->victim].ended;
    if (gone && !plan->smaller)
        start_rank(plan->victim, true);
    atomic_store(others_settled() && victim_settled() ? &shared->again : &shared->quit, 1);
    wait_until(all_ended, plan->deadline + SPARE_S);
}

static void end_all(void)
{
    for (int i = 0; i <= RANKS; i++) {
        process *at = &children[i];
        if (at->pid <= 0 || at->ended)
            continue;
        at->had_to_be_killed = true;
        kill(at->pid, SIGKILL);
        waitpid(at->pid, &at->how, 0);
    }
    if (atomic_load(&shared->network) == 1) /* connections that were closed without an end keep a namespace for minutes */
        link_stays = !network_remove(children[shared->plan.victim].pid);
    if (relay_child.pid > 0) {
        kill(relay_child.pid, SIGKILL);
        waitpid(relay_child.pid, &relay_child.how, 0);
    }
}

/* ---- what is printed ---- */

static void print_named(const char *name, const char *text, size_t length)
{
    printf("\"%s\":", name);
    print_text(text, length);
    putchar(',');
}

static void print_seat(int index)
{
    const case_seat *seat = &shared->seat[index];
    const process *child = &children[index];
    bool signalled = WIFSIGNALED(child->how);
    printf("%s{\"rank\":%d,\"fresh\":%s,\"settled\":%s,\"finished\":%s,\"hung\":%s,", index > 0 ? "," : "",
           index == RANKS ? shared->plan.victim : index, index == RANKS ? "true" : "false",
           atomic_load(&((case_seat *)seat)->settled) ? "true" : "false", atomic_load(&((case_seat *)seat)->finished) ? "true" : "false",
           child->had_to_be_killed ? "true" : "false");
    print_named("call", seat->call, strlen(seat->call));
    print_named("status", sluice_status_text((sluice_status)seat->status), strlen(sluice_status_text((sluice_status)seat->status)));
    print_named("state", sluice_state_text((sluice_state)seat->state), strlen(sluice_state_text((sluice_state)seat->state)));
    print_named("text", seat->text, strlen(seat->text));
    print_named("again", seat->again, strlen(seat->again));
    static const char *const open_at[] = { "open_before", "open_after", "open_at_the_end" };
    for (int i = 0; i < 3; i++)
        print_named(open_at[i], seat->open[i], strlen(seat->open[i]));
    printf("\"named\":%d,\"after_s\":%.3f,\"lists\":%s,\"descriptors\":[%d,%d,%d],\"threads\":[%d,%d,%d],\"exit\":%d,\"signal\":%d}", seat->named,
           seat->at > 0 && shared->fault_at > 0 ? seat->at - shared->fault_at : 0, seat->lists ? "true" : "false", seat->descriptors[0],
           seat->descriptors[1], seat->descriptors[2], seat->threads[0], seat->threads[1], seat->threads[2],
           signalled ? 0 : WEXITSTATUS(child->how), signalled ? WTERMSIG(child->how) : 0);
}

static int shared_memory_left(void)
{
    int count = -2; /* . and .. */
    DIR *folder = opendir("/dev/shm");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void print_case(void)
{
    static char said[6000];
    fcntl(report[0], F_SETFL, O_NONBLOCK);
    ssize_t length = read(report[0], said, sizeof said);
    printf("{");
    print_named("unavailable", shared->unavailable, strlen(shared->unavailable));
    print_named("reports", said, length > 0 ? (size_t)length : 0);
    printf("\"injured\":%s,\"shared_memory\":%d,\"link\":%s,\"ranks\":[", injured() ? "true" : "false",
           shared_memory_is_ours ? shared_memory_left() : -1, link_stays ? "true" : "false");
    for (int i = 0; i <= RANKS; i++)
        if (children[i].pid > 0)
            print_seat(i);
    printf("]}\n");
}

int main(int count, char **argument)
{
    if (count == 5 && strcmp(argument[1], "crowd") == 0 && atoi(argument[2]) > 1)
        return crowd_main(atoi(argument[2]), atol(argument[3]), atoi(argument[4]) != 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(report) != 0)
        return 1;
    shared->plan = (case_plan){ .fault = FAULT_NONE, .victim = -1, .beat = 0.4, .deadline = 20, .connect = 4, .delay = 10 };
    for (int i = 1; i < count; i++)
        read_argument(&shared->plan, argument[i]);
    if (shared->plan.victim >= RANKS || (shared->plan.victim < 0 && shared->plan.fault != FAULT_NONE)) {
        fprintf(stderr, "faults_driver: victim must be in [0, %d)\n", RANKS);
        return 2;
    }
    shared_memory_is_ours = own_shared_memory();
    choose_addresses();
    first_world();
    if (shared->unavailable[0] == '\0')
        second_world();
    end_all();
    print_case();
    return 0;
}
