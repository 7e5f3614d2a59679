/* forward.h: from token ids to the embeddings of sentences: the mean of the encoder's last states, of length 1. */
#ifndef FORWARD_H
#define FORWARD_H

#include "group.h"

/*
 * Every rank calls it for group->batch, whose sentences have 1 to MOST_TOKENS ids below the vocabulary's size. Rank 0 gets the
 * embeddings; others give NULL, since the batch may be the next one by the time that they come to its end. All sentences go
 * through a weight together, which makes it cheap, and a sentence's answer is the same bits whatever else is in the batch: see
 * product.h. Attention, a matter of one sentence, is BLAS' products.
 */
void forward(const model *model, group *group, float embedding[MOST_SENTENCES][MOST_HIDDEN]);

#endif
