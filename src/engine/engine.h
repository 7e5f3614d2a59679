/*
 * engine.h: what an engine is made of, for the files of src/engine/ only.
 *
 *     engine.c     create, options, what the host registers, the state
 *     memory.c     memory that peers can map
 *     init.c       the stages of init, in order
 *     build.c      those of them that a plan goes through: rules, agreement, program, transport
 *     communicator.c  the last of those stages: a communicator, where peers need one
 *     reload.c     other rules: the next build beside the one in use, then a swap
 *     agreement.c  rounds over long lists: same on every rank, or the first line that differs
 *     version.c    which version all live memory holds, and whether an update of it was left unfinished
 *     update.c     one batch of names, from preflight to done; start and finish
 *     recording.c  lists that are moved again and again
 *     habit.c      the lists of the last update, which the next one is likely to ask for again
 *     staging.c    full parameters: slots, the mover thread, the sequence that load_weights pulls
 *     lifecycle.c  failure, abort, cancel, shutdown
 *     report.c     the plan and a failure as JSON
 *     board.c      where the engine stands, for another thread to look at
 *     attach.c     what it tells those who attach, and the door at which they do
 */
#ifndef SLC_ENGINE_ENGINE_H
#define SLC_ENGINE_ENGINE_H

#include "base/clock.h"
#include "base/error.h"
#include "base/flag.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/names.h"
#include "control/agree.h"
#include "control/door.h"
#include "engine/board.h"
#include "plan/coverage.h"
#include "plan/program.h"
#include "script/init_info.h"
#include "script/resolve.h"
#include "transport/host/host.h"
#include "transport/transport.h"

#include <stdatomic.h>
#include <sys/types.h>

/* How far a parameter came in the open (or failed) update. Ordered: a parameter only moves forward. */
typedef enum slc_delivery { SLC_UNTOUCHED, SLC_ASKED, SLC_TORN, SLC_COMPLETE } slc_delivery;

typedef struct slc_source {
    const slc_dtype *dtype;
    const void *data;
    size_t bytes;
} slc_source;

/* What is given out of a region of sluice_memory_alloc. One that is larger than SLC_SLAB_BYTES is one block. */
#define SLC_SLAB_BYTES ((size_t)64 << 20)
#define SLC_SLAB_GRAIN 4096 /* where a block can begin: the smallest page that a system has */

typedef struct slc_slab {
    size_t used, blocks;
    uint64_t begins[SLC_SLAB_BYTES / SLC_SLAB_GRAIN / 64]; /* a bit a grain: whether a block that is given out begins there */
} slc_slab;

/*
 * A plan and all that is made of it: what one set of rules comes to on this rank. Its transport holds addresses in it, so
 * that it stays where it is.
 */
typedef struct slc_build {
    slc_script *script; /* in a build that is used on a worker only: for report.c */
    slc_plan *plan;
    slc_plan_totals totals;
    slc_arena arena; /* coverage, resolution */
    slc_resolution resolution;
    slc_coverage coverage;
    char destination_digest[SLC_DIGEST_TEXT], commit_token[SLC_DIGEST_TEXT];
    slc_program program;
    const slc_transport_ops *ops;
    slc_transport *transport;
    struct slc_staging *staging; /* worker of a plan with full parameters */
    double seconds_planning;
} slc_build;

/* What there is to know of a list of names. */
typedef struct slc_known {
    uint32_t *param; /* plan indices */
    size_t count;
    bool full; /* one of them is */
    char names[SLC_DIGEST_TEXT];
} slc_known;

/* A list of parameters that is moved again and again. */
typedef struct slc_recording {
    sluice_recording number;
    uint64_t plan; /* session->plans as it was */
    slc_known list;
    bool placed; /* its batch begins in a graph that the host launches */
    const void **source; /* trainer: where each shard lay */
    slc_record *record; /* the transport's, see there; NULL where it made none */
} slc_recording;

/* The batches that an update asked for by names, in order; see habit.c. */
typedef struct slc_habit {
    uint64_t plan; /* session->plans as it was */
    slc_buffer names; /* of all batches, each with its end */
    uint32_t *param; /* of all batches; room for the whole plan */
    size_t nparams;
    struct slc_usual *batch;
    size_t count, capacity, next; /* next: of the update under way */
} slc_habit;

/* The label of the update that was finished last. Each new one is written over the last but one, so who copies has time to. */
typedef struct slc_labels {
    uint64_t count; /* so far; the last one is in word[count % 2] */
    uint64_t word[2][SLUICE_LABEL_BYTES / 8];
} slc_labels;

