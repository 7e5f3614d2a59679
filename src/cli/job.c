/* job.c: from a Lua table to a job. Every box is checked here, so that walks over it need not check again. */
#include "cli/job.h"

#include <lauxlib.h>
#include <lua.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define STAGE "description"

/* ---- fields ---- */

static bool whole_number(lua_State *L, int index, int64_t low, int64_t high, int64_t *out)
{
    if (lua_type(L, index) != LUA_TNUMBER)
        return false;
    double number = lua_tonumber(L, index);
    if (!(number >= (double)low && number <= (double)high && number < 9007199254740992.0)) /* which 2^53 + 1 is read as */
        return false;
    *out = (int64_t)number;
    return (double)*out == number;
}

static sluice_status read_integer(lua_State *L, int index, const char *key, int64_t low, int64_t high, int64_t *out,
                                  sluice_error *error)
{
    lua_getfield(L, index, key);
    bool good = whole_number(L, -1, low, high, out);
    const char *type = luaL_typename(L, -1);
    lua_pop(L, 1);
    if (!good)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s (a %s) must be an integer from %lld to %lld", key, type, (long long)low,
                        (long long)high);
    return SLUICE_OK;
}

/* A copy of a text field; NULL where it is absent. */
static const char *read_text(lua_State *L, int index, const char *key, slc_arena *arena)
{
    size_t length;
    lua_getfield(L, index, key);
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &length) : NULL;
    const char *copy = text == NULL ? NULL : slc_arena_text(arena, text, length);
    lua_pop(L, 1);
    return copy;
}

static bool read_flag(lua_State *L, int index, const char *key)
{
    lua_getfield(L, index, key);
    bool flag = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return flag;
}

/* 0 where it is absent; the engine checks its range. */
static double read_seconds(lua_State *L, int index, const char *key)
{
    lua_getfield(L, index, key);
    double seconds = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return seconds;
}

static void read_timeouts(lua_State *L, int index, sluice_timeouts *timeouts)
{
    lua_getfield(L, index, "timeouts");
    if (lua_istable(L, -1)) {
        int table = lua_gettop(L);
        timeouts->connect = read_seconds(L, table, "connect");
        timeouts->agree = read_seconds(L, table, "agree");
        timeouts->update = read_seconds(L, table, "update");
        timeouts->finish = read_seconds(L, table, "finish");
        timeouts->shutdown = read_seconds(L, table, "shutdown");
    }
    lua_pop(L, 1);
}

/* Exactly `count` integers of list `key`; an absent list counts as empty. */
static bool read_list(lua_State *L, int index, const char *key, int count, int64_t low, int64_t *out)
{
    lua_getfield(L, index, key);
    bool good = lua_istable(L, -1) ? lua_objlen(L, -1) == (size_t)count : lua_isnil(L, -1) && count == 0;
    for (int i = 0; good && i < count; i++) {
        lua_rawgeti(L, -1, i + 1);
        good = whole_number(L, -1, low, INT64_MAX, &out[i]);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return good;
}

static sluice_status read_shape(lua_State *L, int index, const char *what, const char *name, int *ndim, int64_t *shape,
                                int64_t *elements, sluice_error *error)
{
    lua_getfield(L, index, "shape");
    size_t count = lua_istable(L, -1) ? lua_objlen(L, -1) : 0;
    lua_pop(L, 1);
    *ndim = (int)count;
    *elements = 1;
    if (count > SLC_JOB_DIMS || !read_list(L, index, "shape", *ndim, 0, shape))
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s \"%s\": shape must be at most %d whole numbers below 2^53", what, name, SLC_JOB_DIMS);
    for (int i = 0; i < *ndim; i++)
        if (!slc_multiply(*elements, shape[i], elements) || *elements > INT64_C(1) << 58)
            return slc_fail(error, SLUICE_INVALID, STAGE, "%s \"%s\": its shape has too many elements", what, name);
    return SLUICE_OK;
}

