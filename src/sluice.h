/*
 * sluice.h: the one public header of libsluice.
 *
 * Sluice moves model weights from the ranks that train a model to the ranks that serve it. Every rank, trainer or worker,
 * creates one engine, tells it what memory it owns, and calls init with the same init info; all ranks agree on one plan
 * before anything moves. From then on an update is start, one or more batches of names, finish.
 *
 *     worker                                     trainer
 *     sluice_engine_create                       sluice_engine_create
 *     sluice_describe_host                       sluice_register_source   (each local shard)
 *     sluice_register_live   (each tensor)       sluice_init
 *     sluice_init
 *       every few seconds, the same on both sides:
 *     sluice_start_update, sluice_update (names) ..., sluice_finish_update (version)
 *     sluice_shutdown, sluice_engine_destroy
 *
 * Pointers. An engine, a name and what a call fills in must not be NULL unless a comment allows it; an `error` always may be.
 * An output pointer is NULL after a failure.
 *
 * Threads. One engine is used by one thread at a time, any one; two engines are independent, also in one process.
 * sluice_cancel may be called from any thread at any moment until destroy: it is the way to end a call from outside.
 * Callbacks run on the thread that made the call, save `progress` and `log`, which may also run on the thread that moves
 * bytes. A call from a callback, from a second thread while another call is under way, or in a forked child is STATE and
 * changes nothing; sluice_engine_destroy and sluice_memory_free are then only logged. sluice_engine_state, sluice_version,
 * sluice_copy_version and sluice_cancel are exempt.
 *
 * Ordering. create, then registrations in any order, then init; updates one after the other; shutdown, and init again or
 * destroy. init, reload_rules, start_update, update and finish_update are made by every rank, in the same order: a rank that makes
 * another one is told so. When update returns on a worker, its live tensors hold the new values for any
 * thread that the host's own synchronisation orders after the call; while it runs, they may hold parts of both. So a host
 * that serves meanwhile keeps what computes away from live tensors from start_update to finish_update, or gives Sluice a second
 * set of tensors and swaps.
 *
 * Ownership. What is passed in is copied before the call returns, except the tensors themselves: live tensors and source
 * shards stay the caller's memory and must stay valid, at the same address, from init to shutdown; a source may be
 * registered anew between updates. What is handed out says who releases it.
 *
 * Failure. A call that can fail returns a sluice_status and, where an error is given, fills it with one message that names
 * the place, what was found and what the rule is. Before READY, an error on any rank reaches every rank. After READY an
 * invalid request changes nothing. A failure while bytes move stops the group: every engine is FAILED, each rank's call says
 * which rank failed and why, and only shutdown is left, then init again. Every wait has a deadline. Beside the statuses
 * that a call names, each may return NO_MEMORY, SYSTEM and INTERNAL, each with an engine STATE (see Threads), and those
 * that wait for other ranks TIMEOUT, PEER and CANCELLED.
 *
 * The process. The library prints nothing, exits never, installs no signal handler (and raises no SIGPIPE), and changes no
 * locale, environment, working directory, umask or resource limit. From init to shutdown an engine has one more thread, which
 * tells the other ranks that this one lives while the host is busy; it calls nothing of the host, and what it learns, the
 * next call says. Calls may start threads that end with them; only the look-up of a host name may outlive its call, so that
 * dlclose leaves the library mapped. No signal is delivered to these threads. A process that forks must not use the engine
 * in the child. Variables of the environment that it reads: SLUICE_RULES_PATH, XDG_DATA_HOME and HOME (see options.rules);
 * with a GPU transport SLUICE_CUDA_PLUGIN, SLUICE_NCCL_LIBRARY, SLUICE_M2N_LIBRARY (which files these are; for the last also
 * VIRTUAL_ENV and CONDA_PREFIX), SLUICE_WIRE_BYTES, and those of NCCL's and nccl_m2n's that must be the same on every rank, to
 * compare them.
 *
 * Versions. A change of the first number, or below 1.0 of the second, may break hosts and changes the library's soname;
 * other releases only add. So that they can, structs that a host gives begin with their size, as the initialisers say it:
 * a struct of an older header works and means what it meant; one of a newer header works as long as what this library does
 * not know is 0. A member that is added later means with 0 what was before it was there. Members called `reserved` must be 0.
 *
 * Pages that are named here as lua/NAME.md are in share/doc/sluice of an installation.
 */
