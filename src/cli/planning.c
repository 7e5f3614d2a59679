/* planning.c: what init does before it resolves. Owns what a planning holds until its end. */
#include "cli/planning.h"

#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/transport.h"

/* Live tensors need addresses that do not meet; nobody reads or writes there. */
static sluice_status add_live(slc_planning *p, const slc_job *job, sluice_error *error)
{
    uintptr_t address = 4096;
    for (size_t i = 0; i < job->nserved; i++) {
        const slc_served *served = &job->served[i];
        slc_live live = { .name = served->name,
                          .dtype = served->dtype,
                          .ndim = served->ndim,
                          .attributes = served->attributes == NULL ? "{}" : served->attributes };
        int64_t stride = served->dtype->bytes;
        for (int d = served->ndim - 1; d >= 0; d--) {
            live.shape[d] = served->shape[d];
            live.stride[d] = stride;
            if (served->strided && !slc_multiply(served->stride[d], served->dtype->bytes, &live.stride[d]))
                return slc_fail(error, SLUICE_INVALID, "live", "%s: its strides are too large", live.name);
            stride *= served->shape[d];
        }
        memcpy(&live.data, &address, sizeof address);
        sluice_status status = slc_live_set_add(&p->live, &live, error);
        if (status != SLUICE_OK)
            return status;
        uintptr_t low;
        slc_live_span(&p->live.item[p->live.count - 1], &low, &address);
        address = (address > low ? address : low) + 256;
    }
    return SLUICE_OK;
}

sluice_status slc_planning_begin(slc_planning *planning, const slc_job *job, sluice_error *error)
{
    bool met;
    const char *known;
    *planning = (slc_planning){ 0 };
    if (job->transport != NULL && !slc_transport_known(job->transport, &known))
        return slc_fail(error, SLUICE_UNSUPPORTED, "deployment", "transport (%s) must be one of: %s", job->transport, known);
    double start = slc_now_s();
    sluice_status status = slc_script_create(NULL, &planning->script, error);
    if (status == SLUICE_OK)
        status = slc_init_info_draft(planning->script, job->init_info, job->init_info_length, &planning->info, &met,
                                     &planning->plan, error);
    double read = slc_now_s();
    if (status == SLUICE_OK && job->host != NULL)
        status = slc_script_describe_host(planning->script, job->host, strlen(job->host), error);
    for (size_t i = 0; i < job->nfiles && status == SLUICE_OK; i++)
        status = slc_rule_give(planning->script, &job->file[i], error);
    if (status == SLUICE_OK)
        status = add_live(planning, job, error);
    planning->seconds_init_info = read - start;
    planning->seconds_live = slc_now_s() - read;
    return status;
}

sluice_status slc_planning_resolve(slc_planning *p, const slc_job *job, sluice_error *error)
{
    double start = slc_now_s();
    sluice_status status = slc_resolve(p->script, p->plan, &p->live, job->rules, &p->arena, &p->resolution, error);
    if (status == SLUICE_OK)
        status = slc_plan_complete(p->plan, error);
    double resolved = slc_now_s();
    if (status == SLUICE_OK)
        status = slc_coverage_check(p->plan, &p->live, job->rank, p->resolution.whole_modules, &p->arena, &p->coverage, error);
    if (status == SLUICE_OK)
        status = slc_resolution_check(&p->resolution, &p->coverage, &p->live, error);
    p->seconds_resolve = resolved - start;
    p->seconds_check = slc_now_s() - resolved;
    return status;
}

void slc_planning_end(slc_planning *planning)
{
    slc_arena_clear(&planning->arena);
    slc_live_set_clear(&planning->live);
    slc_plan_destroy(planning->plan);
    slc_script_destroy(planning->script);
    *planning = (slc_planning){ 0 };
}