static sluice_status read_tensor(lua_State *L, int index, const char *what, slc_arena *arena, const char **name,
                                 const slc_dtype **dtype, int *ndim, int64_t *shape, int64_t *bytes, sluice_error *error)
{
    *name = lua_istable(L, index) ? read_text(L, index, "name", arena) : NULL;
    if (*name == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "each %s must be a table with a name", what);
    const char *dtype_name = read_text(L, index, "dtype", arena);
    *dtype = dtype_name == NULL ? NULL : slc_dtype_find(dtype_name);
    if (*dtype == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s \"%s\": dtype (%s) is not known", what, *name,
                        dtype_name == NULL ? "none" : dtype_name);
    sluice_status status = read_shape(L, index, what, *name, ndim, shape, bytes, error);
    *bytes *= (*dtype)->bytes;
    return status;
}

/* Pushes list `key` of the table at `index` (an empty one where absent) and makes room for its items. */
static void *push_list(lua_State *L, int index, const char *key, size_t size, slc_arena *arena, size_t *count)
{
    lua_getfield(L, index, key);
    if (!lua_istable(L, -1)) {
        lua_pop(L, 1);
        lua_newtable(L);
    }
    *count = lua_objlen(L, -1);
    return slc_arena_take(arena, *count == 0 ? 1 : *count, size);
}

/* ---- parameters ---- */

static int by_name(const void *left, const void *right)
{
    return strcmp((*(slc_job_param *const *)left)->name, (*(slc_job_param *const *)right)->name);
}

static sluice_status find_values(const slc_job *job, slc_job_param *param, sluice_error *error)
{
    const void *base = NULL;
    if (job->checkpoint != NULL) {
        const slc_checkpoint_tensor *tensor = slc_checkpoint_find(job->checkpoint, param->name);
        if (tensor == NULL)
            return slc_fail(error, SLUICE_INVALID, "checkpoint", "it has no tensor \"%s\"", param->name);
        if (tensor->dtype != param->dtype || tensor->bytes != (size_t)param->bytes)
            return slc_fail(error, SLUICE_INVALID, "checkpoint", "\"%s\" (%zu bytes of %s) must be %lld bytes of %s", param->name,
                            tensor->bytes, tensor->dtype->name, (long long)param->bytes, param->dtype->name);
        base = tensor->data;
    }
    param->values = slc_values_of(param->name, base);
    return SLUICE_OK;
}

static sluice_status read_params(lua_State *L, int index, slc_job *job, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    job->param = push_list(L, index, "params", sizeof *job->param, &job->arena, &job->nparams);
    job->by_name = slc_arena_take(&job->arena, job->nparams + 1, sizeof(slc_job_param *));
    if (job->param == NULL || job->by_name == NULL)
        status = slc_fail_memory(error, STAGE, "parameters", job->nparams * sizeof *job->param);
    for (size_t i = 0; status == SLUICE_OK && i < job->nparams; i++) {
        slc_job_param *param = &job->param[i];
        lua_rawgeti(L, -1, (int)i + 1);
        status = read_tensor(L, lua_gettop(L), "parameter", &job->arena, &param->name, &param->dtype, &param->ndim, param->shape,
                             &param->bytes, error);
        lua_pop(L, 1);
        if (status == SLUICE_OK)
            status = find_values(job, param, error);
        job->by_name[i] = param;
    }
    lua_pop(L, 1);
    if (status == SLUICE_OK)
        qsort(job->by_name, job->nparams, sizeof *job->by_name, by_name);
    return status;
}

size_t slc_job_find(const slc_job *job, const char *name)
{
    slc_job_param key = { .name = name };
    const slc_job_param *pointer = &key;
    slc_job_param *const *found = bsearch(&pointer, job->by_name, job->nparams, sizeof *job->by_name, by_name);
    return found == NULL ? SIZE_MAX : (size_t)(*found - job->param);
}

/* ---- live tensors ---- */

static bool inside(int64_t start, int64_t extent, int64_t size)
{
    return start <= size && extent <= size - start;
}

slc_cast slc_content_cast(const slc_job_param *param, const slc_served *served, const slc_content *content)
{
    if (content->scales)
        return strcmp(served->dtype->name, "float32") == 0 ? slc_cast_find_scales(param->dtype) : SLC_CAST_NONE;
    return slc_cast_find(param->dtype, served->dtype);
}