#ifndef SLUICE_H
#define SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#if !defined(SLUICE_API)
#define SLUICE_API __attribute__((visibility("default")))
#endif

/* Of this header. */
#define SLUICE_VERSION_MAJOR 0
#define SLUICE_VERSION_MINOR 1
#define SLUICE_VERSION_PATCH 0
#define SLUICE_VERSION "0.1.0"

/* Of the library that runs, "0.1.0". Static storage. */
SLUICE_API const char *sluice_library_version(void);

/* ---- status and error ------------------------------------------------------------------------------------------- */

/* X(NAME, number, text). The numbers are part of the ABI and never change. */
#define SLUICE_STATUS_LIST(X)                                                                                          \
    X(OK, 0, "ok")                                                                                                     \
    X(INVALID, 1, "invalid input")                                                                                     \
    X(STATE, 2, "call not allowed in this state")                                                                      \
    X(NO_MEMORY, 3, "out of memory")                                                                                   \
    X(SYSTEM, 4, "operating system error")                                                                             \
    X(TIMEOUT, 5, "deadline passed")                                                                                   \
    X(PEER, 6, "another rank failed or was lost")                                                                      \
    X(DISAGREE, 7, "ranks disagree")                                                                                   \
    X(SCRIPT, 8, "a rule or script failed")                                                                            \
    X(UNSUPPORTED, 9, "not supported here")                                                                            \
    X(CANCELLED, 10, "cancelled")                                                                                      \
    X(CALLBACK, 11, "a callback of the host failed")                                                                   \
    X(INTERNAL, 12, "internal error")

typedef enum sluice_status {
#define SLUICE_STATUS_ENUM(name, number, text) SLUICE_##name = (number),
    SLUICE_STATUS_LIST(SLUICE_STATUS_ENUM)
#undef SLUICE_STATUS_ENUM
} sluice_status;

/* The status' text as listed above; "unknown status" for any other number. Never NULL, static storage. */
SLUICE_API const char *sluice_status_text(sluice_status status);

#define SLUICE_ERROR_TEXT 4096

/*
 * One error. Initialise with SLUICE_ERROR_INIT; a call that succeeds leaves it untouched. A call with an error that is
 * smaller than that is INVALID, does nothing and can only log why. `rank` is the rank that failed,
 * the lowest where several did, this one where its own input was wrong and no other rank could be told, -1 where no single
 * rank did. `stage` is the step (init, source, destination, data plane, runtime, update, ...). `text` is a whole sentence
 * with the stage in front, always terminated, UTF-8 without control characters save newline and tab; where ranks failed it
 * names them in order, each with its cause, and says how many they were where there is no room for all.
 */
typedef struct sluice_error {
    uint32_t size;
    sluice_status status;
    int32_t rank;
    char stage[32];
    char text[SLUICE_ERROR_TEXT];
} sluice_error;

/* This and the other initialisers name no field, so that C++ takes them, too. */
#define SLUICE_ERROR_INIT { sizeof(sluice_error), SLUICE_OK, -1, "", "" }

/* ---- engine ----------------------------------------------------------------------------------------------------- */

typedef struct sluice_engine sluice_engine;

typedef enum sluice_log_level { SLUICE_LOG_ERROR = 0, SLUICE_LOG_WARN = 1, SLUICE_LOG_INFO = 2, SLUICE_LOG_DEBUG = 3 } sluice_log_level;

/* A tensor as the library hands it out. `data` is row-major and contiguous. */
typedef struct sluice_tensor {
    uint32_t size;
    const char *name;       /* the parameter's name; valid until shutdown or sluice_reload_rules */
    const char *dtype;      /* torch name without prefix */
    uint32_t ndim;          /* 0 to 8 */
    const int64_t *shape;   /* ndim global extents, in elements */
    const void *data;
    size_t bytes;
} sluice_tensor;

typedef uint64_t sluice_recording; /* see sluice_record; 0 is none */

typedef struct sluice_weights sluice_weights; /* the sequence that load_weights pulls; lives as long as that call */

typedef struct sluice_progress {
    uint64_t bytes_done, bytes_total; /* of the batch under way, on this rank */
    size_t params_done, params_total;
} sluice_progress;

