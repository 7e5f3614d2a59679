/*
 * faults_rank.c: see faults.h. A first life in which the victim is injured at the moment that the plan names, then, when the
 * case says so, a second one in a new world. The moment comes out of what the engine shows: its log, its progress, its callbacks.
 */
#include "faults.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    case_board *board;
    case_seat *seat;
    int rank, batch;
    bool first_life, victim;
    volatile bool life_over;
    sluice_engine *engine; /* here and not on a stack: a rank that exits in the middle has leaked nothing */
    model model;
} me;

/* ---- the moment ---- */

static bool is_now(case_phase phase)
{
    return me.first_life && me.victim && me.board->plan.phase == phase;
}

static void reach(case_phase phase)
{
    if (is_now(phase))
        injure(me.board, me.rank);
}

/* Faults of a rank that has come and waits for the others; the rest hit it before it comes. */
static bool after_coming(case_fault fault)
{
    return fault != FAULT_DELAY && fault != FAULT_LATE && fault != FAULT_ALLOCATION && fault != FAULT_DISAGREE;
}

static void hear_of_arrival(const char *text)
{
    const case_plan *plan = &me.board->plan;
    int who = -1;
    if (!me.first_life || plan->phase != PHASE_CONNECT || !after_coming(plan->fault)
        || sscanf(text, "rendezvous: rank %d ", &who) != 1 || strstr(text, " has come, ") == NULL)
        return;
    if (me.victim)
        injure(me.board, me.rank);
    else if (who == plan->victim)
        atomic_store(&me.board->trigger, 1);
}

static bool goes_by(const char *road)
{
    return me.board->plan.road != NULL && strcmp(me.board->plan.road, road) == 0;
}

/* Peers by wire, and all by nccl_m2n, meet in their communicator. */
static const char *meeting(void)
{
    return goes_by("wire") || goes_by("m2n") ? "init: joins a communicator" : "init: meets its peers";
}

static void hear(void *user, sluice_log_level level, const char *text)
{
    const struct {
        const char *text;
        case_phase phase;
    } stage[] = { { "init: round 1,", PHASE_ROUND_1 }, { "init: round 2,", PHASE_ROUND_2 }, { "init: round 3,", PHASE_ROUND_3 },
                  { "init: round 4,", PHASE_ROUND_4 }, { "init: opens the transport", PHASE_TRANSPORT }, { meeting(), PHASE_MEET } };
    (void)user;
    (void)level;
    if (getenv("FAULTS_LOG") != NULL)
        fprintf(stderr, "%.3f rank %d: %s\n", now_s(), me.rank, text);
    hear_of_arrival(text);
    bool own_network = me.first_life && me.victim && me.board->plan.fault == FAULT_NAMESPACE;
    if (strcmp(text, "init: joins") == 0) {
        if (own_network)
            network_enter(true);
        if (is_now(PHASE_CONNECT) && !after_coming(me.board->plan.fault))
            injure(me.board, me.rank);
    }
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++) {
        if (strncmp(text, stage[i].text, strlen(stage[i].text)) != 0)
            continue;
        if (own_network && i == 0)
            network_enter(false);
        reach(stage[i].phase);
    }
}

/* In the middle of a batch: one parameter has moved, one has not. */
static void see_progress(void *user, const sluice_progress *progress)
{
    (void)user;
    case_fault fault = me.board->plan.fault;
    if (progress->params_done == 1 && fault != FAULT_CALLBACK && fault != FAULT_ALLOCATION && fault != FAULT_DISAGREE)
        reach(PHASE_FIRST + (case_phase)me.batch);
}

/* Before a call, for the faults that a running call has no place for. */
static void before(case_phase phase)
{
    if (me.board->plan.fault == FAULT_ALLOCATION || me.board->plan.fault == FAULT_DISAGREE)
        reach(phase);
}

static bool differs(case_phase phase)
{
    return is_now(phase) && me.board->plan.fault == FAULT_DISAGREE;
}

/* Waits where the case makes a rank do something while others are held. */
static void *wait_for_trigger(void *unused)
{
    (void)unused;
    while (!me.life_over && atomic_load(&me.board->trigger) == 0)
        usleep(1000);
    if (atomic_load(&me.board->trigger) != 0)
        injure(me.board, me.rank);
    return NULL;
}