/* What is wrong with the box, or NULL. */
static const char *content_fault(const slc_job *job, const slc_served *served, slc_content *content, const int64_t *dim)
{
    const slc_job_param *param = &job->param[content->param];
    unsigned shown = 0;
    if (slc_content_cast(param, served, content) == SLC_CAST_NONE && (content->scales || param->dtype != served->dtype))
        return "its dtype is not the parameter's, and not one that this is converted to";
    for (int i = 0; i < param->ndim; i++) {
        if (!inside(content->from[i], content->extent[i], param->shape[i]))
            return "it leaves the parameter";
        if (dim[i] >= served->ndim || (dim[i] < 0 && content->extent[i] != 1))
            return "dims must be live dims, or -1 where the extent is 1";
        content->dim[i] = (int8_t)dim[i];
        if (dim[i] < 0)
            continue;
        if ((shown & 1U << dim[i]) != 0)
            return "two dims cannot be one live dim";
        shown |= 1U << dim[i];
        bool in_blocks = content->scales && dim[i] >= served->ndim - 2;
        if (!inside(content->at[dim[i]], in_blocks ? (content->extent[i] + SLC_BLOCK - 1) / SLC_BLOCK : content->extent[i],
                    served->shape[dim[i]]))
            return "it leaves the live tensor";
    }
    for (int i = served->ndim - 2; slc_cast_in_blocks(slc_content_cast(param, served, content)) && i < served->ndim; i++)
        if (i < 0 || (shown & 1U << i) == 0 || (!content->scales && content->at[i] % SLC_BLOCK != 0))
            return "converted in blocks it must show the live tensor's last two dims, and begin with a block";
    for (int i = 0; i < served->ndim; i++)
        if ((shown & 1U << i) == 0 && !inside(content->at[i], 1, served->shape[i]))
            return "it leaves the live tensor";
    return NULL;
}

/* The parameter that the box at `index`, `list`[number] of the live tensor, speaks of. */
static sluice_status read_source(lua_State *L, int index, const slc_job *job, const slc_served *served, const char *list,
                                 size_t number, uint32_t *param, sluice_error *error)
{
    lua_getfield(L, index, "source");
    const char *source = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    size_t found = slc_job_find(job, source);
    sluice_status status = SLUICE_OK;
    if (found == SIZE_MAX)
        status = slc_fail(error, SLUICE_INVALID, STAGE, "live \"%s\": %s[%zu].source (%s) is no parameter", served->name, list,
                          number + 1, source);
    lua_pop(L, 1);
    *param = (uint32_t)found;
    return status;
}

static sluice_status read_content(lua_State *L, int index, const slc_job *job, const slc_served *served, size_t number,
                                  slc_content *content, sluice_error *error)
{
    sluice_status status = read_source(L, index, job, served, "contents", number, &content->param, error);
    if (status != SLUICE_OK)
        return status;
    const slc_job_param *param = &job->param[content->param];
    int ndim = param->ndim;
    int64_t dim[SLC_JOB_DIMS] = { 0 };
    content->scales = read_flag(L, index, "scales");
    const char *fault = "from, extent, at and dims must be one integer a dim";
    if (read_list(L, index, "from", ndim, 0, content->from) && read_list(L, index, "extent", ndim, 0, content->extent) &&
        read_list(L, index, "at", served->ndim, 0, content->at) && read_list(L, index, "dims", ndim, -1, dim))
        fault = content_fault(job, served, content, dim);
    if (fault != NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "live \"%s\": contents[%zu] of \"%s\": %s", served->name, number + 1,
                        param->name, fault);
    return SLUICE_OK;
}

