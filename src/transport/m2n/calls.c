/* calls.c: the list of a plan's reshards, and where one lands on a worker. */
#include "transport/m2n/calls.h"

#include "base/error.h"
#include "base/memory.h"
#include "plan/landing.h"
#include "plan/text.h"

static bool moves(const slc_param *param)
{
    return param->mode == SLC_MODE_DIRECT || param->mode == SLC_MODE_FULL;
}

/* Targets that only clear bring nothing. */
static bool brings(const slc_param *param, size_t target)
{
    return param->mode == SLC_MODE_FULL || param->target[target].pad != SLC_PAD_CLEAR;
}

static size_t targets_of(const slc_param *param)
{
    return param->mode == SLC_MODE_DIRECT ? param->ntargets : param->mode == SLC_MODE_FULL ? 1 : 0;
}

static size_t most_calls(const slc_plan *plan)
{
    size_t most = 0;
    for (size_t i = 0; i < slc_plan_count(plan); i++)
        most += targets_of(slc_plan_at(plan, i));
    return most;
}

/* Appends the calls of one parameter, or none. */
static sluice_status express_all(const slc_plan *plan, size_t index, uint64_t staging, slc_m2n_calls *calls, sluice_error *error)
{
    const slc_param *param = slc_plan_at(plan, index);
    size_t before = calls->count;
    for (size_t t = 0; t < targets_of(param); t++) {
        if (!brings(param, t))
            continue;
        sluice_status status = slc_m2n_express(plan, index, (uint32_t)t, staging, &calls->call[calls->count++], error);
        if (status != SLUICE_OK) {
            calls->count = before;
            return status;
        }
    }
    return SLUICE_OK;
}

static sluice_status refuse(const sluice_error *first, size_t more, sluice_error *error)
{
    const char *text = first->text + sizeof "runtime: " - 1; /* slc_fail puts the stage in front again */
    if (more == 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, "runtime", "%s; transport nccl can, alone or mixed with m2n", text);
    return slc_fail(error, SLUICE_UNSUPPORTED, "runtime",
                    "%s, nor %zu more parameter%s; transport nccl can, alone or mixed with m2n", text, more,
                    more == 1 ? "" : "s");
}

sluice_status slc_m2n_calls_make(const slc_plan *plan, bool mix, uint64_t staging, slc_m2n_calls *calls, sluice_error *error)
{
    size_t count = slc_plan_count(plan), most = most_calls(plan);
    sluice_error first = SLUICE_ERROR_INIT;
    *calls = (slc_m2n_calls){ .count = 0 };
    calls->call = slc_allocate_zeroed(most + 1, sizeof *calls->call);
    calls->first = slc_allocate_zeroed(count + 1, sizeof *calls->first);
    if (calls->call == NULL || calls->first == NULL) {
        slc_m2n_calls_clear(calls);
        return slc_fail_memory(error, "runtime", "the list of reshards", most * sizeof *calls->call);
    }
    for (size_t i = 0; i < count; i++) {
        calls->first[i] = calls->count;
        if (express_all(plan, i, staging, calls, calls->elsewhere == 0 ? &first : NULL) != SLUICE_OK)
            calls->elsewhere++;
    }
    calls->first[count] = calls->count;
    if (mix || calls->elsewhere == 0)
        return SLUICE_OK;
    size_t more = calls->elsewhere - 1;
    slc_m2n_calls_clear(calls);
    return refuse(&first, more, error);
}

void slc_m2n_calls_clear(slc_m2n_calls *calls)
{
    slc_release(calls->call);
    slc_release(calls->first);
    *calls = (slc_m2n_calls){ .count = 0 };
}

bool slc_m2n_elsewhere(const slc_plan *plan, const slc_m2n_calls *calls, size_t index)
{
    const slc_param *param = slc_plan_at(plan, index);
    bool something = false;
    for (size_t t = 0; t < targets_of(param); t++)
        something = something || brings(param, t);
    return moves(param) && something && calls->first[index] == calls->first[index + 1];
}

/* Whether the box lies in the window without gaps. */
static bool without_gaps(const slc_landing *landing)
{
    int64_t stride = landing->item;
    for (int d = landing->ndim - 1; d >= 0; d--) {
        int64_t extent = landing->box.high[d] - landing->box.low[d];
        if (extent > 1 && landing->window.stride[d] != stride)
            return false;
        stride *= extent;
    }
    return true;
}

sluice_status slc_m2n_land(const slc_plan *plan, const slc_m2n_call *call, const slc_live_set *set, int32_t rank, size_t *live,
                           int64_t *offset, sluice_error *error)
{
    const slc_param *param = slc_plan_at(plan, call->param);
    const slc_target *target = &param->target[call->target];
    slc_landing landing;
    *live = SIZE_MAX;
    *offset = 0;
    sluice_status status = slc_target_land(param, target, set, rank, &landing, error);
    if (status != SLUICE_OK || !landing.holds)
        return status;
    if (!without_gaps(&landing)) {
        char place[SLC_PLACE_TEXT];
        slc_place_text(param, param->where, place);
        return slc_fail(
            error, SLUICE_UNSUPPORTED, "runtime",
            "%s: transport m2n cannot move it: live '%.200s' of worker rank %d has gaps in memory where it is written", place,
            target->live, (int)rank);
    }
    *live = landing.live;
    *offset = landing.window.offset;
    return SLUICE_OK;
}
