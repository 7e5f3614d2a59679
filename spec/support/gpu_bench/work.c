/* work.c: see work.h. */
#include "work.h"

#include "crew.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 512 };

static const model models[] = {
    { "Llama-3-8B", 4096, 14336, 32, 8, 128256, 32, 450, 128 << 10, 1 << 30 },
    { "tiny", 512, 1024, 8, 2, 1000, 2, 20, 4096, 1 << 17 },
};

static const struct {
    const char *name;
    int workers;
    int64_t row_bytes;
} kinds[WORKS] = {
    { "direct", 1, 0 }, { "half", 2, 0 }, { "eighth", 8, 0 }, { "fused", 1, 0 }, { "lora", 1, 0 },
#define KIND_OF_ROWS(bytes) { "rows_" #bytes, 2, bytes },
    WORK_ROWS_LIST(KIND_OF_ROWS)
#undef KIND_OF_ROWS
};

bool model_find(const char *name, int64_t layers, model *out)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i].name, name) == 0) {
            *out = models[i];
            out->layers = layers > 0 ? layers : out->layers;
            return true;
        }
    return false;
}

/* ---- parameters ---- */

static void add_param(work *w, const char *prefix, int64_t layer, const char *name, int64_t rows, int64_t columns)
{
    param *p = &w->param[w->nparams++];
    if (layer >= 0)
        snprintf(p->name, sizeof p->name, "%s.%" PRId64 ".%s", prefix, layer, name);
    else
        snprintf(p->name, sizeof p->name, "%s", name);
    p->rows = rows;
    p->columns = columns;
    p->at = w->source_bytes;
    size_t bytes = (size_t)((rows > 0 ? rows : 1) * columns * WORK_ELEMENT);
    w->source_bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void add_params(work *w, const model *m)
{
    const char *prefix = "model.layers";
    int64_t h = m->hidden, kv = h / m->heads * m->kv_heads;
    add_param(w, NULL, -1, "model.embed_tokens.weight", m->vocabulary, h);
    for (int64_t l = 0; l < m->layers; l++) {
        add_param(w, prefix, l, "self_attn.q_proj.weight", h, h);
        add_param(w, prefix, l, "self_attn.k_proj.weight", kv, h);
        add_param(w, prefix, l, "self_attn.v_proj.weight", kv, h);
        add_param(w, prefix, l, "self_attn.o_proj.weight", h, h);
        add_param(w, prefix, l, "mlp.gate_proj.weight", m->intermediate, h);
        add_param(w, prefix, l, "mlp.up_proj.weight", m->intermediate, h);
        add_param(w, prefix, l, "mlp.down_proj.weight", h, m->intermediate);
        add_param(w, prefix, l, "input_layernorm.weight", 0, h);
        add_param(w, prefix, l, "post_attention_layernorm.weight", 0, h);
    }
    add_param(w, NULL, -1, "model.norm.weight", 0, h);
    add_param(w, NULL, -1, "lm_head.weight", m->vocabulary, h);
}

static void add_adapters(work *w, const model *m)
{
    const int64_t rank = 16;
    for (int64_t i = 0; i < m->adapters; i++)
        add_param(w, "adapters", i, "lora_A.weight", rank, m->adapter_bytes / WORK_ELEMENT / rank);
}

/* ---- live tensors ---- */

/* Where q, k and v of a layer, or gate and up, stand together: the name of that, and whether this is the first of it. */
static bool fused_name(const char *name, char *fused, size_t size, bool *first)
{
    static const struct {
        const char *part, *whole;
        bool first;
    } parts[] = { { "q_proj", "qkv_proj", true },
                  { "k_proj", "qkv_proj", false },
                  { "v_proj", "qkv_proj", false },
                  { "gate_proj", "gate_up_proj", true },
                  { "up_proj", "gate_up_proj", false } };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *found = strstr(name, parts[i].part);
        if (found == NULL || found[-1] != '.')
            continue;
        snprintf(fused, size, "%.*s%s%s", (int)(found - name), name, parts[i].whole, found + strlen(parts[i].part));
        *first = parts[i].first;
        return true;
    }
    return false;
}

static void add_live(work *w, int worker, const param *p, const char *name, bool first, bool cut)
{
    int64_t columns = cut ? p->columns / w->workers : p->columns, rows = p->rows;
    size_t width = (size_t)(columns * WORK_ELEMENT), height = rows > 0 ? (size_t)rows : 1;
    w->live_bytes = first ? (w->live_bytes + ALIGN - 1) / ALIGN * ALIGN : w->live_bytes;
    if (first) {
        live *l = &w->live[w->nlives++];
        *l = (live){ .worker = worker, .columns = columns, .at = w->live_bytes, .cut = cut };
        snprintf(l->name, sizeof l->name, "%s", name);
    }
    w->live[w->nlives - 1].rows += rows;
    w->piece[w->npieces++] = (piece){ .worker = worker,
                                      .from = p->at + (cut ? (size_t)worker * width : 0),
                                      .to = w->live_bytes,
                                      .width = width,
                                      .height = height,
                                      .pitch = (size_t)(p->columns * WORK_ELEMENT) };
    w->live_bytes += width * height;
    w->moved += width * height;
}

