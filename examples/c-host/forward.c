/* forward.c: see forward.h. Row-major matrices, a row a token. */
#include "forward.h"

#include "product.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

_Static_assert(MOST_ROWS % PRODUCT_ROWS == 0, "a full batch must end where a group of rows does");

static void normalise(float *x, const float *weight, const float *bias, int count, int width, float epsilon)
{
    for (int i = 0; i < count; i++) {
        float *row = x + i * width;
        double mean = 0, square = 0;
        for (int j = 0; j < width; j++)
            mean += (double)row[j];
        mean /= width;
        for (int j = 0; j < width; j++)
            square += ((double)row[j] - mean) * ((double)row[j] - mean);
        double scale = 1 / sqrt(square / width + (double)epsilon);
        for (int j = 0; j < width; j++)
            row[j] = (float)(((double)row[j] - mean) * scale) * weight[j] + bias[j];
    }
}

/* Each row becomes positive weights that add up to 1. */
static void softmax(float *x, int rows, int columns)
{
    for (int i = 0; i < rows; i++, x += columns) {
        float most = -INFINITY, sum = 0;
        for (int j = 0; j < columns; j++)
            most = x[j] > most ? x[j] : most;
        for (int j = 0; j < columns; j++) {
            x[j] = expf(x[j] - most);
            sum += x[j];
        }
        for (int j = 0; j < columns; j++)
            x[j] /= sum;
    }
}

/* One head of `size`: columns [at, at + size) of query, key and value, which lie `width` apart in rows of 3 * width. */
static void attend(const float *qkv, int count, int width, int at, int size, float *context)
{
    static float score[MOST_TOKENS * MOST_TOKENS];
    const float *query = qkv + at, *key = query + width, *value = key + width;
    const int step = 3 * width;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, count, count, size, 1 / sqrtf((float)size), query, step, key, step, 0, score,
                count);
    softmax(score, count, count);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, size, count, 1, score, count, value, step, 0, context + at, width);
}

static void gelu(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
}

/* A table's row, where this rank holds it: what other ranks hold, they add. */
static void add_row(const model *m, const float *table, int rows, int index, float *to)
{
    int share = table_share(rows, m->tp), local = index - m->rank * share;
    if (local < 0 || local >= share)
        return;
    for (int j = 0; j < m->config.hidden; j++)
        to[j] += table[local * m->config.hidden + j];
}

static void embed(const model *m, const batch *b, float *x)
{
    const config *c = &m->config;
    const int32_t *id = b->ids;
    memset(x, 0, (size_t)b->tokens * (size_t)c->hidden * sizeof *x);
    for (int i = 0; i < b->sentences; i++)
        for (int at = 0; at < b->count[i]; at++, id++, x += c->hidden) {
            add_row(m, m->words, c->vocabulary, *id, x);
            add_row(m, m->positions, c->positions, at, x);
            add_row(m, m->types, c->types, 0, x);
        }
}

/* Every head of this rank, a sentence by itself. */
static void attend_all(const batch *b, const float *qkv, int width, int head, float *context)
{
    for (int i = 0; i < b->sentences; i++) {
        for (int at = 0; at < width; at += head)
            attend(qkv, b->count[i], width, at, head, context);
        qkv += b->count[i] * 3 * width;
        context += b->count[i] * width;
    }
}

/* x = norm(x + sum over ranks + bias) */
static void join(const model *m, group *g, unsigned turn, const float *bias, const float *norm, const float *norm_bias, int count,
                 float *x)
{
    static float sum[MOST_ROWS * MOST_HIDDEN];
    const int hidden = m->config.hidden;
    group_sum(g, turn, sum, (size_t)count * (size_t)hidden);
    for (int i = 0; i < count * hidden; i++)
        x[i] += sum[i] + bias[i % hidden];
    normalise(x, norm, norm_bias, count, hidden, m->config.norm_epsilon);
}

static void pool(const float *x, int count, int hidden, float *embedding)
{
    double length = 0;
    for (int j = 0; j < hidden; j++) {
        double sum = 0;
        for (int i = 0; i < count; i++)
            sum += (double)x[i * hidden + j];
        embedding[j] = (float)(sum / count);
        length += (double)embedding[j] * (double)embedding[j];
    }
    length = sqrt(length);
    for (int j = 0; j < hidden && length > 0; j++)
        embedding[j] = (float)((double)embedding[j] / length);
}

void forward(const model *m, group *g, float embedding[MOST_SENTENCES][MOST_HIDDEN])
{
    /* One thread of a rank computes. */
    static float x[MOST_ROWS * MOST_HIDDEN], qkv[3 * MOST_ROWS * MOST_HIDDEN], wide[4 * MOST_ROWS * MOST_HIDDEN];
    static unsigned turn;
    const config *c = &m->config;
    const batch *b = &g->batch;
    const int hidden = c->hidden, width = hidden / m->tp, head = hidden / c->heads, inner = c->intermediate / m->tp, count = b->tokens;

    embed(m, b, group_partial(g, m->rank, ++turn));
    group_sum(g, turn, x, (size_t)count * (size_t)hidden);
    normalise(x, m->norm, m->norm_bias, count, hidden, c->norm_epsilon);
    for (int i = 0; i < c->layers; i++) {
        const layer *l = &m->layer[i];
        product_multiply(x, count, l->qkv, l->qkv_bias, 3 * width, hidden, qkv);
        attend_all(b, qkv, width, head, wide);
        product_multiply(wide, count, l->out, NULL, hidden, width, group_partial(g, m->rank, ++turn));
        join(m, g, turn, l->out_bias, l->norm1, l->norm1_bias, count, x);
        product_multiply(x, count, l->up, l->up_bias, inner, hidden, wide);
        gelu(wide, (size_t)count * (size_t)inner);
        product_multiply(wide, count, l->down, NULL, hidden, inner, group_partial(g, m->rank, ++turn));
        join(m, g, turn, l->down_bias, l->norm2, l->norm2_bias, count, x);
    }
    for (int i = 0, row = 0; embedding != NULL && i < b->sentences; row += b->count[i], i++)
        pool(x + row * hidden, b->count[i], hidden, embedding[i]);
}
