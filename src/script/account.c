/* account.c: whether the rules account for every live byte. Owns nothing beyond the call. */
#include "script/resolve.h"

#include <stdio.h>

#include "base/error.h"
#include "base/names.h"
#include "plan/text.h"

static const char STAGE[] = "destination";

static bool add_all(slc_names *names, const slc_texts *texts)
{
    bool added;
    for (size_t i = 0; i < texts->count; i++)
        if (slc_names_add(names, texts->item[i], &added) == SLC_NO_NAME)
            return false;
    return true;
}

static sluice_status fail_unwritten(const slc_uncovered *first, size_t count, const slc_live_set *live, sluice_error *error)
{
    const slc_live *tensor = &live->item[first->live];
    char shape[SLC_SHAPE_TEXT], others[80] = "";
    slc_shape_text(tensor->ndim, tensor->shape, shape);
    if (count > 1)
        snprintf(others, sizeof others, " (the first of %zu such tensors)", count);
    return slc_fail(error, SLUICE_INVALID, STAGE,
                    "live tensor '%s' %s: nothing writes %lld of its %lld bytes; give it a rule, name it as the `into` of a full "
                    "rule, or list it under unsourced%s",
                    tensor->name, shape, (long long)first->bytes, (long long)slc_live_bytes(tensor), others);
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
    const slc_uncovered *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < coverage->nuncovered && status == SLUICE_OK; i++) {
        if (slc_names_find(&expected, live->item[coverage->uncovered[i].live].name) != SLC_NO_NAME)
            continue;
        first = first == NULL ? &coverage->uncovered[i] : first;
        count++;
    }
    if (first != NULL)
        status = fail_unwritten(first, count, live, error);
    slc_names_clear(&expected);
    return status;
}
