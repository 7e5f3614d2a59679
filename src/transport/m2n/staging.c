/* staging.c: see express.h: what the environment says of the library's staging buffers. Owns nothing. */
#include "transport/m2n/express.h"

#include <errno.h>
#include <stdlib.h>
#include <strings.h>

static const uint64_t BUFFER = (uint64_t)2 << 30, LEAST_BUFFER = 2048, BEYOND = (uint64_t)1 << 32;

static const char *skip_spaces(const char *text)
{
    while (*text == ' ' || *text == '\t')
        text++;
    return text;
}

/* "SIZE[:SLOTS]", a size in bytes or with k or m behind it. NULL where that is something else. */
static const char *read_item(const char *text, uint64_t *size)
{
    char *end;
    text = skip_spaces(text);
    if (*text < '0' || *text > '9')
        return NULL;
    errno = 0;
    *size = strtoull(text, &end, 10);
    int shift = *end == 'k' || *end == 'K' ? 10 : *end == 'm' || *end == 'M' ? 20 : 0;
    if (errno != 0 || *size == 0 || *size > UINT64_MAX >> shift)
        return NULL;
    *size <<= shift;
    text = skip_spaces(shift == 0 ? end : end + 1);
    if (*text != ':')
        return text;
    text = skip_spaces(text + 1);
    if (*text < '0' || *text > '9' || strtol(text, &end, 10) <= 0)
        return NULL;
    return skip_spaces(end);
}

/* The largest of a list; the library passes over one that it cannot read. */
static uint64_t largest_buffer(const char *text)
{
    uint64_t largest = 0, size;
    while (text != NULL) {
        text = read_item(text, &size);
        if (text == NULL || (*text != '\0' && *text != ','))
            return BUFFER;
        largest = size > largest ? size : largest;
        text = *text == ',' ? text + 1 : NULL;
    }
    return largest < LEAST_BUFFER ? BUFFER : largest;
}

uint64_t slc_m2n_staging(void)
{
    const char *algorithm = getenv("NCCL_RESHARD_COPY_ALGORITHM"), *buffers = getenv("NCCL_RESHARD_PACK_BUFFSIZES");
    if (algorithm != NULL && (strcasecmp(algorithm, "DIRECT") == 0 || strcasecmp(algorithm, "PIPE") == 0))
        return BEYOND - 1;
    uint64_t most = buffers == NULL ? BUFFER : largest_buffer(buffers);
    return most < BEYOND ? most : BEYOND - 1;
}