/* ---- callbacks ---- */

static sluice_status refuse(sluice_error *error)
{
    injure(me.board, me.rank);
    snprintf(error->text, sizeof error->text, "the host says no");
    return SLUICE_CALLBACK;
}

static bool callback_fails(case_phase phase)
{
    return is_now(phase) && me.board->plan.fault == FAULT_CALLBACK;
}

static sluice_status reload_begin(void *user, sluice_error *error)
{
    (void)user;
    return callback_fails(PHASE_FIRST) ? refuse(error) : SLUICE_OK;
}

static sluice_status reload_end(void *user, sluice_error *error)
{
    (void)user;
    if (callback_fails(PHASE_FINISH))
        return refuse(error);
    if (!differs(PHASE_FINISH))
        reach(PHASE_FINISH);
    return SLUICE_OK;
}

static sluice_status in_load(sluice_error *error)
{
    const case_plan *plan = &me.board->plan;
    if (!me.first_life || plan->phase != PHASE_LOAD || me.batch != 1)
        return SLUICE_OK;
    if (callback_fails(PHASE_LOAD))
        return refuse(error);
    reach(PHASE_LOAD);
    if (plan->victim < TRAINERS) { /* it waits in its update meanwhile: a thread of its own does it */
        atomic_store(&me.board->trigger, 1);
        for (int i = 0; i < 2000 && atomic_load(&me.board->done) == 0; i++)
            usleep(1000);
    }
    return SLUICE_OK;
}

static sluice_status load_weights(void *user, sluice_weights *weights, sluice_error *error)
{
    (void)user;
    if (me.batch > 0 && callback_fails(PHASE_FIRST + (case_phase)me.batch))
        return refuse(error);
    const sluice_tensor *tensor;
    sluice_status status;
    while ((status = sluice_weights_next(weights, &tensor, error)) == SLUICE_OK && tensor != NULL) {
        status = model_load(&me.model, tensor, error);
        if (status == SLUICE_OK)
            status = in_load(error);
        if (status != SLUICE_OK)
            break;
    }
    return status;
}

/* ---- a life ---- */

static bool on_gpu(void)
{
    return goes_by("gpu") || goes_by("wire") || goes_by("m2n");
}

static model_memory memory(void)
{
    return on_gpu() ? MEMORY_GPU : me.board->plan.road == NULL ? MEMORY_MAPPED : MEMORY_OWN;
}

static sluice_status create(int trainers, sluice_error *error)
{
    const case_plan *plan = &me.board->plan;
    bool strict = me.first_life && plan->phase_deadline > 0;
    double phase_deadline = strict ? plan->phase_deadline : 0;
    sluice_options options = SLUICE_OPTIONS_INIT;
    options.rank = me.model.rank;
    options.timeout_s = plan->deadline;
    options.timeouts = (sluice_timeouts){ .connect = me.first_life && plan->phase == PHASE_CONNECT ? plan->connect : 0,
                                          .agree = phase_deadline, .update = phase_deadline, .finish = phase_deadline };
    options.beat_s = plan->beat;
    options.transport = goes_by("m2n") ? "m2n" : on_gpu() ? "nccl" : "host";
    options.mix = goes_by("m2n");
    options.road = goes_by("gpu") || goes_by("m2n") ? NULL : plan->road;
    if (differs(PHASE_ROUND_3)) /* of the ranks on GPUs one has its tensors there, and moves by the host's transport */
        options.road = goes_by("pull") ? "ring" : "pull";
    if (differs(PHASE_ROUND_3) && on_gpu())
        options.transport = "host";
    options.callbacks.log = hear;
    options.callbacks.progress = see_progress;
    if (me.model.rank >= trainers) {
        options.callbacks.reload_begin = reload_begin;
        options.callbacks.load_weights = load_weights;
        options.callbacks.reload_end = reload_end;
    }
    options.listen_fd = -1;
    int end[2];
    if (plan->secure) {
        static const char key[] = "a key for the cases of this suite, long enough";
        if (pipe(end) != 0 || write(end[1], key, sizeof key) != (ssize_t)sizeof key || close(end[1]) != 0)
            abort();
        options.key_fd = end[0];
    }
    return sluice_engine_create(&options, &me.engine, error);
}

