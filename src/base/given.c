/* given.c: see given.h; and which version this library is. */
#include "base/given.h"

#include "base/error.h"

#include <string.h>

enum { MOST_UNKNOWN = 4096 }; /* a size that is larger still was never set */

const char *sluice_library_version(void)
{
    return SLUICE_VERSION;
}

static size_t first_set(const unsigned char *bytes, size_t from, size_t to)
{
    while (from < to && bytes[from] == 0)
        from++;
    return from;
}

sluice_status slc_given_read(const void *from, void *to, size_t size, size_t least, const char *stage, const char *name, const char *type,
                             sluice_error *error)
{
    uint32_t given;
    if (from == NULL)
        return slc_fail(error, SLUICE_INVALID, stage, "%s (NULL) must point to a %s", name, type);
    memcpy(&given, from, sizeof given);
    /* Every member is at most a pointer wide, so that such a size never ends within one. */
    if (given < least || given % sizeof(void *) != 0 || given > size + MOST_UNKNOWN)
        return slc_fail(error, SLUICE_INVALID, stage, "%s.size (%u) must be sizeof(%s), which is %zu in libsluice " SLUICE_VERSION
                        " and was at least %zu before", name, given, type, size, least);
    size_t set = first_set(from, size, given);
    if (set < given)
        return slc_fail(error, SLUICE_INVALID, stage, "%s.size (%u) is that of a newer sluice.h than libsluice " SLUICE_VERSION
                        " has (%zu), and a member that it does not know (at byte %zu) is set", name, given, size, set);
    memcpy(to, from, given < size ? given : size);
    return SLUICE_OK;
}

bool slc_given_error(const sluice_error *error)
{
    return error == NULL || error->size >= sizeof *error;
}
