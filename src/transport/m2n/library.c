/* library.c: see library.h. Owns nothing. */
#include "transport/m2n/library.h"

#include "base/symbol.h"

#include <stdio.h>
#include <stdlib.h>

sluice_status slc_m2n_load(slc_m2n *m2n, const slc_log *log, sluice_error *error)
{
    char version[32];
    *m2n = (slc_m2n){ 0 };
    sluice_status status = slc_m2n_find(log, &m2n->file, error);
    void *library = m2n->file.library, *nccl = m2n->file.nccl.library;
    const char *path = m2n->file.path;
#define SLC_M2N_FIND(name, member, takes) \
    if (status == SLUICE_OK) \
        status = slc_symbol_need(library, path, #name, &m2n->member, error);
    SLC_M2N_LIST(SLC_M2N_FIND)
#undef SLC_M2N_FIND
    if (status == SLUICE_OK)
        status = slc_symbol_need(library, path, "ncclM2nGetLastError", &m2n->last_error, error);
    if (status == SLUICE_OK)
        status = slc_symbol_need(nccl, m2n->file.nccl.path, "ncclCommSplit", &m2n->split, error);
    if (status == SLUICE_OK)
        status = slc_symbol_need(nccl, m2n->file.nccl.path, "ncclCommRevoke", &m2n->revoke, error);
    if (status != SLUICE_OK)
        return status;
    slc_nccl_version_text(m2n->file.nccl.version, version, sizeof version);
    snprintf(m2n->text, sizeof m2n->text, "nccl_m2n (%s) with NCCL %s (%s)", path, version, m2n->file.nccl.path);
    slc_say(log, SLUICE_LOG_INFO, "m2n: %s", m2n->text);
    return SLUICE_OK;
}

void slc_m2n_environment(slc_buffer *lines)
{
    /* All but its log level: every rank derives roads, chunks and signals from these by itself. */
    static const char *const names[] = {
        "ALGORITHM",           "AUTO_UNIFORM_BCAST",     "CHUNK_SIZE",          "COMMB_FORCE_RAIL",
        "COPY_ALGORITHM",      "DST_DOMAIN_SIZE",        "ELEMENTS_PER_CHUNK",  "GIN_CONTEXT_COUNT",
        "LB_MODE",             "NUM_CTAS",               "PACK_BUFFSIZES",      "PIPE_GIN_CHANNELS_PER_PEER",
        "PIPE_GIN_PEERS_PER_SLOT", "PIPE_NET_MODE",      "PIPE_TMA_TILE_SIZE",  "SPLIT_AUTO_PARENT_THRESHOLD",
        "SPLIT_COMM",          "SPLIT_SINGLE_REP_INJECT", "SRC_DOMAIN_SIZE",    "STAGING_CHANNEL_SIZE",
        "STAGING_CHUNK_SIZE",  "STAGING_NUM_CHANNELS",   "STAGING_PEERS_PER_CHANNEL", "STAGING_TARGET_CTAS",
        "USE_INTERNAL_STREAMS",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "NCCL_RESHARD_%s", names[i]);
        const char *value = getenv(name);
        slc_buffer_text(lines, "%s=%.200s\n", name, value == NULL ? "(unset)" : value);
    }
}
