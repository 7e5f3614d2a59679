/* explain.h: why a parameter or a live tensor of a plan is where it is, as JSON (lua/sluice/explain.lua; lua/EXPLAIN.md). */
#ifndef SLC_SCRIPT_EXPLAIN_H
#define SLC_SCRIPT_EXPLAIN_H

#include "script/resolve.h"

typedef struct slc_question {
    const char *name;         /* of a parameter or a live tensor, or a pattern */
    const slc_live_set *live; /* of worker `rank` */
    int32_t rank;             /* -1: no worker; `live` is empty then */
    bool one_rank;            /* only this worker's slices, with the pieces of which they are made */
    bool all;                 /* lists whole */
    const char *rules;        /* for slc_explain_rules: as for slc_resolve */
} slc_question;

/*
 * Asks a plan that is complete. `resolution` is that of the slc_resolve that completed it, with the same script; one without
 * a context (a trainer's) gives an answer that knows nothing of rules. *json is released with slc_release. A name that
 * nobody has is no error: the answer holds names that are near.
 */
sluice_status slc_explain(slc_script *script, slc_plan *plan, const slc_resolution *resolution, const slc_question *question,
                          char **json, sluice_error *error);

/*
 * The same for a plan without destinations, which it fills in as far as the rules allow: a mistake in one rule is part of
 * the answer. An error only where no rule can be tried: a rule file that does not load, a host that is not described.
 */
sluice_status slc_explain_rules(slc_script *script, slc_plan *plan, const slc_question *question, char **json,
                                sluice_error *error);

/*
 * The same without a question: fills in the destinations and keeps in *resolution what slc_explain and slc_audit_rules ask,
 * for as long as the script. *json: `problem` (what a worker's init would refuse), `failed` and `problems` (of parameters:
 * `number` from 1, `text`). question->name is not looked at.
 */
sluice_status slc_audit(slc_script *script, slc_plan *plan, const slc_question *question, slc_resolution *resolution, char **json,
                        sluice_error *error);

/* What each rule decides, and which do nothing, as lua/sluice/audit.lua says. `resolution` is that of slc_audit. */
sluice_status slc_audit_rules(slc_script *script, slc_plan *plan, const slc_resolution *resolution, const slc_question *question,
                              char **json, sluice_error *error);

#endif
