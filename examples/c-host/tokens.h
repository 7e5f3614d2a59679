/* tokens.h: a text to token ids by BERT's WordPiece, from a vocab.txt. */
#ifndef TOKENS_H
#define TOKENS_H

#include <stddef.h>
#include <stdint.h>

typedef struct vocabulary vocabulary;

vocabulary *vocabulary_open(const char *path); /* ends the program where it is none */
int vocabulary_size(const vocabulary *words); /* one more than the largest id */
void vocabulary_close(vocabulary *words);
/*
 * [CLS], the text's pieces, [SEP]; how many, or -1 where they are more than `most`. Letters of ASCII are lowered; accents are
 * not stripped, so that a word with one becomes other pieces, or [UNK], than in the original tokenizer.
 */
int tokenize(const vocabulary *words, const char *text, int32_t *ids, int most);

#endif