static sluice_status read_zero(lua_State *L, int index, const slc_job *job, const slc_served *served, size_t number,
                               slc_zero *zero, sluice_error *error)
{
    sluice_status status = read_source(L, index, job, served, "zero", number, &zero->param, error);
    if (status != SLUICE_OK)
        return status;
    bool good =
        read_list(L, index, "at", served->ndim, 0, zero->at) && read_list(L, index, "extent", served->ndim, 0, zero->extent);
    for (int i = 0; good && i < served->ndim; i++)
        good = inside(zero->at[i], zero->extent[i], served->shape[i]);
    if (!good)
        return slc_fail(error, SLUICE_INVALID, STAGE, "live \"%s\": zero[%zu] must be a box inside the tensor", served->name,
                        number + 1);
    return SLUICE_OK;
}

static sluice_status read_boxes(lua_State *L, int index, slc_job *job, slc_served *served, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    served->content = push_list(L, index, "contents", sizeof *served->content, &job->arena, &served->ncontents);
    served->zero = push_list(L, index, "zero", sizeof *served->zero, &job->arena, &served->nzeros);
    if (served->content == NULL || served->zero == NULL)
        status = slc_fail_memory(error, STAGE, "contents", served->ncontents * sizeof *served->content);
    for (size_t i = 0; status == SLUICE_OK && i < served->ncontents; i++) {
        lua_rawgeti(L, -2, (int)i + 1);
        status = lua_istable(L, -1)
                     ? read_content(L, lua_gettop(L), job, served, i, &served->content[i], error)
                     : slc_fail(error, SLUICE_INVALID, STAGE, "live \"%s\": contents[%zu] must be a table", served->name, i + 1);
        lua_pop(L, 1);
    }
    for (size_t i = 0; status == SLUICE_OK && i < served->nzeros; i++) {
        lua_rawgeti(L, -1, (int)i + 1);
        status = lua_istable(L, -1)
                     ? read_zero(L, lua_gettop(L), job, served, i, &served->zero[i], error)
                     : slc_fail(error, SLUICE_INVALID, STAGE, "live \"%s\": zero[%zu] must be a table", served->name, i + 1);
        lua_pop(L, 1);
    }
    lua_pop(L, 2);
    return status;
}

static sluice_status read_strides(lua_State *L, int index, slc_served *served, sluice_error *error)
{
    lua_getfield(L, index, "strides");
    served->strided = !lua_isnil(L, -1);
    lua_pop(L, 1);
    if (!served->strided || read_list(L, index, "strides", served->ndim, 0, served->stride))
        return SLUICE_OK;
    return slc_fail(error, SLUICE_INVALID, STAGE, "live \"%s\": strides must be one whole number below 2^53 a dim", served->name);
}

