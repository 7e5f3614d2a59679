/*
 * init_info.c: init info as sluice_init and sluice_seal_init_info read it, in both forms. The input is the JSON text.
 * What is accepted can be sealed, and what is sealed is accepted, with its digest, and seals to itself.
 */
#include "support/fuzz.h"

#include <string.h>

static void check_params(const slc_plan *plan, const slc_init_info *info)
{
    fuzz_must(info->trainers == slc_plan_trainers(plan) && info->world_size - info->trainers == slc_plan_workers(plan),
              "the plan has another world than the init info");
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        const slc_param *param = slc_plan_at(plan, i);
        slc_box box;
        fuzz_must(slc_plan_find(plan, param->name) == i && param->bytes > 0 && param->source != NULL,
                  "parameter %zu is half made", i);
        for (int32_t rank = 0; rank < info->trainers; rank += 1 + info->trainers / 7) {
            if (!slc_layout_box(param->source, param->ndim, param->shape, rank, &box))
                continue;
            for (int d = 0; d < param->ndim; d++)
                fuzz_must(box.low[d] >= 0 && box.low[d] <= box.high[d] && box.high[d] <= param->shape[d],
                          "a box leaves its tensor");
        }
    }
}

/* What is told to those who attach to an engine. */
static void check_shown(slc_script *script, fuzz_input input, const slc_init_info *read)
{
    slc_init_info info;
    bool met;
    slc_plan *plan;
    char *shown;
    sluice_error error = SLUICE_ERROR_INIT;
    fuzz_must(slc_init_info_without_secret(script, (const char *)input.data, input.left, &shown, &error) == SLUICE_OK, "not shown: %s",
              error.text);
    fuzz_must(slc_init_info_read(script, shown, strlen(shown), &info, &met, &plan, &error) == SLUICE_OK, "shown, and then: %s", error.text);
    fuzz_must(!info.has_unique_id && strcmp(info.computed_digest, read->computed_digest) == 0, "another init info is shown");
    slc_release(shown);
    slc_plan_destroy(plan);
}

static void check_sealed(slc_script *script, const char *sealed)
{
    slc_init_info info;
    bool met;
    slc_plan *plan;
    char *again;
    sluice_error error = SLUICE_ERROR_INIT;
    fuzz_must(slc_init_info_read(script, sealed, strlen(sealed), &info, &met, &plan, &error) == SLUICE_OK, "sealed, and then: %s",
              error.text);
    fuzz_must(strcmp(info.told_digest, info.computed_digest) == 0, "the digest that was sealed is another");
    fuzz_must(slc_init_info_seal(script, sealed, strlen(sealed), &again, &error) == SLUICE_OK, "sealed once, and then: %s",
              error.text);
    fuzz_must(strcmp(sealed, again) == 0, "what is sealed seals to something else");
    slc_release(again);
    slc_plan_destroy(plan);
}

void fuzz_target(fuzz_input input)
{
    slc_script *script = fuzz_script(NULL);
    slc_init_info info;
    bool met;
    slc_plan *plan;
    char *sealed;
    sluice_error read_error = SLUICE_ERROR_INIT, seal_error = SLUICE_ERROR_INIT;
    sluice_status reading = slc_init_info_read(script, (const char *)input.data, input.left, &info, &met, &plan, &read_error);
    sluice_status sealing = slc_init_info_seal(script, (const char *)input.data, input.left, &sealed, &seal_error);
    bool read = fuzz_lua_outcome("read", reading, &read_error, input);
    bool could = fuzz_lua_outcome("seal", sealing, &seal_error, input);
    fuzz_must(reading != SLUICE_SCRIPT && sealing != SLUICE_SCRIPT, "a mistake of our own: %s%s", read_error.text,
              seal_error.text);
    fuzz_must(read == (plan != NULL) && could == (sealed != NULL), "a failure leaves something behind, or a success nothing");
    fuzz_must(!read || (met && could), "read but not sealed: %s", seal_error.text);
    if (read)
        check_shown(script, input, &info);
    if (read)
        check_params(plan, &info);
    if (could)
        check_sealed(script, sealed);
    slc_plan_destroy(plan);
    slc_release(sealed);
}
