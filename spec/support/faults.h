/*
 * faults.h: one case of the fault suite: four ranks as real processes, one of which (the victim) comes to grief at a stated
 * moment. What all processes of a case know of each other stands on a board in shared memory, which outlives any of them.
 *
 *     faults_driver.c  the case: starts ranks, lets the fault happen, brings them together again, prints what came of it
 *     faults_rank.c    the life of one rank through the public API
 *     faults_injure.c  what a fault is, done by the victim to itself
 *     faults_net.c     sockets, a relay that stops forwarding, a network namespace whose link goes down
 *     faults_crowd.c   another thing: how long init takes a crowd of ranks, also beside thousands of strangers
 *     faults_model.c   the parameters: init info, sources, live tensors, and what the live ones must hold
 */
#ifndef SPEC_SUPPORT_FAULTS_H
#define SPEC_SUPPORT_FAULTS_H

#include "sluice.h"
#include "transport/nccl/plugin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { TRAINERS = 2, WORKERS = 2, RANKS = TRAINERS + WORKERS, BATCHES = 3, SIDE = 128, LONG = 4096, TEXT = 1500 };

/* X(NAME, text) */
#define PHASE_LIST(X)                                                                                                     \
    X(CONNECT, "connect") X(ROUND_1, "round1") X(ROUND_2, "round2") X(ROUND_3, "round3") X(ROUND_4, "round4")             \
    X(TRANSPORT, "transport") X(MEET, "meet") X(FIRST, "first") X(MIDDLE, "middle") X(LAST, "last") X(LOAD, "load") X(FINISH, "finish")   \
    X(SHUTDOWN, "shutdown")
#define FAULT_LIST(X)                                                                                                     \
    X(KILL, "kill") X(STOP, "stop") X(EXIT, "exit") X(CALLBACK, "callback") X(CUT, "cut") X(RELAY, "blackhole")           \
    X(NAMESPACE, "netns") X(TRUNCATED, "truncated") X(GARBAGE, "garbage") X(DELAY, "delay") X(LATE, "late")               \
    X(ALLOCATION, "alloc") X(DISAGREE, "disagree") X(NONE, "none")

typedef enum case_phase {
#define PHASE_ENUM(name, text) PHASE_##name,
    PHASE_LIST(PHASE_ENUM)
#undef PHASE_ENUM
} case_phase;

typedef enum case_fault {
#define FAULT_ENUM(name, text) FAULT_##name,
    FAULT_LIST(FAULT_ENUM)
#undef FAULT_ENUM
} case_fault;

typedef struct case_plan {
    case_phase phase;
    case_fault fault;
    int victim;
    double beat, deadline; /* of every wait; `connect` where the phase is that */
    double connect, delay; /* delay: of FAULT_DELAY; FAULT_LATE takes twice its deadline */
    double phase_deadline; /* 0, or that of agree, update and finish */
    const char *road;      /* NULL: sources lie in mapped memory; "gpu", "wire": transport nccl, "m2n": m2n, all tensors on GPUs */
    bool secure, smaller;  /* smaller: the second world has no victim */
} case_plan;

/* What one process says of itself. */
typedef struct case_seat {
    atomic_int settled;  /* the first life is over, shutdown included */
    atomic_int finished; /* the second is */
    int status, named, state;
    double at;           /* when the call that ended the first life returned */
    char call[32], text[TEXT], again[TEXT]; /* again: "" for none, "ok", or what went wrong in the second life */
    int descriptors[3], threads[3]; /* before, after the first life, after the second */
    char open[3][400];   /* what the descriptors are, as "4 socket, 2 /dev/null" */
    bool lists;          /* failure_json accounts for every parameter, or there was no failure of an update */
} case_seat;

typedef struct case_board {
    case_plan plan;
    char address[64], other_address[64]; /* where rank 0 listens; the namespace's end of the link */
    uint16_t port, victims_port, port_again;
    atomic_int came, trigger, done, relay, network, again, quit;
    double fault_at;
    char unavailable[256];
    case_seat seat[RANKS + 1]; /* the last is that of the victim's replacement */
} case_board;

/* ---- faults_net.c ---- */

int listen_somewhere(const char *address, uint16_t *port); /* -1 where that fails */
uint16_t hold_port(void); /* this process keeps it from others, and rank 0 can listen there; 0 where that fails */
/* A process of its own: forwards between who comes to `listener` and `port` until the board says stop. */
void relay(case_board *shared, int listener, uint16_t port);
/* The calling thread's network becomes one of its own that a link joins to the old one; false: see shared->unavailable. */
bool network_make(case_board *shared);
void network_enter(bool own);
void network_cut(void);
bool network_remove(pid_t owner); /* from outside, when its process is gone; false where it stays */
/* /dev/shm becomes one of this process and its children, empty, so that what stays there is theirs; false where that wants more rights. */
bool own_shared_memory(void);
/* The control connections of this process, by the port on which rank 0 listens. */
size_t control_sockets(uint16_t port, int *fd, size_t most);

/* ---- faults_injure.c ---- */

/* Once, on whatever thread: returns where the victim lives on, after a delay when that is the fault. */
void injure(case_board *shared, int rank);

/* ---- faults_model.c ---- */

typedef enum model_memory { MEMORY_OWN, MEMORY_MAPPED, MEMORY_GPU } model_memory;

typedef struct model {
    int rank, trainers, workers;
    float *shard[2 * BATCHES]; /* trainer: sources; worker: live tensors, and what load_weights brought */
    void *there[2 * BATCHES];  /* on the GPU, where tensors lie there; shard is then a copy of it */
    model_memory memory;
    const slc_gpu_ops *gpus;
    slc_gpu *gpu;
} model;

/* *info is released with sluice_free. `swapped`: the first two parameters in the other order. */
sluice_status model_info(const char *address, uint16_t port, int trainers, int workers, bool swapped, char **info, sluice_error *error);
const char *model_name(int index); /* m0.a.weight (direct), m0.b.bias (full), m1.a.weight, ... */
int model_index(const char *name);
/* Memory, values of update `number` and registrations; `bare`: the first live tensor has no loader, so it goes full. */
sluice_status model_own(model *own, sluice_engine *engine, bool bare, int number, sluice_error *error);
void model_touch_gpu(int rank); /* what a driver keeps in a process that used it once, it keeps from here on */
void model_free(model *own, sluice_engine *engine);
void model_forget_values(model *own); /* a worker's, before an update */
bool model_holds(model *own, int number, char *why, size_t size);
/* What load_weights got. */
sluice_status model_load(model *own, const sluice_tensor *tensor, sluice_error *error);

/* ---- faults_stock.c ---- */

/* Descriptors and threads of this process, at one of the three times of case_seat. */
void take_stock(case_seat *seat, int index);

/* ---- faults_rank.c ---- */

/* The whole life of a rank's process. `fresh`: it only takes part in the second world. Does not return. */
_Noreturn void rank_live(case_board *shared, int rank, bool fresh);

/* ---- faults_crowd.c ---- */

/* Init of `ranks` ranks; with strangers, the last rank comes when that many of them have connected. Prints; 0 where all were ready. */
int crowd_main(int ranks, long strangers, bool secure);

double now_s(void);
void sleep_s(double seconds);

#endif
