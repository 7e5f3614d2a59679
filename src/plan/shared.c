/*
 * shared.c: live tensors that lie in the same memory (tied weights, views of one fused storage). Their writes are compared
 * as runs of bytes. Owns nothing beyond the call.
 */
#include <stdlib.h>

#include "base/error.h"
#include "plan/coverage.h"
#include "plan/write.h"

/* A run of bytes [low, high), and whose it is: a write's index or a live tensor's. */
typedef struct run {
    uintptr_t low, high;
    size_t owner;
} run;

typedef struct run_list {
    run *item;
    size_t count, capacity;
} run_list;

typedef struct extent {
    uintptr_t low, high;
    size_t live;
} extent;

static int by_low(const void *a, const void *b)
{
    const run *x = a, *y = b;
    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    return x->owner < y->owner ? -1 : x->owner > y->owner;
}

static int extent_by_low(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->low != y->low)
        return x->low < y->low ? -1 : 1;
    return x->live < y->live ? -1 : x->live > y->live;
}

void slc_clash_note(slc_clash *clash, size_t a, size_t b)
{
    size_t first = a < b ? a : b, second = a < b ? b : a;
    if (clash->found && (second > clash->second || (second == clash->second && first >= clash->first)))
        return;
    *clash = (slc_clash){ .found = true, .first = first, .second = second };
}

/* ---- regions to runs ---- */

/* A strided region as runs: dims by falling stride, the innermost ones joined while they lie end to end. */
typedef struct region {
    uintptr_t base;
    int64_t run;
    int ndim;
    int64_t count[SLC_MAX_DIMS], stride[SLC_MAX_DIMS];
} region;

static void add_dim(region *r, int64_t count, int64_t stride)
{
    int at = r->ndim++;
    for (; at > 0 && r->stride[at - 1] < stride; at--) {
        r->stride[at] = r->stride[at - 1];
        r->count[at] = r->count[at - 1];
    }
    r->stride[at] = stride;
    r->count[at] = count;
}

static region region_of(const slc_live *live, const slc_range *range)
{
    region r = { .base = (uintptr_t)live->data, .run = live->dtype->bytes };
    for (int d = 0; d < live->ndim; d++) {
        int64_t start = range == NULL ? 0 : range[d].start, step = range == NULL ? 1 : range[d].step;
        int64_t count = range == NULL ? live->shape[d] : range[d].count;
        r.base += (uintptr_t)(start * live->stride[d]);
        if (count == 0)
            r.run = 0;
        if (count != 1)
            add_dim(&r, count, step * live->stride[d]);
    }
    while (r.run > 0 && r.ndim > 0 && r.stride[r.ndim - 1] == r.run)
        r.run *= r.count[--r.ndim];
    return r;
}

static sluice_status add_runs(run_list *list, const region *r, size_t owner, int64_t *left, sluice_error *error)
{
    if (r->run == 0)
        return SLUICE_OK;
    int64_t runs = 1;
    for (int d = 0; d < r->ndim; d++)
        if (!slc_multiply(runs, r->count[d], &runs) || runs > *left)
            runs = *left + 1;
    if (runs > *left)
        return slc_fail(error, SLUICE_INVALID, "destination",
                        "live tensors that share memory fall into more than %lld runs of bytes, too many to compare; register "
                        "them as one tensor",
                        (long long)SLC_MAX_SHARED_RUNS);
    *left -= runs;
    size_t needed = list->count + (size_t)runs;
    if (needed > list->capacity) {
        size_t capacity = list->capacity * 2 > needed ? list->capacity * 2 : needed;
        run *item = slc_reallocate(list->item, capacity * sizeof *item);
        if (item == NULL)
            return slc_fail_memory(error, "destination", "runs of shared memory", capacity * sizeof *item);
        list->item = item;
        list->capacity = capacity;
    }
    int64_t at[SLC_MAX_DIMS] = { 0 };
    for (int64_t i = 0; i < runs; i++) {
        uintptr_t low = r->base;
        for (int d = 0; d < r->ndim; d++)
            low += (uintptr_t)(at[d] * r->stride[d]);
        list->item[list->count++] = (run){ .low = low, .high = low + (uintptr_t)r->run, .owner = owner };
        for (int d = r->ndim - 1; d >= 0 && ++at[d] == r->count[d]; d--)
            at[d] = 0;
    }
    return SLUICE_OK;
}

static void sort(run_list *list)
{
    if (list->count > 1)
        qsort(list->item, list->count, sizeof *list->item, by_low);
}

/* Joins sorted runs that touch or overlap, whoever owns them. */
static void join(run_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        run next = list->item[i];
        if (kept > 0 && next.low <= list->item[kept - 1].high) {
            if (next.high > list->item[kept - 1].high)
                list->item[kept - 1].high = next.high;
        } else {
            list->item[kept++] = next;
        }
    }
    list->count = kept;
}

static int64_t total(const run_list *list)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < list->count; i++)
        bytes += (int64_t)(list->item[i].high - list->item[i].low);
    return bytes;
}