/*
 * The host's side of an engine. Any slot may be NULL except that a plan with `full` parameters wants load_weights on every
 * worker (refused at init otherwise). A callback that returns anything but SLUICE_OK fails the update; it may fill `error`.
 * A callback must not call into the engine that called it, except sluice_weights_* and what the top of this file exempts.
 */
typedef struct sluice_callbacks {
    uint32_t size;
    void *user; /* passed to each */
    void (*log)(void *user, sluice_log_level level, const char *text); /* debug: each stage of init, as it begins; error: what ended a session */
    void (*progress)(void *user, const sluice_progress *progress); /* at most 20 a second, and once at the end of a batch */
    sluice_status (*reload_begin)(void *user, sluice_error *error); /* before the first full parameter's update; only if the plan has one */
    sluice_status (*load_weights)(void *user, sluice_weights *weights, sluice_error *error); /* once a batch that has a full parameter */
    sluice_status (*reload_end)(void *user, sluice_error *error); /* in finish, if reload_begin ran */
    sluice_status (*launch)(void *user, sluice_recording recording, sluice_error *error); /* see sluice_record, In a capture */
    void (*reserved[3])(void);
} sluice_callbacks;

#define SLUICE_CALLBACKS_INIT { sizeof(sluice_callbacks), NULL, NULL, NULL, NULL, NULL, NULL, NULL, { NULL, NULL, NULL } }

/* Deadlines of one kind of wait each, in seconds; 0 means options.timeout_s. */
typedef struct sluice_timeouts {
    double connect;  /* until every rank has joined, name look-up and handshake included */
    double agree;    /* the rest of init, from the first round of agreement to READY */
    double update;   /* one batch */
    double finish;
    double shutdown; /* to hand over what others still have to hear; never more than 1 s */
    double reserved[3];
} sluice_timeouts;

/*
 * Options of an engine; initialise with SLUICE_OPTIONS_INIT. Strings are copied.
 *   rank         this process' rank in [0, world_size); trainers come first
 *   rules        path of a rule file, or a bare name: letters, digits, - and _. A name is NAME.lua of the first folder that has
 *                one of: each absolute path in SLUICE_RULES_PATH (colons between them), $XDG_DATA_HOME/sluice/rules (or
 *                ~/.local/share/sluice/rules), share/sluice/rules of the installation; else a family in the library ("llama").
 *                A file there that anyone may write, or in a folder that anyone may, is refused. NULL: the default resolver
 *   transport    "host" (memory of this machine's processes), "nccl" (memory of GPUs; live tensors, sources and what
 *                load_weights gets are device pointers, all of a rank's on one GPU) or "m2n" (the same by NVIDIA's nccl_m2n,
 *                which knows even shards of 1 to 3 dims over one or two mesh axes; one rank a process, and one that waits in a
 *                reshard for a rank that is lost may lose its GPU, which the next error says: it must be started anew); NULL
 *                means "host"
 *   timeout_s    the deadline of every wait, in seconds; 0 means 300
 *   listen_fd    rank 0 only: a listening TCP socket to take over instead of binding master_port; -1 for none. The engine closes it.
 *   staging_slots  full tensors that can be in flight or kept at once on a worker, at least 2; 0 means 2
 *   road         how bytes go; NULL is the best that works for each pair of ranks, a name forces that one. Transport host: "map",
 *                "pull", "ring". Transport nccl: "link" (copy engines into mapped memory), "wire" (NCCL's sends and receives)
 *   timeouts     the same deadline for single phases
 *   beat_s       how often ranks tell each other that they live, in seconds, the same on every rank; 0 means 1. A rank that
 *                is not heard for three beats is lost, and every other rank's current or next call says so
 *   key_file     the deployment's secret, 32 to 4096 bytes: a regular file of this process' user or of root, that only its
 *                owner can read or write. With a key, the same on every rank, ranks speak TLS 1.3 and prove to rank 0 which
 *                rank they are
 *   key_fd       the same from a descriptor, read to its end (a file: from its beginning) and closed by create, also when
 *                create fails; -1 for none
 *   stream       transports nccl and m2n: the host's CUDA stream (cudaStream_t or CUstream; the legacy default stream is (void *)1) on
 *                the GPU of its tensors, with which updates are ordered: see Streams at sluice_update. It must live until
 *                shutdown. NULL: none
 *   no_sm        transport nccl: 1 leaves everything to copy engines, which hold no SM. Else a trainer's GPU may run a kernel
 *                for short rows and many small pieces, where that shortens an update; sluice_plan_json's sent_by tells how much.
 *                A rule's conversion is a kernel's: with no_sm, init refuses it
 *   mix          transport m2n, the same on every rank: 1 lets transport nccl carry the parameters that nccl_m2n cannot, by
 *                the road that is asked for; else init refuses them, by name and reason
 *   grouped      transport m2n, the same on every rank: 1 gives the library a batch's reshards as one group, else one by one
 *   insecure_control  true allows connections between ranks without a key off the loopback interface: anyone who reaches
 *                rank 0's port can then join as a rank
 */
