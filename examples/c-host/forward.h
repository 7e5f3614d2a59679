/* forward.h: from token ids to the embedding of a sentence: the mean of the encoder's last states, of length 1. */
#ifndef FORWARD_H
#define FORWARD_H

#include "group.h"

/*
 * Every rank calls it with the same ids, 1 to MOST_TOKENS of them, each below the vocabulary's size; all get the same
 * embedding. A sentence is computed by itself, with matrices of its own size, so that its answer does not depend on what
 * else is asked: BLAS may round differently in a larger product.
 */
void forward(const model *model, group *group, const int32_t *ids, int count, float *embedding);

#endif
