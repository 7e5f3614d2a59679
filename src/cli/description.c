/* description.c: whether a description speaks of every live byte exactly once, save of tensors that it calls unsourced, of which
 * it must not speak. Owns its list of boxes for one tensor. */
#include "cli/verify.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

typedef struct {
    int64_t low[SLC_JOB_DIMS], high[SLC_JOB_DIMS];
    size_t number; /* contents first, then zeros */
} box;

static box box_of_content(const slc_content *content, int param_ndim, int ndim, size_t number)
{
    box out = { .number = number };
    for (int i = 0; i < ndim; i++) {
        out.low[i] = content->at[i];
        out.high[i] = content->at[i] + 1;
    }
    for (int i = 0; i < param_ndim; i++)
        if (content->dim[i] >= 0) {
            int64_t unit = content->scales && content->dim[i] >= ndim - 2 ? SLC_BLOCK : 1;
            out.high[content->dim[i]] = out.low[content->dim[i]] + (content->extent[i] + unit - 1) / unit;
        }
    return out;
}

static box box_of_zero(const slc_zero *zero, int ndim, size_t number)
{
    box out = { .number = number };
    for (int i = 0; i < ndim; i++) {
        out.low[i] = zero->at[i];
        out.high[i] = zero->at[i] + zero->extent[i];
    }
    return out;
}

static bool meet(const box *a, const box *b, int ndim)
{
    for (int i = 0; i < ndim; i++)
        if (a->low[i] >= b->high[i] || b->low[i] >= a->high[i])
            return false;
    return true;
}

static int by_low(const void *left, const void *right, void *dim)
{
    const box *a = left, *b = right;
    int d = *(const int *)dim;
    return (a->low[d] > b->low[d]) - (a->low[d] < b->low[d]);
}

/* Sorts along the dim with the most different starts, so that few pairs are left to look at. */
static int sort(box *boxes, size_t count, int ndim)
{
    int best = 0;
    size_t most = 0;
    for (int d = 0; d < ndim; d++) {
        qsort_r(boxes, count, sizeof *boxes, by_low, &d);
        size_t different = 1;
        for (size_t i = 1; i < count; i++)
            different += boxes[i].low[d] != boxes[i - 1].low[d];
        if (different > most) {
            most = different;
            best = d;
        }
    }
    qsort_r(boxes, count, sizeof *boxes, by_low, &best);
    return best;
}

static int64_t volume(const box *b, int ndim)
{
    int64_t elements = 1;
    for (int i = 0; i < ndim; i++)
        elements *= b->high[i] - b->low[i];
    return elements;
}

static void speaker(const slc_job *job, const slc_served *served, size_t number, char *text, size_t size)
{
    if (number < served->ncontents)
        snprintf(text, size, "\"%s\"", job->param[served->content[number].param].name);
    else
        snprintf(text, size, "a box of zeros");
}

static sluice_status meets(const slc_job *job, const slc_served *served, const box *a, const box *b, sluice_error *error)
{
    char first[256], second[256];
    speaker(job, served, a->number, first, sizeof first);
    speaker(job, served, b->number, second, sizeof second);
    return slc_fail(error, SLUICE_INVALID, "description", "live \"%s\": %s and %s lie on the same elements", served->name, first,
                    second);
}

static sluice_status check_boxes(const slc_job *job, const slc_served *served, box *boxes, size_t count, sluice_error *error)
{
    int64_t elements = 0;
    for (size_t i = 0; i < count; i++)
        elements += volume(&boxes[i], served->ndim);
    int dim = served->ndim > 0 && count > 0 ? sort(boxes, count, served->ndim) : 0;
    for (size_t i = 0; i < count; i++)
        for (size_t j = i + 1; j < count && (served->ndim == 0 || boxes[j].low[dim] < boxes[i].high[dim]); j++)
            if (meet(&boxes[i], &boxes[j], served->ndim))
                return meets(job, served, &boxes[i], &boxes[j], error);
    int64_t bytes = elements * served->dtype->bytes;
    if (served->unsourced && count > 0)
        return slc_fail(error, SLUICE_INVALID, "description",
                        "live \"%s\": it is unsourced, yet the description says what lies in it", served->name);
    if (!served->unsourced && bytes != served->bytes)
        return slc_fail(error, SLUICE_INVALID, "description",
                        "live \"%s\": it speaks of %lld of %lld bytes, it must speak of each", served->name, (long long)bytes,
                        (long long)served->bytes);
    return SLUICE_OK;
}

sluice_status slc_verify_description(const slc_job *job, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    for (size_t s = 0; s < job->nserved && status == SLUICE_OK; s++) {
        const slc_served *served = &job->served[s];
        size_t count = 0;
        box *boxes = slc_allocate_zeroed(served->ncontents + served->nzeros, sizeof *boxes);
        if (boxes == NULL)
            return slc_fail_memory(error, "description", "boxes", (served->ncontents + served->nzeros) * sizeof *boxes);
        for (size_t i = 0; i < served->ncontents; i++) {
            const slc_content *content = &served->content[i];
            boxes[count] = box_of_content(content, job->param[content->param].ndim, served->ndim, i);
            count += volume(&boxes[count], served->ndim) > 0;
        }
        for (size_t i = 0; i < served->nzeros; i++) {
            boxes[count] = box_of_zero(&served->zero[i], served->ndim, served->ncontents + i);
            count += volume(&boxes[count], served->ndim) > 0;
        }
        status = check_boxes(job, served, boxes, count, error);
        slc_release(boxes);
    }
    return status;
}