typedef struct sluice_options {
    uint32_t size;
    int32_t rank;
    const char *rules;
    const char *transport;
    const char *road;
    double timeout_s;
    int listen_fd;
    uint32_t staging_slots;
    sluice_callbacks callbacks;
    sluice_timeouts timeouts;
    double beat_s;
    const char *key_file;
    int key_fd;
    bool insecure_control;
    void *stream;
    int no_sm;
    int mix;
    int grouped;
} sluice_options;

#define SLUICE_TIMEOUTS_INIT { 0, 0, 0, 0, 0, { 0, 0, 0 } }
/* In the order of the fields; what is not 0 or NULL: listen_fd -1, the callbacks, key_fd -1. */
#define SLUICE_OPTIONS_INIT                                                                                            \
    { sizeof(sluice_options), 0, NULL, NULL, NULL, 0, -1, 0, SLUICE_CALLBACKS_INIT, SLUICE_TIMEOUTS_INIT, 0, NULL, -1, false, NULL, 0, 0, 0 }

/* X(NAME, text) */
#define SLUICE_STATE_LIST(X) X(NEW, "new") X(READY, "ready") X(UPDATING, "updating") X(FAILED, "failed")

typedef enum sluice_state {
#define SLUICE_STATE_ENUM(name, text) SLUICE_STATE_##name,
    SLUICE_STATE_LIST(SLUICE_STATE_ENUM)
#undef SLUICE_STATE_ENUM
} sluice_state;

/*
 * Creates an engine in state NEW. *engine is NULL on failure. Release with sluice_engine_destroy. Waits for nobody. Errors:
 * INVALID (an option or a struct's size that can be none, a key that must not be trusted), UNSUPPORTED (a transport that is not known).
 */
SLUICE_API sluice_status sluice_engine_create(const sluice_options *options, sluice_engine **engine, sluice_error *error);

/* Shuts down if need be (errors are logged) and frees the engine. NULL is allowed. */
SLUICE_API void sluice_engine_destroy(sluice_engine *engine);

/* Where the engine stands, and a state's text as listed above; "unknown state" for any other number. Static storage. */
SLUICE_API sluice_state sluice_engine_state(const sluice_engine *engine);
SLUICE_API const char *sluice_state_text(sluice_state state);

/* ---- what this rank owns (before init) -------------------------------------------------------------------------- */

/*
 * A tensor of the serving model. `strides` are in elements, NULL for row-major contiguous; no two elements may share a
 * byte. `attributes` is a JSON object, NULL for none, of what the host's own loader knows; the default resolver reads
 * loader ("replicated", "column", "row"), output_dim, input_dim, tp_size, and the flags packed_dim, packed_factor,
 * marlin_tile_size, needs_scalar_to_array, is_sharded_weight, is_transposed.
 */
typedef struct sluice_live {
    uint32_t size;
    const char *name;
    const char *dtype;
    uint32_t ndim;
    const int64_t *shape;
    const int64_t *strides;
    void *data;
    const char *attributes;
} sluice_live;

/*
 * Registers one live tensor of a worker, whose name is UTF-8. Errors: INVALID (bad name, dtype, shape, strides, a second
 * tensor of that name), STATE after init. A tensor that was refused, and is not given again or forgotten, is missed: init
 * tells every rank why, unless not even its name could be read.
 */
SLUICE_API sluice_status sluice_register_live(sluice_engine *engine, const sluice_live *live, sluice_error *error);

/*
 * Describes the serving host to the rules: a JSON object of any keys that rule files see as `host` (quantization,
 * pipeline_parallel_size, num_attention_heads, finalizes_modules, ...; lua/README.md). Called again before init, it replaces.
 * Errors: INVALID (no JSON object), STATE after init.
 */
SLUICE_API sluice_status sluice_describe_host(sluice_engine *engine, const char *json, size_t length, sluice_error *error);

