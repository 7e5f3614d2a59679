/*
 * job.h: what one rank is to do: the parameters that the trainers announce, the live tensors of a worker with the
 * independent word on what each must hold, and the options of the run. Made from the table that lua/sluice/cli/ builds out
 * of a model's description; owned by an arena, borrowed by the rank and the verifier.
 */
#ifndef SLC_CLI_JOB_H
#define SLC_CLI_JOB_H

#include "base/convert.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "cli/values.h"
#include "script/resolve.h"
#include "sluice.h"

struct lua_State;

#define SLC_JOB_DIMS 8

/* A parameter as announced: the whole, global tensor. */
typedef struct slc_job_param {
    const char *name;
    const slc_dtype *dtype;
    int ndim;
    int64_t shape[SLC_JOB_DIMS];
    int64_t bytes;
    slc_values values;
} slc_job_param;

/*
 * A box of parameter `param` (from, extent: one a parameter dim) that lies in a live tensor at `at` (one a live dim).
 * dim[i] is the live dim that shows parameter dim i; -1 where extent[i] is 1 and the dim is gone. Where the parameter is converted
 * in blocks (base/cast.h), those are of the live tensor's last two dims, and the box begins with one.
 */
typedef struct slc_content {
    uint32_t param;
    int8_t dim[SLC_JOB_DIMS];
    int64_t from[SLC_JOB_DIMS], extent[SLC_JOB_DIMS], at[SLC_JOB_DIMS];
    bool scales; /* what lies there are the scales of the box' blocks, and `at` counts them in the last two dims */
} slc_content;

/* A box of a live tensor that must hold zeros: padding of what shows parameter `param` there. */
typedef struct slc_zero {
    uint32_t param;
    int64_t at[SLC_JOB_DIMS], extent[SLC_JOB_DIMS];
} slc_zero;

/* A live tensor of this worker, contiguous and row-major. */
typedef struct slc_served {
    const char *name, *attributes; /* attributes: JSON object */
    const slc_dtype *dtype;
    int ndim;
    int64_t shape[SLC_JOB_DIMS];
    int64_t bytes;
    size_t ncontents, nzeros;
    slc_content *content;
    slc_zero *zero;
    bool unsourced; /* the trainer brings nothing for it: it keeps what it has, and has no contents and no zeros */
    bool strided; /* `stride`, in elements, says where elements lie: of an engine that others serve; for plans only */
    int64_t stride[SLC_JOB_DIMS];
    unsigned char *data; /* filled in by who allocates */
} slc_served;

typedef struct slc_job {
    int32_t rank, trainers, workers;
    size_t nparams;
    slc_job_param *param; /* in transfer order */
    slc_job_param **by_name; /* the same, sorted */
    size_t nserved;
    slc_served *served; /* empty on a trainer */
    const char *init_info; /* sealed, or a draft where this process alone plans by it */
    size_t init_info_length;
    const char *host; /* JSON object */
    slc_rule_text *file; /* rule files that need not be on disk */
    size_t nfiles;
    const char *rules, *transport, *road; /* NULL: the engine's default */
    bool no_sm, mix, grouped;
    double timeout_s;
    sluice_timeouts timeouts;
    uint32_t staging_slots; /* 0: the engine's default */
    int listen_fd; /* -1 for none */
    int key_fd; /* the same */
    const char *key_file; /* NULL for none */
    bool insecure_control;
    double beat_s; /* 0: the engine's default */
    uint32_t updates, batches;
    bool replay; /* batches are recorded and replayed */
    bool ordinary; /* sources in ordinary memory instead of memory that peers can map */
    bool verify;
    const char *log; /* "error", "warning", "info" or "debug": what of its engine's log a rank reports; NULL: up to warnings */
    const char *allow_attach; /* where people may attach; NULL for nowhere */
    const char *save; /* folder for what a worker holds after the last update; NULL for none */
    slc_checkpoint *checkpoint; /* NULL: generated values */
    slc_arena arena;
} slc_job;

/*
 * Reads the table at `index` of the Lua stack; leaves the stack as it was. A box that leaves its tensor, an unknown
 * source, a wrong type: INVALID, "description: live[\"name\"].contents[2] ...". Opens the checkpoint that the table names.
 */
sluice_status slc_job_read(struct lua_State *L, int index, slc_job *job, sluice_error *error);
void slc_job_clear(slc_job *job);

/* How what the parameter has becomes what lies in the box. */
slc_cast slc_content_cast(const slc_job_param *param, const slc_served *served, const slc_content *content);

/* Trainers come first. */
static inline bool slc_job_is_worker(const slc_job *job)
{
    return job->rank >= job->trainers;
}

/* Index of the parameter of that name; SIZE_MAX where there is none. */
size_t slc_job_find(const slc_job *job, const char *name);

#endif
