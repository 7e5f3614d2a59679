/* agree.c: the public round of agree.h and its commonest judge; owns nothing. */
#include "control/agree.h"

#include "base/error.h"
#include "control/round.h"
#include "control/text.h"

#include <string.h>

sluice_status slc_group_round(slc_group *group, const char *stage, const sluice_error *mine, const void *body, size_t length,
                              slc_judge judge, void *context, slc_buffer *answer, slc_deadline deadline, sluice_error *error)
{
    slc_buffer got = { 0 };
    slc_round round = { .stage = stage, .kind = SLC_ROUND_AGREE, .mine = mine, .body = body, .length = length, .deadline = deadline,
                        .judge = judge, .context = context };
    sluice_status status = slc_round_run(group, &round, &got, error);
    if (answer != NULL)
        *answer = got;
    else
        slc_buffer_clear(&got);
    return status;
}

sluice_status slc_judge_equal(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)answer;
    const char *what = context == NULL ? "words" : context;
    int32_t first = 0, other = 0, filled = 0;
    while (first < count && word[first].length == 0)
        first++;
    for (int32_t i = first; i < count; i++) {
        filled += word[i].length > 0;
        bool differs = word[i].length > 0 && (word[i].length != word[first].length || memcmp(word[i].body, word[first].body, word[i].length) != 0);
        if (differs && other == 0)
            other = i;
    }
    if (other == 0)
        return SLUICE_OK;
    slc_saying *saying = slc_allocate((size_t)filled * sizeof *saying);
    if (saying == NULL)
        return slc_fail_memory(error, word[0].stage, "a disagreement", (size_t)filled * sizeof *saying);
    size_t said = 0;
    for (int32_t i = first; i < count; i++)
        if (word[i].length > 0)
            saying[said++] = (slc_saying){ .rank = i, .key = word[i].body, .length = word[i].length };
    slc_fail(error, SLUICE_DISAGREE, word[0].stage, "ranks differ in %s: ", what);
    if (error != NULL) {
        slc_line line = { .text = error->text, .room = sizeof error->text, .length = strlen(error->text) };
        slc_line_add_sayings(&line, saying, said, slc_show_quoted);
        error->rank = other;
    }
    slc_release(saying);
    return SLUICE_DISAGREE;
}