/*
 * Gives the memory of one trainer shard: the contiguous row-major box that this rank holds of parameter `name` under its
 * announced layout. `bytes` must equal that box' size and `dtype` the announced one; both are checked at init, or at once
 * when called between updates with new memory. A rank whose box is empty, or that holds none of the parameter, registers
 * nothing or data NULL with 0 bytes. One that the init info does not announce, as where it announces less than the time
 * before, is never read; init logs how many there are and the first. Errors: INVALID (bad name or dtype, and between updates
 * a size or dtype that does not fit, or a name that was not announced), STATE on a worker after init and when FAILED.
 */
SLUICE_API sluice_status sluice_register_source(sluice_engine *engine, const char *name, const char *dtype, const void *data,
                                                size_t bytes, sluice_error *error);

/*
 * Memory that peers on this machine can map: sources allocated here move at the speed of a plain copy. Page-aligned,
 * zeroed, never visible in any file system, gone with the process. Release with sluice_memory_free before destroy; between
 * init and shutdown that does nothing, since peers may read the block, nor does it with a pointer that is none of this engine's
 * blocks, as a block's that was freed: both are only logged. Errors: INVALID (no bytes), STATE after init.
 */
SLUICE_API sluice_status sluice_memory_alloc(sluice_engine *engine, size_t bytes, void **data, sluice_error *error);
SLUICE_API void sluice_memory_free(sluice_engine *engine, void *data);

/* ---- who may look (before init) --------------------------------------------------------------------------------- */

/*
 * Lets people attach: `sluice repl --attach PATH` then asks this engine, while it works, what it has planned and where it
 * stands. `path` is where a Unix socket is made, "@name" a name without a file; or it is NULL and `fd` (else -1) is a listening
 * Unix stream socket, which the engine takes over, also on failure. In state NEW, until sluice_shutdown, sluice_engine_destroy
 * or sluice_refuse_attach, which remove the file; a second one is STATE. To look into the next init, too, call it again.
 *
 * Who: processes of this process' effective user, and root, as the kernel names them. The socket's mode is 0600. Where a file
 * is, other than a socket of this user on which nobody listens, it is refused (INVALID), as is a folder in which anyone may
 * replace files.
 *
 * What: the init info without its unique id, the host's description, the live tensors without their addresses, the rule
 * files as they were read, the plan's digests, state, version, roads, and how far the batch under way is. Never a key, an
 * address or a value of a tensor. Nothing can be changed or moved that way: there is no request that does.
 *
 * What it costs: one thread of the lowest priority that sleeps until somebody asks, at most 18 descriptors, and memory for a
 * copy of the init info. The engine never waits for it: while init, an update or a reload is under way it answers from what was
 * written beforehand and from a few numbers that the engine notes in passing. It calls nothing of the host. Whoever is slow
 * or talks nonsense is dropped; how many were is logged at the end.
 */
SLUICE_API sluice_status sluice_allow_attach(sluice_engine *engine, const char *path, int fd, sluice_error *error);
SLUICE_API sluice_status sluice_refuse_attach(sluice_engine *engine, sluice_error *error); /* OK, too, where nobody may attach */

/* ---- init ------------------------------------------------------------------------------------------------------- */

/*
 * Fills in `source_digest` of an init info (JSON, either schema; any digest present is replaced). *sealed is a new
 * terminated string, released with sluice_free. This is what a trainer sends to every worker: where rank 0 listens, how many
 * ranks there are, and each parameter with its layout, as lua/INIT_INFO.md says. Needs no engine, and any thread may call it.
 * Errors: INVALID (what is wrong with the text, with its path).
 */
SLUICE_API sluice_status sluice_seal_init_info(const char *json, size_t length, char **sealed, sluice_error *error);

/*
 * Joins the rendezvous, agrees on source plan, destinations, data plane and runtime with all other ranks, opens the
 * transport. On success the state is READY on every rank; on failure it is NEW again on every rank, and every rank's
 * error names each rank that failed with its cause. A rank whose own input is wrong joins all the same, to say so.
 * Errors: STATE unless NEW; every other status of the list.
 */
SLUICE_API sluice_status sluice_init(sluice_engine *engine, const char *init_info, size_t length, sluice_error *error);

