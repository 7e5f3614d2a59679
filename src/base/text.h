/* text.h: what may stand in a text that came from outside. Owns nothing. */
#ifndef SLC_BASE_TEXT_H
#define SLC_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The bytes of one well-formed UTF-8 character at `at`, before `end`; 0 where there is none (overlong forms and surrogates are none). */
size_t slc_utf8_length(const unsigned char *at, const unsigned char *end);
bool slc_text_is_utf8(const char *text);

/* Puts '?' for control characters save newline and tab, and for bytes that are no UTF-8: for terminals, logs and JSON. */
void slc_text_tame(char *text);

#endif
