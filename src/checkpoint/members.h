/*
 * members.h: walks the members of a large JSON object one by one, so that memory follows one member and never the text.
 * The walk finds where a key and its value begin and end; jansson reads and judges each. Private to src/checkpoint/.
 */
#ifndef SLC_CHECKPOINT_MEMBERS_H
#define SLC_CHECKPOINT_MEMBERS_H

#include <jansson.h>

#include "sluice.h"

#define SLC_LONGEST_KEY 4096 /* bytes between the quotes */
#define SLC_LONGEST_VALUE 1048576 /* bytes of a value that is read whole */

typedef struct slc_members {
    const char *file, *what; /* for messages: "FILE: the header is not JSON (...)" */
    const char *begin, *at, *end;
    bool first;
} slc_members;

/* A value's text. */
typedef struct slc_span {
    const char *text;
    size_t length;
} slc_span;

/* Begins at the text of an object, which may have white space around it. INVALID where it opens none. */
sluice_status slc_members_begin(slc_members *walk, const char *file, const char *what, const char *text, size_t length,
                                sluice_error *error);

/*
 * The next member: *key is a JSON string, released with json_decref, NULL at the end (which is checked to be the text's).
 * Keys are not compared with each other.
 */
sluice_status slc_members_next(slc_members *walk, json_t **key, slc_span *value, sluice_error *error);

/* Reads a value of at most SLC_LONGEST_VALUE bytes, no key twice. Release *json with json_decref. */
sluice_status slc_members_value(const slc_members *walk, slc_span value, json_t **json, sluice_error *error);

#endif
