/* text.c: see text.h; owns nothing. */
#include "base/text.h"

#include <string.h>

size_t slc_utf8_length(const unsigned char *at, const unsigned char *end)
{
    if (at >= end)
        return 0;
    if (*at < 0x80)
        return 1;
    size_t length = *at >= 0xC2 && *at <= 0xDF ? 2 : (*at & 0xF0) == 0xE0 ? 3 : *at >= 0xF0 && *at <= 0xF4 ? 4 : 0;
    if (length == 0 || (size_t)(end - at) < length)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] > 0x9F) || (*at == 0xF0 && at[1] < 0x90) || (*at == 0xF4 && at[1] > 0x8F))
        return 0;
    return length;
}

bool slc_text_is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    size_t length = 1;
    for (; at < end && length > 0; at += length)
        length = slc_utf8_length(at, end);
    return length > 0;
}

void slc_text_tame(char *text)
{
    unsigned char *at = (unsigned char *)text;
    const unsigned char *end = at + strlen(text);
    while (at < end) {
        size_t length = slc_utf8_length(at, end);
        if (length == 0 || (*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f) {
            *at = '?';
            length = 1;
        }
        at += length;
    }
}
