/* forward.h: from token ids to the embeddings of sentences: the mean of the encoder's last states, of length 1. */
#ifndef FORWARD_H
#define FORWARD_H

#include "group.h"

/*
 * Every rank calls it for group->batch, whose sentences have 1 to MOST_TOKENS ids below the vocabulary's size; all get the
 * same embeddings. Sentences of a batch share the waits of the ranks for each other, and no matrix product: a sentence's
 * answer must not depend on what else is asked, and BLAS may round differently in a larger product.
 */
void forward(const model *model, group *group, float embedding[MOST_SENTENCES][MOST_HIDDEN]);

#endif
