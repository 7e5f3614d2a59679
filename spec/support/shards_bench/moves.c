/* moves.c: see moves.h. */
#include "moves.h"

#include "bench.h"
#include "plan/layout.h"
#include "script/init_info.h"

#include <stdio.h>
#include <stdlib.h>

static char *slurp(const char *path, size_t *length)
{
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die("%s cannot be read", path);
    FILE *copy = need(open_memstream(&text, length));
    char part[65536];
    for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;)
        fwrite(part, 1, got, copy);
    fclose(file);
    fclose(copy);
    return need(text);
}

static void add_param(moves *m, const slc_param *given)
{
    param_move *p = &m->param[m->nparams++];
    *p = (param_move){ .bytes = (size_t)given->bytes, .first = m->nshards };
    size_t from = 0;
    for (int32_t number = 0; number < slc_layout_shards(given->source); number++) {
        slc_box box = slc_layout_shard_box(given->source, given->ndim, given->shape, number);
        size_t bytes = (size_t)(slc_box_volume(&box) * given->dtype->bytes);
        if (bytes == 0)
            continue;
        int trainer = slc_layout_rank(given->source, number, 0);
        m->shard[m->nshards++] = (shard){ .trainer = trainer, .at = m->held[trainer], .from = from, .bytes = bytes };
        m->held[trainer] += bytes;
        from += bytes;
        p->count++;
        if (bytes % 8 != 0)
            m->unfit = "a shard is no whole number of words of 8 bytes";
    }
    m->total += p->bytes;
    m->largest = p->bytes > m->largest ? p->bytes : m->largest;
}

moves *moves_read(const options *o, int *ranks)
{
    size_t length, shards = 0;
    char *text = slurp(o->init_info, &length);
    slc_script *script = NULL;
    slc_plan *plan = NULL;
    slc_init_info info;
    bool met;
    sluice_error error = SLUICE_ERROR_INIT;
    if (slc_script_create(NULL, &script, &error) != SLUICE_OK ||
        slc_init_info_draft(script, text, length, &info, &met, &plan, &error) != SLUICE_OK)
        die("%s", error.text);
    moves *m = need(calloc(1, sizeof *m));
    m->trainers = info.trainers;
    m->workers = info.world_size - info.trainers;
    for (size_t i = 0; i < slc_plan_count(plan); i++)
        shards += (size_t)slc_layout_shards(slc_plan_at(plan, i)->source);
    m->param = need(calloc(slc_plan_count(plan) + 1, sizeof *m->param));
    m->shard = need(calloc(shards + 1, sizeof *m->shard));
    m->held = need(calloc((size_t)m->trainers, sizeof *m->held));
    for (size_t i = 0; i < slc_plan_count(plan); i++)
        add_param(m, slc_plan_at(plan, i));
    slc_plan_destroy(plan);
    slc_script_destroy(script);
    free(text);
    *ranks = info.world_size;
    return m;
}