static const char *batch_name(int batch, int which)
{
    return model_name(2 * batch + (differs(PHASE_FIRST + (case_phase)batch) ? 1 - which : which));
}

#define TRY(name, call)                                    \
    do {                                                   \
        snprintf(where, 32, "%s", name);                   \
        sluice_status status = (call);                     \
        if (status != SLUICE_OK)                           \
            return status;                                 \
    } while (0)

static sluice_status update(int number, char *where, sluice_error *error)
{
    char label[32];
    TRY("start", sluice_start_update(me.engine, false, error));
    for (me.batch = 0; me.batch < BATCHES; me.batch++) {
        static const char *const call[] = { "update 1", "update 2", "update 3" };
        usleep(60000); /* so that progress is due again in the middle of the next batch */
        before(PHASE_FIRST + (case_phase)me.batch);
        const char *names[] = { batch_name(me.batch, 0), batch_name(me.batch, 1) };
        TRY(call[me.batch], sluice_update(me.engine, names, 2, error));
    }
    before(PHASE_FINISH);
    if (me.model.rank < TRAINERS && me.board->plan.fault != FAULT_CALLBACK)
        reach(PHASE_FINISH);
    snprintf(label, sizeof label, "update %d%s", number, differs(PHASE_FINISH) ? " of mine" : "");
    TRY("finish", sluice_finish_update(me.engine, label, error));
    return SLUICE_OK;
}

/* From init to the end of an update, with the engine as it is. */
static sluice_status sync_once(const char *info, int number, char *where, sluice_error *error)
{
    TRY("init", sluice_init(me.engine, info, strlen(info), error));
    model_forget_values(&me.model);
    TRY("update", update(number, where, error));
    char why[160];
    if (!model_holds(&me.model, number, why, sizeof why)) {
        snprintf(error->text, sizeof error->text, "values: %s", why);
        return SLUICE_INTERNAL;
    }
    return SLUICE_OK;
}

/* The parameters that a failure lists as complete, torn and untouched must be all there are. */
static bool lists_are_whole(void)
{
    char *json;
    if (sluice_engine_state(me.engine) != SLUICE_STATE_FAILED)
        return true;
    if (sluice_failure_json(me.engine, &json, NULL) != SLUICE_OK)
        return false;
    int found = 0;
    for (int i = 0; i < 2 * BATCHES; i++)
        found += strstr(json, model_name(i)) != NULL;
    sluice_free(json);
    return found == 2 * BATCHES;
}

static void first_life(void)
{
    case_board *board = me.board;
    const case_plan *plan = &board->plan;
    sluice_error error = SLUICE_ERROR_INIT;
    char *info = NULL;
    pthread_t thread;
    uint16_t port = board->port;
    int workers = differs(PHASE_CONNECT) ? WORKERS + 1 : WORKERS;
    if (plan->fault == FAULT_RELAY && (plan->victim == 0 ? me.rank != 0 : me.victim))
        port = board->victims_port;
    me.model = (model){ .rank = me.rank, .trainers = TRAINERS, .workers = workers, .memory = memory() };
    sluice_status status = create(TRAINERS, &error);
    if (status == SLUICE_OK)
        status = model_own(&me.model, me.engine, differs(PHASE_ROUND_2), 1, &error);
    if (status == SLUICE_OK)
        status = model_info(board->address, port, TRAINERS, workers, differs(PHASE_ROUND_1), &info, &error);
    take_stock(me.seat, 0);
    bool triggered = me.victim && (plan->phase == PHASE_CONNECT ? after_coming(plan->fault) && me.rank != 0
                                                                : plan->phase == PHASE_LOAD && me.rank < TRAINERS);
    if (triggered && pthread_create(&thread, NULL, wait_for_trigger, NULL) != 0)
        abort();
    if (differs(PHASE_ROUND_1) || differs(PHASE_ROUND_3))
        reach(plan->phase);
    if (status == SLUICE_OK)
        status = sync_once(info, 1, me.seat->call, &error);
    me.seat->at = now_s();
    me.seat->status = (int)status;
    me.seat->named = error.rank;
    me.seat->state = (int)sluice_engine_state(me.engine);
    snprintf(me.seat->text, sizeof me.seat->text, "%.1400s", error.text);
    me.seat->lists = lists_are_whole();
    if (status == SLUICE_OK)
        reach(PHASE_SHUTDOWN);
    sluice_shutdown(me.engine, NULL);
    if (status == SLUICE_OK) {
        snprintf(me.seat->call, sizeof me.seat->call, "shutdown");
        me.seat->at = now_s();
    }
    me.life_over = true;
    network_enter(false); /* where the life ended inside the join */
    slc_fail_allocation(0, false);
    if (triggered)
        pthread_join(thread, NULL);
    sluice_free(info);
    take_stock(me.seat, 1);
    atomic_store(&me.seat->settled, 1);
}