static sluice_status read_live(lua_State *L, int index, slc_job *job, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    job->served = push_list(L, index, "live", sizeof *job->served, &job->arena, &job->nserved);
    if (job->served == NULL)
        status = slc_fail_memory(error, STAGE, "live tensors", job->nserved * sizeof *job->served);
    for (size_t i = 0; status == SLUICE_OK && i < job->nserved; i++) {
        slc_served *served = &job->served[i];
        lua_rawgeti(L, -1, (int)i + 1);
        int item = lua_gettop(L);
        status = read_tensor(L, item, "live", &job->arena, &served->name, &served->dtype, &served->ndim, served->shape,
                             &served->bytes, error);
        if (status == SLUICE_OK) {
            served->attributes = read_text(L, item, "attributes", &job->arena);
            served->unsourced = read_flag(L, item, "unsourced");
            status = read_strides(L, item, served, error);
        }
        if (status == SLUICE_OK)
            status = read_boxes(L, item, job, served, error);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return status;
}

static sluice_status read_files(lua_State *L, int index, slc_job *job, sluice_error *error)
{
    job->file = push_list(L, index, "files", sizeof *job->file, &job->arena, &job->nfiles);
    bool good = job->file != NULL;
    for (size_t i = 0; good && i < job->nfiles; i++) {
        slc_rule_text *file = &job->file[i];
        lua_rawgeti(L, -1, (int)i + 1);
        good = lua_istable(L, -1);
        if (good) {
            file->name = read_text(L, -1, "name", &job->arena);
            lua_getfield(L, -1, "text");
            const char *text = lua_tolstring(L, -1, &file->length);
            file->text = text == NULL ? NULL : slc_arena_text(&job->arena, text, file->length);
            lua_pop(L, 1);
            file->family = read_text(L, -1, "family", &job->arena);
            lua_getfield(L, -1, "folder");
            file->folder = (int)lua_tointeger(L, -1);
            lua_pop(L, 1);
            good = file->name != NULL && file->text != NULL;
        }
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return good ? SLUICE_OK : slc_fail(error, SLUICE_INVALID, STAGE, "files must be a list of names with their texts");
}

/* ---- the whole ---- */

static sluice_status read_options(lua_State *L, int index, slc_job *job, sluice_error *error)
{
    int64_t rank = 0, trainers = 1, workers = 1, updates = 1, batches = 1, listen_fd = -1, key_fd = -1, slots = 0;
    sluice_status status = read_integer(L, index, "trainers", 1, INT32_MAX, &trainers, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "workers", 1, INT32_MAX - trainers, &workers, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "rank", 0, trainers + workers - 1, &rank, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "updates", 1, INT32_MAX, &updates, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "batches", 1, INT32_MAX, &batches, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "listen_fd", -1, INT32_MAX, &listen_fd, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "key_fd", -1, INT32_MAX, &key_fd, error);
    if (status == SLUICE_OK)
        status = read_integer(L, index, "staging_slots", 0, INT32_MAX, &slots, error);
    job->rank = (int32_t)rank;
    job->trainers = (int32_t)trainers;
    job->workers = (int32_t)workers;
    job->updates = (uint32_t)updates;
    job->batches = (uint32_t)batches;
    job->listen_fd = (int)listen_fd;
    job->key_fd = (int)key_fd;
    job->key_file = read_text(L, index, "key_file", &job->arena);
    job->insecure_control = read_flag(L, index, "insecure_control");
    job->staging_slots = (uint32_t)slots;
    job->rules = read_text(L, index, "rules", &job->arena);
    job->transport = read_text(L, index, "transport", &job->arena);
    job->road = read_text(L, index, "road", &job->arena);
    job->no_sm = read_flag(L, index, "no_sm");
    job->mix = read_flag(L, index, "mix");
    job->grouped = read_flag(L, index, "grouped");
    job->host = read_text(L, index, "host", &job->arena);
    job->allow_attach = read_text(L, index, "allow_attach", &job->arena);
    job->log = read_text(L, index, "log", &job->arena);
    job->save = read_text(L, index, "save", &job->arena);
    job->ordinary = read_flag(L, index, "ordinary");
    job->replay = read_flag(L, index, "replay");
    job->verify = read_flag(L, index, "verify");
    job->timeout_s = read_seconds(L, index, "timeout_s");
    job->beat_s = read_seconds(L, index, "beat_s");
    read_timeouts(L, index, &job->timeouts);
    lua_getfield(L, index, "init_info");
    const char *info = lua_tolstring(L, -1, &job->init_info_length);
    job->init_info = info == NULL ? NULL : slc_arena_text(&job->arena, info, job->init_info_length);
    lua_pop(L, 1);
    return status;
}

sluice_status slc_job_read(lua_State *L, int index, slc_job *job, sluice_error *error)
{
    *job = (slc_job){ .listen_fd = -1, .key_fd = -1 };
    luaL_checkstack(L, 16, "reading a job");
    sluice_status status = read_options(L, index, job, error);
    const char *checkpoint = read_text(L, index, "checkpoint", &job->arena);
    if (status == SLUICE_OK && checkpoint != NULL)
        status = slc_checkpoint_open(checkpoint, &job->checkpoint, error);
    if (status == SLUICE_OK)
        status = read_params(L, index, job, error);
    if (status == SLUICE_OK && slc_job_is_worker(job))
        status = read_live(L, index, job, error);
    if (status == SLUICE_OK)
        status = read_files(L, index, job, error);
    if (status != SLUICE_OK)
        slc_job_clear(job);
    return status;
}

void slc_job_clear(slc_job *job)
{
    slc_checkpoint_close(job->checkpoint);
    slc_arena_clear(&job->arena);
    *job = (slc_job){ .listen_fd = -1, .key_fd = -1 };
}
