/* verify.c: compares live memory with the description, stretch by stretch. Owns nothing; reads live memory only. */
#include "cli/verify.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/flag.h"
#include "cli/blocks.h"
#include "cli/walk.h"

enum { CHUNK = 32768, SHOWN = 16 };

typedef struct {
    const slc_job *job;
    const slc_served *served;
    uint64_t update;
    const volatile bool *cancelled;
    uint64_t checked;
    bool differs; /* this live tensor does */
    size_t tensors; /* that differ */
    sluice_error *error;
} check;

static void index_text(int ndim, const int64_t *index, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i == 0 ? "" : ", ", (long long)index[i]);
    if (used < size)
        snprintf(text + used, size - used, "]");
}

static void unravel(int64_t element, int ndim, const int64_t *shape, char *text, size_t size)
{
    int64_t index[SLC_JOB_DIMS] = { 0 };
    for (int i = ndim - 1; i >= 0; i--) {
        index[i] = element % shape[i];
        element /= shape[i];
    }
    index_text(ndim, index, text, size);
}

static void hex(const unsigned char *bytes, size_t count, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (size_t i = 0; i < count && used + 3 < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%02x", i == 0 ? "" : " ", bytes[i]);
}

/* What wrong bytes look like: an earlier update, memory never written, or neither. */
static void guess(const check *c, const slc_values *values, uint64_t offset, const unsigned char *found, size_t count, char *text,
                  size_t size)
{
    unsigned char other[SHOWN];
    for (uint64_t update = c->update - 1; values != NULL && update >= 1; update--) {
        slc_values_write(values, update, offset, other, count);
        if (memcmp(other, found, count) == 0) {
            snprintf(text, size, ": stale, the values of update %llu", (unsigned long long)update);
            return;
        }
    }
    memset(other, SLC_POISON, count);
    snprintf(text, size, "%s", memcmp(other, found, count) == 0 ? ": never written since it was allocated" : "");
}

/* The first difference of the first tensor is told, later ones are counted. */
static void differ(check *c, const slc_job_param *param, uint64_t source, int64_t live, const unsigned char *expected,
                   const unsigned char *found, size_t bytes)
{
    if (c->differs)
        return;
    c->differs = true;
    if (c->tensors++ > 0)
        return;
    const slc_served *served = c->served;
    char where[160], from[256] = "padding, which must be zero", want[SHOWN * 3 + 1], got[SHOWN * 3 + 1], why[96], at[160];
    size_t shown = bytes < SHOWN ? bytes : SHOWN;
    unravel(live / served->dtype->bytes, served->ndim, served->shape, where, sizeof where);
    slc_values zeros = { 0 };
    if (param != NULL) {
        unravel((int64_t)source / param->dtype->bytes, param->ndim, param->shape, at, sizeof at);
        snprintf(from, sizeof from, "\"%.80s\" %s", param->name, at);
        zeros = param->values;
    }
    hex(expected, shown, want, sizeof want);
    hex(found, shown, got, sizeof got);
    guess(c, param == NULL ? NULL : &zeros, source, found, shown, why, sizeof why);
    slc_fail(c->error, SLUICE_INTERNAL, "verify", "update %llu: \"%s\" %s holds %s where %s has %s%s",
             (unsigned long long)c->update, served->name, where, got, from, want, why);
}

static void compare(check *c, const slc_job_param *param, uint64_t source, int64_t live, const unsigned char *expected,
                    size_t bytes)
{
    const unsigned char *found = c->served->data + live;
    if (memcmp(expected, found, bytes) == 0)
        return;
    size_t element = (size_t)c->served->dtype->bytes, at = 0;
    while (expected[at] == found[at])
        at++;
    at -= at % element;
    uint64_t before = param == NULL ? at : at / element * (uint64_t)param->dtype->bytes;
    differ(c, param, source + before, live + (int64_t)at, expected + at, found + at, bytes - at);
}

static void check_stretch(check *c, const slc_job_param *param, const slc_stretch *stretch)
{
    unsigned char expected[CHUNK];
    uint64_t source = (uint64_t)stretch->source;
    if (stretch->units == 1) {
        for (int64_t done = 0; done < stretch->unit; done += CHUNK) {
            size_t now = stretch->unit - done < CHUNK ? (size_t)(stretch->unit - done) : CHUNK;
            slc_values_write(&param->values, c->update, source + (uint64_t)done, expected, now);
            compare(c, param, source + (uint64_t)done, stretch->live + done, expected, now);
        }
    } else {
        int64_t fit = CHUNK / stretch->unit;
        for (int64_t done = 0; done < stretch->units; done += fit) {
            int64_t now = stretch->units - done < fit ? stretch->units - done : fit;
            uint64_t from = source + (uint64_t)(done * stretch->unit);
            slc_values_write(&param->values, c->update, from, expected, (size_t)(now * stretch->unit));
            for (int64_t i = 0; i < now; i++)
                compare(c, param, from + (uint64_t)(i * stretch->unit), stretch->live + (done + i) * stretch->step,
                        expected + i * stretch->unit, (size_t)stretch->unit);
        }
    }
    c->checked += (uint64_t)(stretch->unit * stretch->units);
}

/* The same where values are converted on the way: the stretch counts the parameter's bytes on both sides. */
static void check_converted(check *c, slc_cast cast, const slc_job_param *param, const slc_stretch *stretch)
{
    unsigned char before[CHUNK], expected[CHUNK];
    const int64_t size = slc_cast_from(cast), landed = slc_cast_to(cast), most = CHUNK / size, count = stretch->unit / size * stretch->units;
    for (int64_t done = 0; done < count; done += most) {
        int64_t now = count - done < most ? count - done : most;
        uint64_t from = (uint64_t)(stretch->source + done * size);
        slc_values_write(&param->values, c->update, from, before, (size_t)(now * size));
        slc_cast_row(cast, expected, landed, before, size, now);
        int64_t together = stretch->units == 1 ? now : 1, first = stretch->units == 1 ? done * size : done * stretch->step;
        for (int64_t i = 0; i < now; i += together)
            compare(c, param, from + (uint64_t)(i * size), (stretch->live + first + i * stretch->step) / size * landed,
                    expected + i * landed, (size_t)(together * landed));
    }
    c->checked += (uint64_t)(count * landed);
}

/* In blocks. */
typedef struct blocks_check {
    check *c;
    const slc_job_param *param;
} blocks_check;

static void read_values(void *context, uint64_t offset, unsigned char *out, size_t count)
{
    const blocks_check *b = context;
    slc_values_write(&b->param->values, b->c->update, offset, out, count);
}

static void check_landed(void *context, uint64_t source, int64_t live, const unsigned char *bytes, size_t count)
{
    const blocks_check *b = context;
    compare(b->c, b->param, source, live, bytes, count);
    b->c->checked += count;
}

static void check_content(check *c, const slc_content *content)
{
    const slc_served *served = c->served;
    const slc_job_param *param = &c->job->param[content->param];
    slc_cast cast = slc_content_cast(param, served, content);
    if (slc_cast_in_blocks(cast)) {
        blocks_check b = { .c = c, .param = param };
        slc_blocks_go(param, served, content, cast, read_values, check_landed, &b);
        return;
    }
    slc_walk walk;
    slc_stretch stretch;
    slc_walk_begin(&walk, content, param->ndim, param->shape, served->ndim, served->shape, param->dtype->bytes);
    while (slc_walk_next(&walk, &stretch))
        if (cast == SLC_CAST_NONE)
            check_stretch(c, param, &stretch);
        else
            check_converted(c, cast, param, &stretch);
}

static void check_zero(check *c, const slc_zero *zero)
{
    static const unsigned char zeros[CHUNK];
    slc_content box = { 0 };
    for (int i = 0; i < c->served->ndim && i < SLC_JOB_DIMS; i++) {
        box.dim[i] = (int8_t)i;
        box.extent[i] = zero->extent[i];
        box.at[i] = zero->at[i];
    }
    slc_walk walk;
    slc_stretch stretch;
    slc_walk_begin(&walk, &box, c->served->ndim, c->served->shape, c->served->ndim, c->served->shape, c->served->dtype->bytes);
    while (slc_walk_next(&walk, &stretch)) {
        for (int64_t done = 0; done < stretch.unit; done += CHUNK) {
            size_t now = stretch.unit - done < CHUNK ? (size_t)(stretch.unit - done) : CHUNK;
            compare(c, NULL, 0, stretch.live + done, zeros, now);
        }
        c->checked += (uint64_t)stretch.unit;
    }
}

/* Nothing may have written where the trainer brings nothing. */
static void check_untouched(check *c)
{
    const slc_served *served = c->served;
    int64_t at = 0;
    while (at < served->bytes && served->data[at] == SLC_POISON)
        at++;
    c->checked += (uint64_t)served->bytes;
    if (at == served->bytes || c->tensors++ > 0)
        return;
    char where[160];
    unravel(at / served->dtype->bytes, served->ndim, served->shape, where, sizeof where);
    slc_fail(c->error, SLUICE_INTERNAL, "verify", "update %llu: \"%s\" %s was written, yet no parameter belongs there",
             (unsigned long long)c->update, served->name, where);
}

static sluice_status check_served(check *c)
{
    const slc_served *served = c->served;
    uint64_t before = c->checked;
    c->differs = false;
    if (served->unsourced)
        check_untouched(c);
    for (size_t i = 0; i < served->ncontents; i++) {
        check_content(c, &served->content[i]);
        if (slc_flag_raised(c->cancelled))
            return slc_fail(c->error, SLUICE_CANCELLED, "verify", "cancelled in update %llu", (unsigned long long)c->update);
    }
    for (size_t i = 0; i < served->nzeros; i++)
        check_zero(c, &served->zero[i]);
    if (c->checked - before != (uint64_t)served->bytes)
        return slc_fail(c->error, SLUICE_INTERNAL, "verify", "\"%s\": %llu of %lld bytes were checked", served->name,
                        (unsigned long long)(c->checked - before), (long long)served->bytes);
    return SLUICE_OK;
}

sluice_status slc_verify(const slc_job *job, uint64_t update, const volatile bool *cancelled, uint64_t *checked,
                         sluice_error *error)
{
    check c = { .job = job, .update = update, .cancelled = cancelled, .error = error };
    *checked = 0;
    for (size_t i = 0; i < job->nserved; i++) {
        c.served = &job->served[i];
        sluice_status status = check_served(&c);
        if (status != SLUICE_OK)
            return status;
    }
    *checked = c.checked;
    if (c.tensors == 0)
        return SLUICE_OK;
    if (error != NULL) {
        size_t used = strlen(error->text);
        snprintf(error->text + used, sizeof error->text - used, " (%zu of %zu live tensors differ)", c.tensors, job->nserved);
    }
    return SLUICE_INTERNAL;
}
