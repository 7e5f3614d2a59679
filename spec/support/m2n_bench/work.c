/* work.c: what is moved: tensors of models, by their shapes alone, and where each lies on either side. */
#include "m2n_bench/bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 512, ELEMENT = 2, ADAPTERS = 450 };

typedef struct shape {
    int64_t layers, hidden, query, kv, intermediate, vocabulary, head; /* head: of a norm of q and k; 0: none */
} shape;

static const shape llama = { 32, 4096, 4096, 1024, 14336, 128256, 0 }, qwen = { 64, 5120, 8192, 1024, 25600, 151936, 128 },
                   small = { 2, 256, 256, 128, 512, 1024, 32 };

static const struct {
    const char *name, *title;
    int side;
    cut source, target;
    const shape *model; /* NULL: adapters, or one tensor */
    bool matrices;      /* no tensors of one dim */
    size_t count;       /* of 128 KiB each */
} kinds[] = {
    { "llama", "Llama-3-8B, 291 tensors, 1 to 1", 1, WHOLE, WHOLE, &llama, false, 0 },
    { "qwen", "Qwen3-32B, 707 tensors, 1 to 1", 1, WHOLE, WHOLE, &qwen, false, 0 },
    { "same", "Llama-3-8B, 226 matrices, rows of 2 to rows of 2", 2, ROWS, ROWS, &llama, true, 0 },
    { "cross", "Llama-3-8B, 226 matrices, rows of 2 to columns of 2", 2, ROWS, COLUMNS, &llama, true, 0 },
    { "replicated", "Llama-3-8B, 291 tensors, whole on 2 to whole on 2", 2, WHOLE, WHOLE, &llama, false, 0 },
    { "lora", "450 tensors of 128 KiB, 1 to 1", 1, WHOLE, WHOLE, NULL, false, ADAPTERS },
    { "one", "1 tensor of 128 KiB, 1 to 1", 1, WHOLE, WHOLE, NULL, false, 1 },
};

const char *assignment_names(void)
{
    return "llama,qwen,same,cross,replicated,lora,one";
}

static size_t part(const assignment *a, cut held, int64_t rows, int64_t columns)
{
    return (size_t)((rows > 0 ? rows : 1) * columns * ELEMENT) / (held == WHOLE ? 1 : (size_t)a->side);
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void add(assignment *a, bool matrices, int64_t layer, const char *name, int64_t rows, int64_t columns)
{
    tensor *t = &a->tensor[a->count];
    if (matrices && rows == 0)
        return;
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "model.layers.%" PRId64 ".%s.weight", layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s.weight", name);
    t->rows = rows;
    t->columns = columns;
    t->from = a->source_bytes;
    t->to = a->live_bytes;
    t->from_bytes = part(a, a->source, rows, columns);
    t->to_bytes = part(a, a->target, rows, columns);
    a->source_bytes += aligned(t->from_bytes);
    a->live_bytes += aligned(t->to_bytes);
    a->moved += t->to_bytes * (size_t)a->side;
    a->names[a->count++] = t->name;
}

static void add_model(assignment *a, const shape *m, bool matrices)
{
    add(a, matrices, -1, "model.embed_tokens", m->vocabulary, m->hidden);
    for (int64_t l = 0; l < m->layers; l++) {
        add(a, matrices, l, "self_attn.q_proj", m->query, m->hidden);
        add(a, matrices, l, "self_attn.k_proj", m->kv, m->hidden);
        add(a, matrices, l, "self_attn.v_proj", m->kv, m->hidden);
        add(a, matrices, l, "self_attn.o_proj", m->hidden, m->query);
        add(a, matrices, l, "mlp.gate_proj", m->intermediate, m->hidden);
        add(a, matrices, l, "mlp.up_proj", m->intermediate, m->hidden);
        add(a, matrices, l, "mlp.down_proj", m->hidden, m->intermediate);
        add(a, matrices, l, "input_layernorm", 0, m->hidden);
        add(a, matrices, l, "post_attention_layernorm", 0, m->hidden);
        if (m->head > 0) {
            add(a, matrices, l, "self_attn.q_norm", 0, m->head);
            add(a, matrices, l, "self_attn.k_norm", 0, m->head);
        }
    }
    add(a, matrices, -1, "model.norm", 0, m->hidden);
    add(a, matrices, -1, "lm_head", m->vocabulary, m->hidden);
}

bool assignment_make(const char *name, bool tiny, assignment *out)
{
    size_t kind = 0;
    while (kind < sizeof kinds / sizeof kinds[0] && strcmp(kinds[kind].name, name) != 0)
        kind++;
    if (kind == sizeof kinds / sizeof kinds[0])
        return false;
    const shape *dims = kinds[kind].model != NULL && tiny ? &small : kinds[kind].model;
    size_t most = dims == NULL ? kinds[kind].count : (size_t)dims->layers * 11 + 3;
    *out = (assignment){ .name = kinds[kind].name, .title = kinds[kind].title, .side = kinds[kind].side, .source = kinds[kind].source,
                         .target = kinds[kind].target, .tensor = need(calloc(most, sizeof *out->tensor)),
                         .names = need(calloc(most, sizeof *out->names)) };
    if (dims != NULL)
        add_model(out, dims, kinds[kind].matrices);
    for (size_t i = 0; dims == NULL && i < most; i++)
        add(out, false, (int64_t)i, "lora_A", 16, 4096);
    return true;
}

char *assignment_init_info(const assignment *a, int port)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = need(open_memstream(&text, &size));
    fprintf(out,
            "{\"schema_version\":2,\"master_address\":\"127.0.0.1\",\"master_port\":%d,\"rank_offset\":%d,\"world_size\":%d,"
            "\"dst_mesh_dims\":[%d,%d],\"params\":[",
            port, a->side, 2 * a->side, a->target == WHOLE ? a->side : 1, a->target == WHOLE ? 1 : a->side);
    for (size_t i = 0; i < a->count; i++) {
        const tensor *t = &a->tensor[i];
        fprintf(out, "%s{\"name\":\"%s\",\"dtype_name\":\"bfloat16\",\"shape\":[", i == 0 ? "" : ",", t->name);
        if (t->rows > 0)
            fprintf(out, "%" PRId64 ",", t->rows);
        fprintf(out, "%" PRId64 "],\"src_mesh_dims\":[1,%d],\"src_placements\":%s,\"allow_full_fallback\":false}", t->columns, a->side,
                a->source == WHOLE ? "null" : "[-1,0]");
    }
    fprintf(out, "]}");
    fclose(out);
    return need(text);
}

size_t assignment_pieces(const assignment *a, int worker, int trainer, piece *list)
{
    size_t count = 0;
    for (size_t i = 0; i < a->count; i++) {
        const tensor *t = &a->tensor[i];
        size_t row = (size_t)t->columns * ELEMENT, width = t->to_bytes, height = 1, from = t->from, to = t->to;
        if ((a->source == WHOLE && trainer != 0) || (a->source == ROWS && a->target == ROWS && trainer != worker))
            continue;
        if (a->target == COLUMNS) {
            width = row / (size_t)a->side;
            height = (size_t)(t->rows / a->side);
            from += (size_t)worker * width;
            to += (size_t)trainer * width * height;
        }
        list[count++] = (piece){ .worker = worker, .from = from, .to = to, .width = width, .height = height, .pitch = height > 1 ? row : width };
    }
    return count;
}
