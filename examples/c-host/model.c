/* model.c: see model.h. */
#include "model.h"

#include "product.h"
#include "say.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int read_size(const json_t *root, const char *path, const char *key, int most)
{
    json_int_t value = json_integer_value(json_object_get(root, key));
    if (value < 1 || value > most)
        die("%s: %s (%lld) must be 1 to %d", path, key, (long long)value, most);
    return (int)value;
}

config config_read(const char *path)
{
    json_error_t problem;
    json_t *root = json_load_file(path, 0, &problem);
    if (root == NULL)
        die("%s: %s", path, problem.text);
    config c = { .hidden = read_size(root, path, "hidden_size", MOST_HIDDEN),
                 .layers = read_size(root, path, "num_hidden_layers", MOST_LAYERS),
                 .heads = read_size(root, path, "num_attention_heads", 64),
                 .intermediate = read_size(root, path, "intermediate_size", 4 * MOST_HIDDEN),
                 .vocabulary = read_size(root, path, "vocab_size", 1 << 20),
                 .positions = read_size(root, path, "max_position_embeddings", 1 << 16),
                 .types = read_size(root, path, "type_vocab_size", 64),
                 .norm_epsilon = (float)json_number_value(json_object_get(root, "layer_norm_eps")) };
    json_decref(root);
    return c;
}

int table_share(int rows, int tp)
{
    return (rows + 63) / 64 * 64 / tp;
}

/* ---- which tensors there are ---- */

static void add(model *m, enum cut cut, const char *dtype, int64_t rows, int64_t columns, const char *format, int number)
{
    slot *s = &m->slot[m->nslots++];
    *s = (slot){ .dtype = dtype, .ndim = columns == 0 ? 1 : 2, .shape = { rows, columns }, .cut = cut, .offset = m->bytes };
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(s->name, sizeof s->name, format, number);
#pragma GCC diagnostic pop
    s->bytes = (size_t)rows * (size_t)(columns == 0 ? 1 : columns) * (strcmp(dtype, "int64") == 0 ? 8 : 4);
    m->bytes += (s->bytes + 63) / 64 * 64;
}

static const char F[] = "float32";

static void add_product(model *m, enum cut cut, int64_t rows, int64_t columns, const char *format, int number)
{
    add(m, cut, F, rows, columns, format, number);
    m->slot[m->nslots - 1].product = true;
}

static void add_layer(model *m, int number)
{
    const int64_t hidden = m->config.hidden, width = hidden / m->tp, wide = m->config.intermediate / m->tp;
    add_product(m, STACKED, 3 * width, hidden, "encoder.layer.%d.attention.self.qkv_proj.weight", number);
    add(m, STACKED, F, 3 * width, 0, "encoder.layer.%d.attention.self.qkv_proj.bias", number);
    add_product(m, COLUMNS, hidden, width, "encoder.layer.%d.attention.output.dense.weight", number);
    add(m, WHOLE, F, hidden, 0, "encoder.layer.%d.attention.output.dense.bias", number);
    add(m, WHOLE, F, hidden, 0, "encoder.layer.%d.attention.output.LayerNorm.weight", number);
    add(m, WHOLE, F, hidden, 0, "encoder.layer.%d.attention.output.LayerNorm.bias", number);
    add_product(m, ROWS, wide, hidden, "encoder.layer.%d.intermediate.dense.weight", number);
    add(m, ROWS, F, wide, 0, "encoder.layer.%d.intermediate.dense.bias", number);
    add_product(m, COLUMNS, hidden, wide, "encoder.layer.%d.output.dense.weight", number);
    add(m, WHOLE, F, hidden, 0, "encoder.layer.%d.output.dense.bias", number);
    add(m, WHOLE, F, hidden, 0, "encoder.layer.%d.output.LayerNorm.weight", number);
    add(m, WHOLE, F, hidden, 0, "encoder.layer.%d.output.LayerNorm.bias", number);
}

static void add_all(model *m)
{
    const config *c = &m->config;
    add(m, ROWS, F, table_share(c->vocabulary, m->tp), c->hidden, "embeddings.word_embeddings.weight", 0);
    add(m, ROWS, F, table_share(c->positions, m->tp), c->hidden, "embeddings.position_embeddings.weight", 0);
    add(m, ROWS, F, table_share(c->types, m->tp), c->hidden, "embeddings.token_type_embeddings.weight", 0);
    add(m, WHOLE, F, c->hidden, 0, "embeddings.LayerNorm.weight", 0);
    add(m, WHOLE, F, c->hidden, 0, "embeddings.LayerNorm.bias", 0);
    for (int i = 0; i < c->layers; i++)
        add_layer(m, i);
    /* In the checkpoint, and so in the plan; sentence embeddings do not need them. */
    add(m, WHOLE, "int64", 1, c->positions, "embeddings.position_ids", 0);
    add(m, WHOLE, F, c->hidden, c->hidden, "pooler.dense.weight", 0);
    add(m, WHOLE, F, c->hidden, 0, "pooler.dense.bias", 0);
}