/*
 * The plan as JSON: counts and bytes by mode, coverage, unwritten live tensors, aliases, staging peak, roads, on a trainer
 * with GPUs sent_by (the bytes that it sends by copy_engines and by a kernel), and with `full` every parameter's
 * destination and reason: lua/PLAN.md has the keys. *json is released with sluice_free. Errors: STATE before init and after
 * shutdown.
 */
SLUICE_API sluice_status sluice_plan_json(const sluice_engine *engine, bool full, char **json, sluice_error *error);

/*
 * Other rules between two updates: plans again and goes over to the new plan, on every rank or on none. Every rank calls it,
 * as init, within timeouts.agree: workers with the path or family of the new rules (NULL: the default resolver), which later
 * inits use, too; what a trainer gives is ignored. The new rules meet the parameters, live tensors and host description of
 * this init.
 *
 * The new plan is made beside the old one, with its roads and staging, and tried; the old one is used until every rank is
 * connected. So for the length of the call a rank holds both: two plans and programs, a worker two Lua states and two
 * sets of staging slots, and the roads to its peers twice; live tensors and sources are there once.
 *
 * OK: the next update moves by the new rules. Source plan, source_digest and version are what they were, a state that is
 * dirty stays so, one that is not stays so, too; registered sources stay, also those that now go nowhere.
 * Otherwise the state is READY still, and the old plan is in use as if nothing had been called: bad rules, rules that
 * differ between workers, live bytes that nothing writes, full parameters where there is no load_weights, or staging that does
 * not fit (SCRIPT, DISAGREE, INVALID, NO_MEMORY, ...); the error is the same on every rank and names each rank that failed
 * with its cause, rules with file and line. A rank that was lost, a deadline that passed and sluice_cancel make it FAILED.
 * STATE unless READY; the others then wait for this rank's next call, and are told with it that it is another one.
 */
SLUICE_API sluice_status sluice_reload_rules(sluice_engine *engine, const char *rules, sluice_error *error);

/*
 * Why a parameter or a live tensor is where it is, as JSON: `name` is a parameter's name, a live tensor's, a pattern ("*" is
 * any text; with {braces} it reads as in a rule file) or "" for all that is full and all that nothing writes. The answer is
 * the one that `sluice explain --json` gives, and lua/EXPLAIN.md says what it holds; a trainer, which has read no
 * rules and has no live tensors, answers from the plan alone. A name that nobody has is no error: the answer holds names
 * that are near. Neither waits nor moves anything; from the thread that calls the engine. *json is released with
 * sluice_free. Errors: STATE before init and after shutdown, INVALID (no name), NO_MEMORY.
 */
SLUICE_API sluice_status sluice_explain_json(sluice_engine *engine, const char *name, char **json, sluice_error *error);

/* Releases what a call handed out to be released with it. NULL is allowed. */
SLUICE_API void sluice_free(void *memory);

/* ---- updates ---------------------------------------------------------------------------------------------------- */

/*
 * Opens an update, on every rank. With `partial`, finish does not ask that every parameter came: refused (STATE) where the
 * next update must be a whole one, see sluice_version, and unless READY. Local: waits for nobody.
 */
SLUICE_API sluice_status sluice_start_update(sluice_engine *engine, bool partial, sluice_error *error);

/*
 * Moves the named parameters, in this order; every rank gives the same list. Returns when this rank's part is done: on a
 * worker the live tensors hold the new values and load_weights has returned; on a trainer the sources may change again.
 * INVALID or DISAGREE (unknown name, a name twice in this update, lists that differ): nothing moved, the update is still
 * open. Any other failure (CALLBACK where the host's own said so): FAILED on every rank. STATE unless UPDATING.
 *
 * A list that is wrong in itself is refused at once, without waiting for anybody, and counts as this rank's call: the other
 * ranks' call is refused with this rank's cause, when they come to it, and all go on with the next one. Only where others
 * have not come yet to a call of this rank that was refused so, the next one waits for them.
 */
SLUICE_API sluice_status sluice_update(sluice_engine *engine, const char *const *names, size_t count, sluice_error *error);

