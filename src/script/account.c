/* account.c: whether the rules account for every live byte. Owns nothing beyond the call. */
#include "base/error.h"
#include "base/names.h"
#include "plan/text.h"
#include "script/resolve.h"

static const char STAGE[] = "destination";

static bool add_all(slc_names *names, const slc_texts *texts)
{
    bool added;
    for (size_t i = 0; i < texts->count; i++)
        if (slc_names_add(names, texts->item[i], &added) == SLC_NO_NAME)
            return false;
    return true;
}

sluice_status slc_resolution_check(const slc_resolution *resolution, const slc_coverage *coverage, const slc_live_set *live,
                                   sluice_error *error)
{
    if (!resolution->strict_coverage || coverage->nuncovered == 0)
        return SLUICE_OK;
    slc_names expected = { 0 };
    sluice_status status = SLUICE_OK;
    if (!add_all(&expected, &resolution->unsourced) || !add_all(&expected, &resolution->loaded))
        status = slc_fail_memory(error, STAGE, "the live tensors that may stay unwritten", 0);
    for (size_t i = 0; i < coverage->nuncovered && status == SLUICE_OK; i++) {
        const slc_live *tensor = &live->item[coverage->uncovered[i].live];
        if (slc_names_find(&expected, tensor->name) != SLC_NO_NAME)
            continue;
        char shape[SLC_SHAPE_TEXT];
        slc_shape_text(tensor->ndim, tensor->shape, shape);
        status = slc_fail(error, SLUICE_INVALID, STAGE,
                          "live tensor '%s' %s: nothing writes %lld of its %lld bytes; give it a rule, name it as the `into` of a full "
                          "rule, or list it under unsourced",
                          tensor->name, shape, (long long)coverage->uncovered[i].bytes, (long long)slc_live_bytes(tensor));
    }
    slc_names_clear(&expected);
    return status;
}