/* Everything that one init makes and one shutdown releases. */
typedef struct slc_session {
    slc_init_info info;
    bool is_worker;
    slc_group *group;
    bool id_used; /* info.unique_id has made a communicator, and makes no second one */
    char source_digest[SLC_DIGEST_TEXT];
    const void **shard; /* trainer: by plan index; what the transport reads as config->source */
    slc_build *build; /* the one in use, of the two slots; the other is empty but during a reload */
    slc_build slot[2];
    double seconds_init;
    char version[SLUICE_LABEL_BYTES]; /* as round 4 found it on every worker */
    char unfinished[640]; /* why there is none, "" where there is */

    uint64_t plans; /* reloads since init */
    slc_recording **recording; /* in no order */
    size_t nrecordings, recording_capacity;
    slc_habit habit;

    /* the update */
    uint8_t *delivery; /* slc_delivery by plan index */
    uint64_t batch;    /* batches agreed since init */
    bool partial, reloading;
    uint32_t *asked;   /* indices of the batch under way; room for the whole plan */
    size_t nasked;
    int64_t progress_at_ns;
    sluice_progress progress;
} slc_session;

/* Between the first live tensor with attributes and init: what reads them, and those that were good last. */
typedef struct slc_checker {
    slc_script *script;
    char *good;
} slc_checker;

struct sluice_engine {
    sluice_options options; /* strings owned */
    _Atomic sluice_state state;
    pid_t process;           /* that created it; no other may use it */
    bool busy;               /* a call is under way; see slc_engine_claim */
    volatile bool cancelled; /* see flag.h */
    slc_log log;
    slc_key *key; /* NULL without one */

    slc_live_set live;
    slc_checker checker;
    sluice_error refused; /* why the first live tensor that was refused was, unless it is registered by now; see init */
    char refused_name[SLC_MAX_NAME + 1];
    char *host; /* JSON, or NULL */
    slc_names source_names;
    slc_source *source; /* by position in source_names */
    size_t source_capacity;
    slc_region *region;
    slc_slab *slab; /* beside each region */
    size_t nregions, region_capacity;

    const char *stage; /* of the init or reload under way; NULL for none */
    slc_board board;
    slc_door *door;    /* NULL where nobody may attach */

    slc_session *session; /* NULL in state NEW */
    slc_keep keep; /* of transports */
    sluice_recording recordings; /* made so far, over all sessions: no two have one number */
    /* Both are read from any thread, and outlive the session. */
    atomic_bool dirty; /* since the last finished update, bytes of another one may have moved */
    slc_labels labels;
};

/* The way of one build. A stage gets the error so far (`mine`) and adds to it, so that every rank takes part in every round. */
typedef struct slc_stages {
    sluice_engine *engine;
    slc_session *session;
    slc_build *build;
    const char *call;  /* "init", "reload" */
    const char *rules; /* a worker's, as in options */
    slc_deadline deadline;
    sluice_error mine; /* what this rank has to say in the next round */
    bool recalled;     /* it stopped to connect, since another rank cannot */
} slc_stages;

/* build.c. A log at debug level ends with what a rank waits for. */
void slc_stage_enter(const slc_stages *stages, const char *stage);
/*
 * From a build that holds a plan without destinations, and on a worker a script, to one that can move: rounds 2 to 4 and
 * the connection. Not OK: the round that refused it has said so on every rank, or the group is broken.
 */
sluice_status slc_build_agree(slc_stages *stages, sluice_error *error);
/* Of a wait while connecting: ends it, too, where another rank cannot connect; the round after it then says why. */
slc_watch slc_stages_watch(slc_stages *stages);
sluice_status slc_stages_connected(slc_stages *stages, sluice_error *error); /* that round */

/* communicator.c: the same on all ranks once every one is connected. */
sluice_status slc_communicator_agree(slc_stages *stages, sluice_error *error);

void slc_build_settle(const slc_session *session, slc_build *build); /* once it is in use: keeps of Lua what answers questions */
void slc_build_clear(slc_build *build); /* releases what it holds, however far it came */

/* lifecycle.c: releases all of a session; says LEAVE to the group where it still stands. */
void slc_session_destroy(slc_session *session);

/* memory.c and engine.c: the shard that this trainer registered for a parameter against what the plan says it must be. */
sluice_status slc_source_check(const sluice_engine *engine, const slc_param *param, const void **data, const char *stage, sluice_error *error);

/*
 * agreement.c. Every rank that gives lines must give the same list; ranks that give none (count SIZE_MAX) agree with any.
 * OK on all, or DISAGREE on all, which names every rank that differs from the lowest, with the first position that differs and both
 * lines, `what` naming a line. `mine` as in slc_group_round. `answer` (may be NULL) gets the extra bytes of the lowest rank that gave
 * lines; answer->failed says that this rank alone could not keep them.
 */
typedef struct slc_list {
    const char *what;
    const char *heading; /* what must be equal beside the lines, as a text of under 1024 bytes; NULL for none */
    size_t count;
    void (*line)(const void *context, size_t index, char *text, size_t size);
    void (*note)(const void *context, size_t index, char *text, size_t size); /* what is told with a line, and not compared; NULL for nothing */
    const void *context;
    const void *extra;
    size_t extra_length;
    int32_t readers; /* ranks below this get the extra bytes; 0: all */
} slc_list;

