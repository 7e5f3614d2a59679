/*
 * token.h: the secret by which a training job proves that it may bring weights: one line of a file that only its owner can read
 * (`openssl rand -hex 32`), as sluice.control of examples/python-host has it. Its text is in no error.
 */
#ifndef TOKEN_H
#define TOKEN_H

#include <stdbool.h>

enum { SHORTEST_TOKEN = 32, LONGEST_TOKEN = 4096 };

typedef struct token {
    char text[LONGEST_TOKEN + 1]; /* zeros behind its end */
} token;

/* Ends the program where the file is none, others may read or write it, or it holds no token. */
void token_read(const char *path, token *token);
/* Whether an Authorization header (NULL: there was none) shows it; takes as long for any wrong one. */
bool token_admits(const token *token, const char *authorization);

#endif