static void second_life(void)
{
    case_board *board = me.board;
    int victim = board->plan.victim, rank = me.rank, trainers = TRAINERS, workers = WORKERS;
    sluice_error error = SLUICE_ERROR_INIT;
    char *info = NULL, where[32] = "register";
    if (board->plan.smaller) {
        rank -= rank > victim;
        trainers -= victim < TRAINERS;
        workers -= victim >= TRAINERS;
    }
    bool was_bare = differs(PHASE_ROUND_2) || differs(PHASE_CONNECT) || differs(PHASE_ROUND_3);
    me.first_life = false;
    sluice_status status = SLUICE_OK;
    bool other = me.engine == NULL || rank != me.model.rank || board->plan.phase_deadline > 0 || board->plan.phase == PHASE_CONNECT
                 || was_bare;
    if (me.engine != NULL) { /* what was registered stays only where the world is the same */
        if (other || board->plan.smaller)
            status = sluice_forget(me.engine, &error);
        if (other || board->plan.smaller)
            model_free(&me.model, me.engine);
    }
    bool registers = other || board->plan.smaller;
    if (other) {
        sluice_engine_destroy(me.engine);
        me.engine = NULL;
    }
    if (registers)
        me.model = (model){ .rank = rank, .trainers = trainers, .workers = workers, .memory = memory() };
    if (status == SLUICE_OK && other)
        status = create(trainers, &error);
    if (status == SLUICE_OK && registers)
        status = model_own(&me.model, me.engine, false, 1, &error);
    if (status == SLUICE_OK)
        status = model_info("127.0.0.1", board->port_again, trainers, workers, false, &info, &error);
    if (status == SLUICE_OK)
        status = sync_once(info, 1, where, &error);
    sluice_free(info);
    if (status == SLUICE_OK)
        snprintf(me.seat->again, sizeof me.seat->again, "ok");
    else
        snprintf(me.seat->again, sizeof me.seat->again, "%s: %.1400s", where, error.text);
}

static void end_life(void)
{
    /* Tensors on a GPU have descriptors and a thread of their own: counted at first, save in a fresh process. */
    bool counts_tensors = on_gpu() && me.seat != &me.board->seat[RANKS];
    if (me.engine != NULL) {
        sluice_shutdown(me.engine, NULL);
        if (counts_tensors)
            take_stock(me.seat, 2);
        model_free(&me.model, me.engine);
    }
    sluice_engine_destroy(me.engine);
    me.engine = NULL;
    if (!counts_tensors)
        take_stock(me.seat, 2);
    atomic_store(&me.seat->finished, 1);
    exit(0);
}

_Noreturn void rank_live(case_board *shared, int rank, bool fresh)
{
    me.board = shared;
    me.rank = rank;
    me.victim = rank == shared->plan.victim && !fresh;
    me.seat = &shared->seat[fresh ? RANKS : rank];
    me.first_life = !fresh;
    if (shared->plan.fault == FAULT_NAMESPACE && !fresh) {
        if (me.victim)
            atomic_store(&shared->network, network_make(shared) ? 1 : 2);
        while (atomic_load(&shared->network) == 0)
            usleep(1000);
        if (atomic_load(&shared->network) == 2)
            exit(0); /* this machine has none */
    }
    if (fresh && on_gpu())
        model_touch_gpu(rank);
    if (fresh)
        take_stock(me.seat, 0);
    else
        first_life();
    while (atomic_load(&shared->again) == 0 && atomic_load(&shared->quit) == 0)
        usleep(1000);
    if (atomic_load(&shared->again) != 0 && !(me.victim && shared->plan.smaller))
        second_life();
    end_life();
    abort();
}