/* Such an agreement: `digest` is over all of the lines, which are compared one by one only where it differs. */
sluice_status slc_agree_on_list(slc_group *group, const char *stage, const sluice_error *mine, const char *digest, const slc_list *list,
                                slc_buffer *answer, slc_deadline deadline, sluice_error *error);

/* agreement.c. "name=value" lines that must be equal on all ranks: DISAGREE lists the names with both values, and all ranks that differ. */
sluice_status slc_agree_on_settings(slc_group *group, const char *stage, const sluice_error *mine, const slc_buffer *lines,
                                    slc_deadline deadline, sluice_error *error);

void slc_checker_clear(slc_checker *checker); /* engine.c */

/* version.c: round 4, in which each rank also says what it holds; the answer is kept in the session until init has ended well. */
sluice_status slc_agree_on_version(sluice_engine *engine, const sluice_error *mine, slc_deadline deadline, sluice_error *error);
void slc_take_version(sluice_engine *engine);
/* The label of the update that was finished last, for the thread that uses the engine, and another one in its place. */
const char *slc_label(const sluice_engine *engine);
void slc_label_set(sluice_engine *engine, const char *label);

/* report.c: roads with the number of peers on each. */
struct json_t *slc_roads_json(const slc_session *session);

/* attach.c. Writes on the board where the engine stands; by whoever has claimed it, after each change. */
void slc_engine_post(sluice_engine *engine);
/* Shows the plan in use to those who attach, if any may; init_info NULL: the one that was shown last. A failure is logged. */
void slc_attach_show(sluice_engine *engine, const char *init_info, size_t length);
void slc_attach_end(sluice_engine *engine); /* nobody may attach any more */

/* staging.c */
sluice_status slc_staging_create(sluice_engine *engine, slc_build *build, sluice_error *error); /* to build->staging */
void slc_staging_destroy(struct slc_staging *staging);
/* Moves the batch of session->asked with a mover thread while load_weights pulls. A worker's batch that has a full parameter. */
sluice_status slc_staging_run(sluice_engine *engine, slc_deadline deadline, sluice_error *error);

/*
 * recording.c. find: of this session and what its plan and sources are now, else INVALID or STATE; it is borrowed. clear:
 * while the build that they were made for is there. The digest of a list of names is the same however they came.
 */
sluice_status slc_recording_find(const slc_session *session, sluice_recording number, const slc_recording **recording,
                                 sluice_error *error);
void slc_recordings_clear(slc_session *session);
sluice_status slc_names_digest(const slc_plan *plan, const uint32_t *param, size_t count, char digest[SLC_DIGEST_TEXT],
                               sluice_error *error);

/*
 * habit.c. begin: an update starts. find: what is known of these names where the last update asked for them in this place, or
 * NULL; it is borrowed. keep: the batch of session->asked was agreed, `known` being what find gave; what it is now is what
 * the next update is likely to ask for. Where there is no memory for that, it is looked up again.
 */
void slc_habit_begin(slc_session *session);
const slc_known *slc_habit_find(slc_session *session, const char *const *names, size_t count);
void slc_habit_keep(slc_session *session, const slc_known *known, bool full, const char names[SLC_DIGEST_TEXT]);
void slc_habit_clear(slc_habit *habit);

/* update.c: one segment on this rank, with its bookkeeping. `slot` as transport.h's staging. */
sluice_status slc_move(sluice_engine *engine, uint32_t index, void *slot, slc_deadline deadline, sluice_error *error);
slc_watch slc_engine_watch(sluice_engine *engine);
void slc_progress_say(sluice_engine *engine, bool last);

/*
 * lifecycle.c. A call claims the engine and leaves it at its end. STATE from a callback, from another thread meanwhile, and in a
 * forked child, which has no beats; INVALID where the host's error is not one that can be written.
 */
sluice_status slc_engine_claim(sluice_engine *engine, const char *stage, const char *call, sluice_error *error);
void slc_engine_leave(sluice_engine *engine);
/* STATE in a forked child, alone: for what a callback calls. */
sluice_status slc_engine_here(const sluice_engine *engine, const char *stage, const char *call, sluice_error *error);
/*
 * A claim that is also STATE where the engine is not in the state that a call wants, and CANCELLED where the host cancelled:
 * others hear that then, as they would within a call.
 */
sluice_status slc_engine_enter(sluice_engine *engine, sluice_state state, const char *stage, const char *call, sluice_error *error);
/* update.c: what a callback that failed said, if anything. */
sluice_status slc_callback_failed(const char *stage, const char *call, sluice_error *said, sluice_error *error);

/* lifecycle.c: the engine becomes FAILED, the transport and the group are aborted. Returns cause->status. */
sluice_status slc_engine_fail(sluice_engine *engine, const sluice_error *cause);
/* Leaves the group and releases what init made. Nothing of that can fail; what cannot be said to a peer any more is logged. */
void slc_engine_end(sluice_engine *engine);
slc_deadline slc_engine_deadline(const sluice_engine *engine, double phase_s); /* of options.timeouts; 0: options.timeout_s */
void slc_close_listener(sluice_engine *engine); /* the listening socket that create was given, if no init took it */

#endif
