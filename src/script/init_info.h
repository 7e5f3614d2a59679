/* init_info.h: init info, from JSON to a checked plan without destinations. The rules are contract and lua/sluice/init_info.lua. */
#ifndef SLC_SCRIPT_INIT_INFO_H
#define SLC_SCRIPT_INIT_INFO_H

#include "plan/plan.h"
#include "script/state.h"

#define SLC_UNIQUE_ID_BYTES 128

typedef struct slc_init_info {
    char address[256];
    uint16_t port;
    int32_t trainers, world_size;
    char told_digest[SLC_DIGEST_TEXT];     /* source_digest, as given */
    char computed_digest[SLC_DIGEST_TEXT]; /* of the parameters as parsed */
    bool has_unique_id;
    unsigned char unique_id[SLC_UNIQUE_ID_BYTES]; /* a secret: never logged, never in an error */
    int32_t max_cta; /* 0: not given */
} slc_init_info;

/*
 * Parses and checks. Where to meet (address, port, trainers, world_size) is read first and on its own: *met says whether
 * it was good, also when the result is an error, so that a rank with bad parameters can still join to say so.
 * *plan is NULL on failure. INVALID carries the path: "init: params[3].shape[1] (0) must be at least 1".
 */
sluice_status slc_init_info_read(slc_script *script, const char *json, size_t length, slc_init_info *info, bool *met, slc_plan **plan,
                                 sluice_error *error);

/* The same for a plan that no other rank has to agree with: source_digest may be missing, told_digest is then what was computed. */
sluice_status slc_init_info_draft(slc_script *script, const char *json, size_t length, slc_init_info *info, bool *met, slc_plan **plan,
                                  sluice_error *error);

/* The same JSON with source_digest set; *sealed is released with slc_release. */
sluice_status slc_init_info_seal(slc_script *script, const char *json, size_t length, char **sealed, sluice_error *error);

/* The same JSON, in canonical form and with any secret left out; *shown is released with slc_release. */
sluice_status slc_init_info_without_secret(slc_script *script, const char *json, size_t length, char **shown, sluice_error *error);

#endif