static void add_lives(work *w, bool fuses)
{
    for (int worker = 0; worker < w->workers; worker++)
        for (size_t i = 0; i < w->nparams; i++) {
            const param *p = &w->param[i];
            char name[sizeof p->name];
            bool first = true;
            if (!fuses || !fused_name(p->name, name, sizeof name, &first))
                snprintf(name, sizeof name, "%s", p->name);
            add_live(w, worker, p, name, first, w->workers > 1 && p->rows > 0);
        }
}

work work_make(work_id id, const model *m)
{
    work w = { .name = kinds[id].name, .workers = kinds[id].workers, .row_bytes = kinds[id].row_bytes, .rules = id == WORK_FUSED ? "llama" : NULL };
    size_t most = (size_t)(id == WORK_LORA ? m->adapters : 9 * m->layers + 3), workers = (size_t)w.workers;
    w.param = need(calloc(most, sizeof *w.param));
    w.live = need(calloc(most * workers, sizeof *w.live));
    w.piece = need(calloc(most * workers, sizeof *w.piece));
    w.names = need(calloc(most, sizeof *w.names));
    if (id == WORK_LORA)
        add_adapters(&w, m);
    else if (w.row_bytes > 0)
        add_param(&w, NULL, -1, "matrix.weight", m->matrix_bytes / w.row_bytes / w.workers, w.row_bytes * w.workers / WORK_ELEMENT);
    else
        add_params(&w, m);
    add_lives(&w, id == WORK_FUSED);
    for (size_t i = 0; i < w.nparams; i++)
        w.names[i] = w.param[i].name;
    snprintf(w.host, sizeof w.host,
             "{\"tensor_parallel_size\":%d,\"hidden_size\":%" PRId64 ",\"intermediate_size\":%" PRId64
             ",\"num_attention_heads\":%" PRId64 ",\"num_key_value_heads\":%" PRId64 ",\"vocab_size\":%" PRId64
             ",\"padded_vocab_size\":%" PRId64 ",\"num_hidden_layers\":%" PRId64 "}",
             w.workers, m->hidden, m->intermediate, m->heads, m->kv_heads, m->vocabulary, m->vocabulary, m->layers);
    return w;
}

/* ---- as text ---- */

char *work_init_info(const work *w, int port)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = need(open_memstream(&text, &size));
    fprintf(out,
            "{\"schema_version\":2,\"master_address\":\"127.0.0.1\",\"master_port\":%d,\"rank_offset\":1,\"world_size\":%d,"
            "\"dst_mesh_dims\":[1,%d],\"params\":[",
            port, 1 + w->workers, w->workers);
    for (size_t i = 0; i < w->nparams; i++) {
        const param *p = &w->param[i];
        fprintf(out, "%s{\"name\":\"%s\",\"dtype_name\":\"bfloat16\",\"shape\":[", i == 0 ? "" : ",", p->name);
        if (p->rows > 0)
            fprintf(out, "%" PRId64 ",", p->rows);
        fprintf(out, "%" PRId64 "],\"src_mesh_dims\":[1,1],\"src_placements\":null,\"allow_full_fallback\":false}", p->columns);
    }
    fprintf(out, "]}");
    fclose(out);
    return need(text);
}

void work_list(const model *m)
{
    printf("{");
    for (work_id id = 0; id < WORKS; id++) {
        work w = work_make(id, m);
        size_t strided = 0, narrowest = SIZE_MAX;
        for (size_t i = 0; i < w.npieces; i++)
            if (w.piece[i].height > 1 && w.piece[i].width < w.piece[i].pitch) {
                strided += w.piece[i].width * w.piece[i].height;
                narrowest = w.piece[i].width < narrowest ? w.piece[i].width : narrowest;
            }
        printf("%s\"%s\":{\"workers\":%d,\"parameters\":%zu,\"live_tensors\":%zu,\"pieces\":%zu,\"bytes\":%zu,\"live_bytes\":%zu,"
               "\"source_bytes\":%zu,\"strided_bytes\":%zu,\"narrowest_row\":%zu}",
               id == 0 ? "" : ",", w.name, w.workers, w.nparams, w.nlives, w.npieces, w.moved, w.live_bytes, w.source_bytes,
               strided, strided > 0 ? narrowest : 0);
        free(w.param), free(w.live), free(w.piece), free(w.names);
    }
    printf("}\n");
}
