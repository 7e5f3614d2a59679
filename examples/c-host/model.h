/*
 * model.h: one rank's share of a BERT encoder, cut for tensor parallelism as the rule file `bert` cuts it, twice: `active` is
 * what forward computes with, `standby` is what Sluice writes into. The weights of products lie in `active` as product.h wants.
 */
#ifndef MODEL_H
#define MODEL_H

#include "checkpoint.h"

#include <stdbool.h>

enum { MOST_TOKENS = 128, MOST_HIDDEN = 1024, MOST_LAYERS = 48 };

typedef struct config {
    int hidden, layers, heads, intermediate, vocabulary, positions, types;
    float norm_epsilon;
} config;

enum cut { WHOLE, ROWS, COLUMNS, STACKED }; /* STACKED: rows of query, key and value on top of each other */

/* A live tensor: where it lies in both sets of weights, and how a checkpoint's tensor is cut into it. */
typedef struct slot {
    char name[160];
    const char *dtype;
    uint32_t ndim;
    int64_t shape[2];
    size_t offset, bytes;
    enum cut cut;
    bool product;
} slot;

typedef struct layer {
    const float *qkv, *qkv_bias, *out, *out_bias, *norm1, *norm1_bias;
    const float *up, *up_bias, *down, *down_bias, *norm2, *norm2_bias;
} layer;

typedef struct model {
    config config;
    int rank, tp;
    slot *slot;
    size_t nslots;
    unsigned char *active, *standby; /* `bytes` each */
    size_t bytes;
    const float *words, *positions, *types, *norm, *norm_bias; /* into `active`, as `layer` */
    layer layer[MOST_LAYERS];
} model;

config config_read(const char *path);
/* The share of `rank` out of `tp`, with no values yet. Ends the program where tp does not fit the model. */
model *model_create(const config *config, int rank, int tp);
void model_destroy(model *model);

/* Loads a checkpoint into `active`, by itself, without Sluice: what a fresh start is. */
void model_load(model *model, const checkpoint *file);
/* At a moment when nothing computes: what is in standby becomes active. */
void model_swap(model *model);

/* Rows of a table of `rows` that a rank holds: a share of what 64 divides, the last ones padding. */
int table_share(int rows, int tp);

#endif
