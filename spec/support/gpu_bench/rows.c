/* rows.c: what is measured, in the order of the table. */
#include "rank.h"

const char *kernels_missing(rank *r)
{
    if (r->gpu.processors == 0)
        return r->gpu.why_no_kernels;
    return r->options->gpu[TRAINER] == r->options->gpu[WORKER] ? "trainer and worker share a GPU, whose local copies want its SMs"
                                                               : NULL;
}

static const char *batches_missing(rank *r)
{
    return r->gpu.cuda.MemcpyBatchAsync != NULL && r->gpu.cuda.Memcpy3DBatchAsync != NULL
               ? NULL
               : "this driver knows no batches (12.8 does)";
}

static const char *both_missing(rank *r)
{
    const char *why = product_missing(r);
    return why != NULL ? why : peers_missing(r);
}

#define LIMIT .kind = "limit", .missing = batches_missing, .open = limit_open, .run = limit_run, .to_limit = true
#define OURS .kind = "ours", .open = ours_open, .run = ours_run
#define WIRE .kind = "ours", .open = ours_open, .run = ours_run, .by_wire = true
#define PEER .kind = "peer", .missing = peers_missing, .open = peers_open, .run = peers_run
#define BUSY .kind = "busy", .missing = kernels_missing, .open = ours_open, .run = ours_run, .held = true

#define PRODUCT .kind = "busy", .work = WORK_DIRECT, .open = product_open, .run = product_run
#define ROWS(bytes) \
    { .name = "limit_rows_" #bytes, .title = "one box of rows of " #bytes " bytes", .work = WORK_ROWS_##bytes, LIMIT, .variant = LIMIT_BATCH }, \
        { .name = "rows_" #bytes, .title = "rows of " #bytes " bytes", .work = WORK_ROWS_##bytes, OURS },

const course rows[] = {
    { .name = "limit_one", .title = "one copy of as many bytes", .work = WORK_DIRECT, LIMIT },
    { .name = "limit_batch", .title = "one batch of the list's copies", .work = WORK_DIRECT, LIMIT, .variant = LIMIT_BATCH },
    { .name = "limit_half", .title = "one batch of half rows", .work = WORK_HALF, LIMIT, .variant = LIMIT_BATCH },
    { .name = "limit_eighth", .title = "one batch of eighths of rows", .work = WORK_EIGHTH, LIMIT, .variant = LIMIT_BATCH },
    { .name = "limit_lora", .title = "one batch of small tensors", .work = WORK_LORA, LIMIT, .variant = LIMIT_BATCH },
    { .name = "direct", .title = "every parameter in place", .work = WORK_DIRECT, OURS },
    { .name = "fused", .title = "into fused qkv and gate_up", .work = WORK_FUSED, OURS },
    { .name = "half", .title = "every matrix's rows halved, 2 ranks on the GPU", .work = WORK_HALF, OURS },
    { .name = "eighth", .title = "every matrix's rows cut in 8, 8 ranks on the GPU", .work = WORK_EIGHTH, OURS },
    { .name = "lora", .title = "small tensors", .work = WORK_LORA, OURS },
    { .name = "replay", .title = "every parameter in place, replayed", .work = WORK_DIRECT, OURS, .variant = OURS_REPLAYED },
    { .name = "replay_half", .title = "halved rows, replayed", .work = WORK_HALF, OURS, .variant = OURS_REPLAYED },
    { .name = "replay_lora", .title = "small tensors, replayed", .work = WORK_LORA, OURS, .variant = OURS_REPLAYED },
    WORK_ROWS_LIST(ROWS)
    { .name = "wire", .title = "every parameter in place, by NCCL", .work = WORK_DIRECT, WIRE, .missing = wire_missing },
    { .name = "wire_half",
      .title = "every matrix's rows halved, by NCCL, 2 ranks on the GPU",
      .work = WORK_HALF,
      WIRE,
      .missing = wire_shared_missing },
    { .name = "wire_lora", .title = "small tensors, by NCCL", .work = WORK_LORA, WIRE, .missing = wire_missing },
    { .name = "broadcast", .title = "ncclBroadcast a parameter", .work = WORK_DIRECT, PEER, .variant = PEERS_BROADCAST },
    { .name = "group", .title = "ncclSend and ncclRecv, one group", .work = WORK_DIRECT, PEER, .variant = PEERS_GROUP },
    { .name = "groups_of_32",
      .title = "ncclSend and ncclRecv, groups of 32",
      .work = WORK_DIRECT,
      PEER,
      .variant = PEERS_GROUPS_OF_32 },
    { .name = "packed", .title = "packed broadcast, two buffers of 1 GiB", .work = WORK_DIRECT, PEER, .variant = PEERS_PACKED },
    { .name = "broadcast_lora",
      .title = "small tensors, ncclBroadcast each",
      .work = WORK_LORA,
      PEER,
      .variant = PEERS_BROADCAST },
    { .name = "group_lora",
      .title = "small tensors, ncclSend and ncclRecv, one group",
      .work = WORK_LORA,
      PEER,
      .variant = PEERS_GROUP },
    { .name = "held_direct", .title = "in place while a kernel holds every SM", .work = WORK_DIRECT, BUSY },
    { .name = "held_replay",
      .title = "replayed while a kernel holds every SM",
      .work = WORK_DIRECT,
      BUSY,
      .variant = OURS_REPLAYED },
    { .name = "held_half", .title = "halved rows while a kernel holds every SM", .work = WORK_HALF, BUSY },
    { .name = "product_limit",
      .title = "bare copies while the worker multiplies",
      PRODUCT,
      .missing = product_missing,
      .open_beside = limit_open,
      .beside = limit_run,
      .variant = LIMIT_BATCH,
      .to_limit = true },
    { .name = "product",
      .title = "in place while the worker multiplies matrices",
      PRODUCT,
      .missing = product_missing,
      .open_beside = ours_open,
      .beside = ours_run },
    { .name = "product_prefill",
      .title = "in place while the worker multiplies 2048 rows",
      PRODUCT,
      .missing = product_missing,
      .open_beside = ours_open,
      .beside = ours_run,
      .shape = SHAPE_PREFILL },
    { .name = "product_batch",
      .title = "in place while the worker multiplies 256 rows",
      PRODUCT,
      .missing = product_missing,
      .open_beside = ours_open,
      .beside = ours_run,
      .shape = SHAPE_BATCH },
    { .name = "product_decode",
      .title = "in place while the worker multiplies 16 rows",
      PRODUCT,
      .missing = product_missing,
      .open_beside = ours_open,
      .beside = ours_run,
      .shape = SHAPE_DECODE },
    { .name = "product_group",
      .title = "ncclSend and ncclRecv while the worker multiplies",
      PRODUCT,
      .missing = both_missing,
      .open_beside = peers_open,
      .beside = peers_run,
      .variant = PEERS_GROUP },
};

const size_t nrows = sizeof rows / sizeof rows[0];