/* Bytes of [low, high) in joined runs. */
static int64_t within(const run_list *joined, uintptr_t low, uintptr_t high)
{
    size_t from = 0, to = joined->count;
    while (from < to) {
        size_t middle = from + (to - from) / 2;
        if (joined->item[middle].high <= low)
            from = middle + 1;
        else
            to = middle;
    }
    int64_t bytes = 0;
    for (size_t i = from; i < joined->count && joined->item[i].low < high; i++) {
        uintptr_t a = joined->item[i].low > low ? joined->item[i].low : low;
        uintptr_t b = joined->item[i].high < high ? joined->item[i].high : high;
        bytes += (int64_t)(b - a);
    }
    return bytes;
}

/* ---- one cluster ---- */

typedef struct cluster {
    const slc_write_list *writes;
    const size_t *first, *write; /* the writes of live tensor i: write[first[i]] to write[first[i + 1]] */
    const slc_live_set *live;
    const extent *member;
    size_t count;
    int64_t left; /* runs that may still be made */
} cluster;

/* Sorted writes: one that begins before an earlier one has ended shares a byte with it. */
static void find_clashes(const run_list *sorted, const slc_write_list *writes, slc_clash *clash)
{
    size_t furthest = 0;
    for (size_t i = 1; i < sorted->count; i++) {
        const run *before = &sorted->item[furthest], *here = &sorted->item[i];
        /* Writes of one live tensor were compared by their views. */
        if (here->low < before->high && writes->item[here->owner].live != writes->item[before->owner].live)
            slc_clash_note(clash, before->owner, here->owner);
        if (here->high >= before->high)
            furthest = i;
    }
}

static sluice_status check_cluster(const cluster *c, slc_clash *clash, slc_byte_count *count, sluice_error *error)
{
    run_list written = { 0 }, memory = { 0 };
    int64_t left = c->left, alone = 0;
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < c->count && status == SLUICE_OK; i++) {
        size_t live = c->member[i].live;
        for (size_t k = c->first[live]; k < c->first[live + 1] && status == SLUICE_OK; k++) {
            region r = region_of(&c->live->item[live], c->writes->item[c->write[k]].range);
            status = add_runs(&written, &r, c->write[k], &left, error);
        }
    }
    if (status != SLUICE_OK)
        goto out;
    sort(&written);
    find_clashes(&written, c->writes, clash);
    join(&written);
    for (size_t i = 0; i < c->count && status == SLUICE_OK; i++) {
        size_t live = c->member[i].live, before = memory.count;
        region r = region_of(&c->live->item[live], NULL);
        if ((status = add_runs(&memory, &r, live, &left, error)) != SLUICE_OK)
            break;
        int64_t bytes = slc_live_bytes(&c->live->item[live]), covered = 0;
        for (size_t k = before; k < memory.count; k++)
            covered += within(&written, memory.item[k].low, memory.item[k].high);
        count->unwritten[live] = bytes - covered;
        alone += bytes;
    }
    if (status != SLUICE_OK)
        goto out;
    sort(&memory);
    join(&memory);
    count->live_bytes -= alone - total(&memory);
out:
    slc_release(written.item);
    slc_release(memory.item);
    return status;
}

/* ---- clusters ---- */

/* The writes of each live tensor, by counting: *first has a place for each tensor and one more. */
static bool by_live(const slc_write_list *writes, size_t nlive, size_t **first, size_t **write)
{
    *first = slc_allocate_zeroed(nlive + 2, sizeof **first);
    *write = slc_allocate_zeroed(writes->count, sizeof **write);
    if (*first == NULL || *write == NULL)
        return false;
    size_t *end = *first + 1; /* one place on, so that filling moves each begin to where it belongs */
    for (size_t i = 0; i < writes->count; i++)
        end[writes->item[i].live + 1]++;
    for (size_t i = 0; i < nlive; i++)
        end[i + 1] += end[i];
    for (size_t i = 0; i < writes->count; i++)
        (*write)[end[writes->item[i].live]++] = i;
    return true;
}

sluice_status slc_shared_memory_check(const slc_write_list *writes, const slc_live_set *live, slc_clash *clash,
                                      slc_byte_count *count, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    size_t *first = NULL, *write = NULL, filled = 0;
    bool shared = false;
    extent *member = slc_allocate_zeroed(live->count, sizeof *member);
    if (member == NULL)
        return slc_fail_memory(error, "destination", "the addresses of live tensors", live->count * sizeof *member);
    for (size_t i = 0; i < live->count; i++) {
        extent e = { .live = i };
        slc_live_span(&live->item[i], &e.low, &e.high);
        if (live->item[i].data != NULL && e.low < e.high)
            member[filled++] = e;
    }
    if (filled > 1)
        qsort(member, filled, sizeof *member, extent_by_low);
    for (size_t from = 0, to; from < filled && status == SLUICE_OK; from = to) {
        uintptr_t high = member[from].high;
        for (to = from + 1; to < filled && member[to].low < high; to++)
            high = member[to].high > high ? member[to].high : high;
        if (to - from == 1)
            continue;
        if (!shared && !by_live(writes, live->count, &first, &write)) {
            status = slc_fail_memory(error, "destination", "the writes of live tensors", writes->count * sizeof *write);
            break;
        }
        shared = true;
        cluster c = { .writes = writes,
                      .first = first,
                      .write = write,
                      .live = live,
                      .member = member + from,
                      .count = to - from,
                      .left = SLC_MAX_SHARED_RUNS };
        status = check_cluster(&c, clash, count, error);
    }
    slc_release(member);
    slc_release(first);
    slc_release(write);
    return status;
}