/*
 * Records a list of parameters that is moved again and again, on this rank: `names` and `count` as for sluice_update, or NULL
 * and 0 for every parameter of the plan in its order. What a batch of them looks up, hashes and makes ready for the GPU is
 * done here, once. Local: waits for nobody and moves nothing; between batches, whether an update is open or not. *recording
 * is a number that this engine never gives again, 0 on failure; forgotten by sluice_forget_recording or with the session, at
 * shutdown. Any number of recordings can be kept, each costs memory in proportion to its copies.
 *
 * In a capture. Where options.stream is being captured (cudaStreamBeginCapture) at this call, the recording is a place in that
 * graph as well: a replay comes behind what was captured before it, and what is captured behind it finds the update done, as
 * with what is queued on the stream otherwise. sluice_replay of it calls callbacks.launch, once all ranks have agreed on the
 * batch, to launch the graph on any stream; launch returns without waiting for it. The update moves when the graph has come to
 * its place, and the graph goes on when the update is done, or has failed. A batch that is refused launches nothing. A graph
 * that is launched at any other time passes its place at once, and nothing moves. The copies are not in the graph: all ranks
 * must agree on a batch first, and a replay's own launches are faster than a graph of copies. One place a graph is meant: of
 * several, a replay takes the first. The graph refers to memory of the engine, and must not run after sluice_engine_destroy;
 * after sluice_shutdown or sluice_reload_rules it may, and passes.
 *
 * Errors: INVALID (a name that was not announced, or comes twice; in a capture, a full parameter or no callbacks.launch),
 * STATE unless READY or UPDATING, NO_MEMORY, SYSTEM.
 */
SLUICE_API sluice_status sluice_record(sluice_engine *engine, const char *const *names, size_t count, sluice_recording *recording,
                                       sluice_error *error);

/*
 * Replays a recording, which is sluice_update of that list in every respect: what it moves, what it returns, what it refuses,
 * what comes of a failure. On other ranks it may as well be sluice_update of the same names in the same order, or their own
 * recording of them; a rank whose list is another one is refused as there. Beyond that, refused at once and told to the others:
 *   INVALID  a number that is no recording of this engine (any more)
 *   STATE    sluice_reload_rules made another plan since; a source was registered anew, at another address: record again
 * A live tensor of a GPU whose memory was freed since init is found, and refused (STATE), by both.
 *
 * On transport nccl a trainer replays its copies as they were gathered by sluice_record, in a few calls of the driver; one
 * that knows no batches of copies (before CUDA 12.8) gets them as a CUDA graph. Batches with full parameters and the host
 * transport have no such part: they are spared the names alone.
 */
SLUICE_API sluice_status sluice_replay(sluice_engine *engine, sluice_recording recording, sluice_error *error);

/*
 * In place of sluice_update or sluice_replay, where the host finds on its own that this rank cannot take part: a source whose
 * memory it lost, say. Counts as this rank's call, as a list that is wrong in itself: the other ranks' call is refused with
 * `why`, nothing moved, and the update is still open. `why` is UTF-8, of which 2,000 bytes are told. Never OK: INVALID with `why`,
 * STATE unless UPDATING.
 */
SLUICE_API sluice_status sluice_refuse_update(sluice_engine *engine, const char *why, sluice_error *error);

/* Forgets a recording and frees what it holds. As sluice_record; INVALID where there is no such recording. */
SLUICE_API sluice_status sluice_forget_recording(sluice_engine *engine, sluice_recording recording, sluice_error *error);

/*
 * Streams. With options.stream, of transport nccl, a batch (sluice_update, sluice_replay) is ordered with what the host queues
 * on that stream, on either side:
 *   - a trainer's sources are read behind all that was queued there before the call: kernels that still write them may be
 *     under way when it is made;
 *   - a worker's live tensors are written, and their padding is cleared, by any rank, behind all that was queued there before
 *     the call: kernels that still compute with the old weights end before;
 *   - when the call returns on a worker, what it queues from then on, on any stream, finds the new weights: the call has waited
 *     for them. On a trainer, what is queued from then on may write the sources;
 *   - load_weights finds a tensor's bytes in place, may queue its reads of them there, and go on to the next tensor or return at
 *     once: a staging slot that was released is filled again, and freed by shutdown, behind what was queued there by then.
 *     What load_weights itself writes into live tensors is ordered by that stream as anything else on it.
 * Other streams of the host's are its own to order with that one. Without a stream, sources and live tensors must be at rest
 * when a batch is called, and load_weights must have read a tensor when it releases it. While the stream is being captured a
 * batch is refused on that rank (STATE), the others' call with it, and nothing changes; see sluice_record, In a capture.
 * A capture that another thread makes meanwhile should not be in CUDA's global mode, which forbids some of what a call does.
 * The engine queues nothing there but events, and its own streams do not wait for the legacy default stream. It never
 * synchronises the device, and an update allocates no memory of the device.
 */

