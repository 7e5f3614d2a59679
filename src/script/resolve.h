/* resolve.h: from rules and live tensors to destinations in the plan (lua/sluice/resolve.lua and rule.lua). */
#ifndef SLC_SCRIPT_RESOLVE_H
#define SLC_SCRIPT_RESOLVE_H

#include "plan/coverage.h"
#include "script/state.h"

/* A list of texts, owned by the arena that the resolver was given. */
typedef struct slc_texts {
    const char **item;
    size_t count;
} slc_texts;

typedef struct slc_resolution {
    slc_texts unsourced;  /* live tensors that the rules say the trainer never has (patterns matched against the live set) */
    slc_texts loaded;     /* live tensors that load_weights is to write: those of full parameters, as far as the rules tell */
    bool strict_coverage; /* a live byte that nothing writes is an error unless its tensor is unsourced: true under a rule file */
    bool whole_modules;   /* rule 4 of coverage.h applies: the default resolver, or the host says finalizes_modules */
    int context;          /* what explain.h asks: a reference in the script's registry, for as long as the script; 0 for none */
} slc_resolution;

/* Checks that `json` is an object; the copy is kept in the script for the next resolve. */
sluice_status slc_script_describe_host(slc_script *script, const char *json, size_t length, sluice_error *error);

/* INVALID unless `json` is an object, which the rules can then read as that live tensor's attributes. */
sluice_status slc_script_check_attributes(slc_script *script, const char *stage, const char *live, const char *json, sluice_error *error);

/*
 * Fills in every destination of `plan` on a worker. `rules` is a path, a family's name or NULL (the default resolver).
 * Every decision carries its reason and place (a rule's "file:line"). The plan is complete afterwards; nothing in it
 * depends on the rank, so that every worker comes to the same destinations.
 */
sluice_status slc_resolve(slc_script *script, slc_plan *plan, const slc_live_set *live, const char *rules, slc_arena *arena,
                          slc_resolution *resolution, sluice_error *error);

/* A rule file as lua/sluice/rule_file.lua reads and is given it. */
typedef struct slc_rule_text {
    const char *name, *text;
    size_t length;
    const char *family; /* the bare name that finds it, and in which of the folders; NULL for a path's */
    int folder;
} slc_rule_text;

/* Hands over each rule file that was read in this state, in order. Its texts are valid within the call. */
sluice_status slc_rule_texts(slc_script *script, void (*take)(void *context, const slc_rule_text *text), void *context, sluice_error *error);
/* From now on `file` stands for what lies on disk, in this state. */
sluice_status slc_rule_give(slc_script *script, const slc_rule_text *file, sluice_error *error);

/*
 * After slc_coverage_check: with strict coverage, every live tensor that nothing writes whole must be unsourced or loaded.
 * INVALID names the first that is not.
 */
sluice_status slc_resolution_check(const slc_resolution *resolution, const slc_coverage *coverage, const slc_live_set *live,
                                   sluice_error *error);

#endif
