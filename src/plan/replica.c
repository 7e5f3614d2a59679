/* replica.c: sharing out a plan's pieces over the replicas of their sources. Owns the loads of a scheduler's groups. */
#include "plan/replica.h"

#include "base/error.h"
#include "base/memory.h"

enum {
    EVEN_ENOUGH = 16, /* a busiest replica at most 1/16 above the mean needs no further cutting */
    MOST_LOADS = 1 << 24 /* replicas kept track of; layouts beyond that take turns */
};

/* What the replicas of one layout have sent beyond equal shares. `load` is made when the first such part comes. */
struct slc_scheduler_group {
    int32_t replicas;
    int32_t first, width; /* the window used last, */
    int64_t room; /* and the bytes it may still take before another is looked for */
    uint64_t *load; /* wraps: what no memory holds is shared out less evenly, the same on every rank */
};

int32_t slc_schedule_replica(slc_schedule schedule, int64_t destination, int32_t part)
{
    return (int32_t)((schedule.first + destination * schedule.parts + part) % schedule.replicas);
}

void slc_scheduler_begin(slc_scheduler *scheduler, int64_t quantum)
{
    *scheduler = (slc_scheduler){ .quantum = quantum < 1 ? 1 : quantum };
}

void slc_scheduler_end(slc_scheduler *scheduler)
{
    for (size_t i = 0; i < scheduler->layouts.count; i++)
        slc_release(scheduler->group[i].load);
    slc_release(scheduler->group);
    slc_address_clear(&scheduler->layouts);
    *scheduler = (slc_scheduler){ 0 };
}

static struct slc_scheduler_group *group_of(slc_scheduler *scheduler, const slc_layout *source)
{
    size_t at = slc_address_find(&scheduler->layouts, source);
    if (at != SLC_NOT_FOUND)
        return &scheduler->group[at];
    at = scheduler->layouts.count;
    if (at == scheduler->capacity) {
        size_t capacity = at == 0 ? 16 : at * 2;
        struct slc_scheduler_group *group = slc_reallocate(scheduler->group, capacity * sizeof *group);
        if (group == NULL)
            return NULL;
        scheduler->group = group;
        scheduler->capacity = capacity;
    }
    if (!slc_address_add(&scheduler->layouts, source))
        return NULL;
    scheduler->group[at] = (struct slc_scheduler_group){ .replicas = slc_layout_replicas(source) };
    return &scheduler->group[at];
}

/* The fewest parts of at least a quantum each that keep the busiest replica close to the mean. */
static int32_t parts_for(int64_t replicas, slc_fanout fanout, int64_t quantum)
{
    int64_t fit = fanout.bytes / fanout.destinations / quantum;
    fit = fit < 1 ? 1 : fit > replicas ? replicas : fit;
    /* Pieces of unequal size are even only when each of them goes to all replicas. */
    if (!fanout.even || fanout.destinations * fit <= replicas)
        return (int32_t)fit;
    int64_t least = replicas / fanout.destinations, best = 1, best_most = INT64_MAX;
    for (int64_t parts = least < 1 ? 1 : least; parts <= fit; parts++) {
        int64_t all = fanout.destinations * parts, most = (all + replicas - 1) / replicas;
        if ((most * replicas - all) * EVEN_ENOUGH <= all)
            return (int32_t)parts;
        /* most / all is the busiest replica's share; both sides fit, for there are at most 2^31 of each factor. */
        if (best_most == INT64_MAX || (double)most / (double)all < (double)best_most / (double)(fanout.destinations * best)) {
            best = parts;
            best_most = most;
        }
    }
    return (int32_t)best;
}

/* The first replica of the `width` neighbours that have sent the least; on equal sums the one soonest behind the last window. */
static int32_t least_loaded(const struct slc_scheduler_group *group, int32_t width)
{
    int32_t replicas = group->replicas, start = (group->first + group->width) % replicas, best = start;
    uint64_t sum = 0;
    for (int32_t i = 0; i < width; i++)
        sum += group->load[(start + i) % replicas];
    uint64_t least = sum;
    for (int32_t i = 1, head = start, tail = (start + width) % replicas; i < replicas; i++) {
        sum += group->load[tail] - group->load[head];
        head = head + 1 == replicas ? 0 : head + 1;
        tail = tail + 1 == replicas ? 0 : tail + 1;
        if (sum < least) {
            least = sum;
            best = head;
        }
    }
    return best;
}

/* Finds the window of `width` replicas that send one part of `bytes` more than the others. */
static sluice_status take_window(slc_scheduler *scheduler, struct slc_scheduler_group *group, int32_t width, int64_t bytes,
                                 sluice_error *error)
{
    if (group->load == NULL && scheduler->loads + (size_t)group->replicas <= MOST_LOADS) {
        group->load = slc_allocate_zeroed((size_t)group->replicas, sizeof *group->load);
        if (group->load == NULL)
            return slc_fail_memory(error, "init", "the loads of replicas", (size_t)group->replicas * sizeof *group->load);
        scheduler->loads += (size_t)group->replicas;
    }
    if (group->width != width || group->room < bytes) {
        group->first = group->load == NULL ? (group->first + group->width) % group->replicas : least_loaded(group, width);
        group->width = width;
        group->room = scheduler->quantum;
    }
    group->room -= bytes;
    for (int32_t i = 0; i < width && group->load != NULL; i++)
        group->load[(group->first + i) % group->replicas] += (uint64_t)bytes;
    return SLUICE_OK;
}

sluice_status slc_scheduler_next(slc_scheduler *scheduler, const slc_layout *source, slc_fanout fanout, slc_schedule *schedule,
                                 sluice_error *error)
{
    *schedule = (slc_schedule){ .replicas = 1, .parts = 1, .first = 0 };
    struct slc_scheduler_group *group = group_of(scheduler, source);
    if (group == NULL)
        return slc_fail_memory(error, "init", "the replicas of a layout", sizeof *group);
    if (group->replicas == 1)
        return SLUICE_OK;
    schedule->replicas = group->replicas;
    schedule->parts = parts_for(group->replicas, fanout, scheduler->quantum);
    int32_t width = (int32_t)(fanout.destinations * schedule->parts % group->replicas);
    /* Uneven pieces that do not go to all replicas: somebody gets the larger ones, in turn. */
    if (width == 0 && !fanout.even && schedule->parts < group->replicas)
        width = 1;
    if (width > 0) {
        sluice_status status =
            take_window(scheduler, group, width, fanout.bytes / (fanout.destinations * schedule->parts), error);
        if (status != SLUICE_OK)
            return status;
    }
    schedule->first = group->first;
    return SLUICE_OK;
}