/*
 * Ends the update; succeeds on all ranks or on none, and only when every parameter came exactly once (or it was partial).
 * `version` is a label of 1 to 255 bytes of UTF-8 without control characters, the same on every rank, visible through
 * sluice_version only after success. Incomplete or different labels: INVALID or DISAGREE, the update is still open; what is
 * wrong on this rank alone is refused at once, as in sluice_update.
 */
SLUICE_API sluice_status sluice_finish_update(sluice_engine *engine, const char *version, sluice_error *error);

/*
 * Gives an open update up for all ranks; that one of them calls it is enough. It is OK, and this engine FAILED; each other
 * rank's current or next call ends with CANCELLED, or as an abort_update of its own with OK, and that one is FAILED, too.
 * From the thread that calls the engine; from another one: sluice_cancel. Errors: STATE unless UPDATING.
 */
SLUICE_API sluice_status sluice_abort_update(sluice_engine *engine, sluice_error *error);

/*
 * What the live tensors of all workers hold: the label of the update that was finished last, "" before the first, "dirty"
 * while they may hold parts of an unfinished one. The same on every rank, trainers too, from init on. Valid until the next
 * call, so for the thread that makes it; other threads, such as those that answer requests, use sluice_copy_version.
 *
 * A rank is dirty from the moment when all ranks agreed on a batch with a parameter that goes to a worker until an update is
 * finished, across failure, shutdown and init, and whatever is registered anew. An update that failed before its first batch
 * was agreed on leaves nothing dirty. At init each rank says its label and whether it is dirty. All become dirty when
 *   - any rank is, also one that alone saw the failure, or
 *   - two workers hold different labels (one of them is a fresh process, say), or
 *   - a trainer has finished an update, and not the one that the workers hold.
 * Otherwise all take the workers' label over, also ranks that are new. A worker whose live tensors were forgotten or added
 * to since holds no label: nothing says what they hold. While dirty after init the next update must be a
 * whole one: start_update with `partial` is refused, and finish_update wants every parameter.
 */
SLUICE_API const char *sluice_version(const sluice_engine *engine);

/* Room for any label, its end included. */
#define SLUICE_LABEL_BYTES 256

/* The same copied to `text`, which has room for SLUICE_LABEL_BYTES. From any thread at any moment until destroy; waits for nobody. */
SLUICE_API void sluice_copy_version(const sluice_engine *engine, char *text);

/*
 * After a failure: which parameters are complete, torn and untouched, as a JSON object of three lists. Torn are those of the
 * batch that was under way, once all ranks had agreed on it: any worker may hold a part. Released with sluice_free. Errors:
 * STATE unless FAILED.
 */
SLUICE_API sluice_status sluice_failure_json(const sluice_engine *engine, char **json, sluice_error *error);

/* The next full tensor of a batch; *tensor is NULL at the end. It is valid until the next call unless kept. */
SLUICE_API sluice_status sluice_weights_next(sluice_weights *weights, const sluice_tensor **tensor, sluice_error *error);

/* Keeps the tensor that next returned last until it is released; INVALID when that would leave no staging slot to go on with. */
SLUICE_API sluice_status sluice_weights_keep(sluice_weights *weights, const sluice_tensor *tensor, sluice_error *error);
SLUICE_API void sluice_weights_release(sluice_weights *weights, const sluice_tensor *tensor);

/* ---- the end ---------------------------------------------------------------------------------------------------- */

/*
 * From any thread: makes the call under way, and every later one but shutdown, end with CANCELLED. Other ranks hear it from
 * that call at once; a host that makes none any more calls shutdown, and they hear that.
 */
SLUICE_API void sluice_cancel(sluice_engine *engine);

/*
 * Leaves the group and releases everything that init made: connections, mappings, staging, plan. Any state, any number of
 * times; the first error met is returned and the work goes on. The state is NEW again afterwards, and what was registered
 * stays registered, so that init can follow at once; sluice_forget drops the registrations (STATE unless NEW).
 */
SLUICE_API sluice_status sluice_shutdown(sluice_engine *engine, sluice_error *error);
SLUICE_API sluice_status sluice_forget(sluice_engine *engine, sluice_error *error);

#if defined(__cplusplus)
}
#endif

#endif