/* Slots in the order of add_all. */
static void point(model *m)
{
    size_t next = 0;
#define NEXT() ((const float *)(const void *)(m->active + m->slot[next++].offset))
    m->words = NEXT();
    m->positions = NEXT();
    m->types = NEXT();
    m->norm = NEXT();
    m->norm_bias = NEXT();
    for (int i = 0; i < m->config.layers; i++) {
        const float **member[] = { &m->layer[i].qkv,  &m->layer[i].qkv_bias,  &m->layer[i].out,   &m->layer[i].out_bias,
                                   &m->layer[i].norm1, &m->layer[i].norm1_bias, &m->layer[i].up,    &m->layer[i].up_bias,
                                   &m->layer[i].down, &m->layer[i].down_bias, &m->layer[i].norm2, &m->layer[i].norm2_bias };
        for (size_t j = 0; j < sizeof member / sizeof member[0]; j++)
            *member[j] = NEXT();
    }
#undef NEXT
}

static unsigned char *take_pages(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        die("out of memory (%zu bytes of weights)", bytes);
    return pages;
}

model *model_create(const config *c, int rank, int tp)
{
    if (c->hidden % c->heads != 0 || c->heads % tp != 0 || 64 % tp != 0)
        die("%d ranks do not divide %d heads and 64", tp, c->heads);
    if (c->hidden % (tp * PRODUCT_COLUMNS) != 0 || c->intermediate % (tp * PRODUCT_COLUMNS) != 0)
        die("%d ranks times %d do not divide %d and %d rows", tp, PRODUCT_COLUMNS, c->hidden, c->intermediate);
    model *m = must_allocate(1, sizeof *m);
    m->config = *c;
    m->rank = rank;
    m->tp = tp;
    m->slot = must_allocate((size_t)c->layers * 12 + 8, sizeof *m->slot);
    add_all(m);
    m->active = take_pages(m->bytes);
    m->standby = take_pages(m->bytes);
    point(m);
    return m;
}

void model_destroy(model *m)
{
    munmap(m->active, m->bytes);
    munmap(m->standby, m->bytes);
    free(m->slot);
    free(m);
}

/* ---- a fresh start ---- */

static const tensor *want(const checkpoint *file, const char *name, const slot *s)
{
    const tensor *found = checkpoint_find(file, name);
    if (found == NULL || strcmp(found->dtype, s->dtype) != 0 || found->ndim != s->ndim)
        die("the checkpoint has no %s of %s with %u dims", name, s->dtype, s->ndim);
    return found;
}

/* Rows [first, first + rows) of a tensor, as far as it has them, to `to`. */
static void copy_rows(const tensor *from, int64_t first, int64_t rows, unsigned char *to)
{
    size_t row = from->bytes / (size_t)from->shape[0];
    if (first + rows > from->shape[0])
        rows = from->shape[0] - first;
    if (rows > 0)
        memcpy(to, from->data + (size_t)first * row, (size_t)rows * row);
}

static void load_stacked(const model *m, const checkpoint *file, const slot *s, unsigned char *to)
{
    static const char *const PARTS[] = { "query", "key", "value" };
    char *middle = strstr(s->name, "qkv_proj");
    for (int i = 0; i < 3; i++) {
        char name[sizeof s->name + 8];
        snprintf(name, sizeof name, "%.*s%s%s", (int)(middle - s->name), s->name, PARTS[i], middle + strlen("qkv_proj"));
        copy_rows(want(file, name, s), m->rank * s->shape[0] / 3, s->shape[0] / 3, to + (size_t)i * s->bytes / 3);
    }
}

static void load_columns(const model *m, const tensor *from, const slot *s, unsigned char *to)
{
    size_t width = (size_t)s->shape[1] * sizeof(float), whole = width * (size_t)m->tp;
    if (from->bytes != whole * (size_t)s->shape[0])
        die("%s has %zu bytes; the model wants %zu", from->name, from->bytes, whole * (size_t)s->shape[0]);
    for (size_t row = 0; row < (size_t)s->shape[0]; row++)
        memcpy(to + row * width, from->data + row * whole + (size_t)m->rank * width, width);
}

void model_load(model *m, const checkpoint *file)
{
    memset(m->standby, 0, m->bytes);
    for (size_t i = 0; i < m->nslots; i++) {
        const slot *s = &m->slot[i];
        unsigned char *to = m->standby + s->offset;
        if (s->cut == STACKED) {
            load_stacked(m, file, s, to);
            continue;
        }
        const tensor *from = want(file, s->name, s);
        if (s->ndim == 2 && s->cut != COLUMNS && from->shape[1] != s->shape[1])
            die("%s has rows of %lld; the model wants %lld", s->name, (long long)from->shape[1], (long long)s->shape[1]);
        if (s->cut == COLUMNS)
            load_columns(m, from, s, to);
        else
            copy_rows(from, s->cut == ROWS ? m->rank * s->shape[0] : 0, s->shape[0], to);
    }
    model_swap(m);
}

void model_swap(model *m)
{
    for (size_t i = 0; i < m->nslots; i++) {
        const slot *s = &m->slot[i];
        const void *from = m->standby + s->offset;
        void *to = m->active + s->offset;
        if (s->product)
            product_pack(from, (int)s->shape[0], (int)s->shape[1], to);
        else
            memcpy(to, from, s->bytes);
    }
}
