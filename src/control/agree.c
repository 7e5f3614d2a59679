/* agree.c: the public rounds of agree.h; owns nothing. */
#include "control/agree.h"

#include "control/round.h"

sluice_status slc_group_round_to(slc_group *group, const char *stage, const sluice_error *mine, const void *body, size_t length,
                                 slc_judge judge, void *context, int32_t readers, size_t head, slc_buffer *answer, slc_deadline deadline,
                                 sluice_error *error)
{
    slc_buffer got = { 0 };
    slc_round round = { .stage = stage, .kind = SLC_ROUND_AGREE, .mine = mine, .body = body, .length = length, .deadline = deadline,
                        .judge = judge, .context = context, .readers = readers, .head = head };
    sluice_status status = slc_round_run(group, &round, &got, error);
    if (answer != NULL)
        *answer = got;
    else
        slc_buffer_clear(&got);
    return status;
}

sluice_status slc_group_round(slc_group *group, const char *stage, const sluice_error *mine, const void *body, size_t length,
                              slc_judge judge, void *context, slc_buffer *answer, slc_deadline deadline, sluice_error *error)
{
    return slc_group_round_to(group, stage, mine, body, length, judge, context, 0, 0, answer, deadline, error);
}
