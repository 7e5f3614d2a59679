/* tokens.c: see tokens.h. The words lie in a table with open addressing, as many slots as make it half empty. */
#include "tokens.h"

#include "say.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_WORD = 100 }; /* longer ones are [UNK], as in the original */

typedef struct entry {
    char *text;
    int32_t id;
} entry;

struct vocabulary {
    entry *slot;
    size_t slots;
    int32_t cls, sep, unknown, size;
};

static entry *find(const vocabulary *words, const char *text, size_t length)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 1099511628211u;
    for (size_t at = (size_t)hash % words->slots;; at = (at + 1) % words->slots) {
        entry *found = &words->slot[at];
        if (found->text == NULL || (strncmp(found->text, text, length) == 0 && found->text[length] == '\0'))
            return found;
    }
}

static int32_t special(const vocabulary *words, const char *path, const char *text)
{
    const entry *found = find(words, text, strlen(text));
    if (found->text == NULL)
        die("%s: it has no %s", path, text);
    return found->id;
}

vocabulary *vocabulary_open(const char *path)
{
    enum { MOST_WORDS = 1 << 20 };
    FILE *file = fopen(path, "r");
    if (file == NULL)
        die("%s: %s", path, strerror(errno));
    vocabulary *words = must_allocate(1, sizeof *words);
    words->slots = 1 << 17;
    words->slot = must_allocate(words->slots, sizeof *words->slot);
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int32_t id = 0;
    for (; (length = getline(&line, &room, file)) >= 0; id++) {
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            line[--length] = '\0';
        if (id >= (int32_t)(words->slots / 2) || id >= MOST_WORDS)
            die("%s: it has more words than are read", path);
        entry *slot = find(words, line, (size_t)length);
        if (slot->text == NULL)
            *slot = (entry){ .text = strdup(line), .id = id };
        if (slot->text == NULL)
            die("out of memory");
    }
    free(line);
    fclose(file);
    words->size = id;
    words->cls = special(words, path, "[CLS]");
    words->sep = special(words, path, "[SEP]");
    words->unknown = special(words, path, "[UNK]");
    return words;
}

int vocabulary_size(const vocabulary *words)
{
    return words->size;
}

void vocabulary_close(vocabulary *words)
{
    for (size_t i = 0; i < words->slots; i++)
        free(words->slot[i].text);
    free(words->slot);
    free(words);
}

/* The longest piece first; a word of which some part is no piece is [UNK] as a whole. */
static int add_word(const vocabulary *words, const char *word, size_t length, int32_t *ids, int count, int most)
{
    char piece[LONGEST_WORD + 3] = "##";
    int first = count;
    for (size_t from = 0; length <= LONGEST_WORD && from < length;) {
        size_t take = length - from;
        const entry *found = NULL;
        for (; take > 0; take--) {
            memcpy(piece + 2, word + from, take);
            found = from == 0 ? find(words, piece + 2, take) : find(words, piece, take + 2);
            if (found->text != NULL)
                break;
        }
        if (take == 0) {
            length = LONGEST_WORD + 1;
        } else if (count == most) {
            return -1;
        } else {
            ids[count++] = found->id;
            from += take;
        }
    }
    if (length <= LONGEST_WORD)
        return count;
    if (first == most)
        return -1;
    ids[first] = words->unknown;
    return first + 1;
}

static bool stands_alone(unsigned char c)
{
    return c < 128 && ispunct(c) != 0;
}

int tokenize(const vocabulary *words, const char *text, int32_t *ids, int most)
{
    char word[LONGEST_WORD + 2];
    int count = 0;
    if (most < 2)
        return -1;
    ids[count++] = words->cls;
    for (const char *at = text; *at != '\0' && count >= 0;) {
        unsigned char c = (unsigned char)*at;
        if (c <= ' ' || c == 127) {
            at++;
            continue;
        }
        size_t length = 1, kept = 1;
        if (!stands_alone(c))
            while ((unsigned char)at[length] > ' ' && at[length] != 127 && !stands_alone((unsigned char)at[length]))
                length++;
        kept = length > LONGEST_WORD ? LONGEST_WORD + 1 : length;
        for (size_t i = 0; i < kept; i++)
            word[i] = (char)((unsigned char)at[i] < 128 ? tolower((unsigned char)at[i]) : at[i]);
        count = add_word(words, word, kept, ids, count, most - 1);
        at += length;
    }
    if (count >= 0)
        ids[count++] = words->sep;
    return count;
}
