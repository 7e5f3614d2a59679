/*
 * key.h: the shared secret of a deployment, from a file or a descriptor, in memory that no core dump shows, and the keys
 * that are derived from it. A key is never in a message.
 */
#ifndef SLC_CONTROL_KEY_H
#define SLC_CONTROL_KEY_H

#include "sluice.h"

#define SLC_KEY_SHORTEST 32u
#define SLC_KEY_LONGEST 4096u

typedef struct slc_key slc_key;

/*
 * Reads a regular file that only its owner can read and write, byte for byte as it stands. *key is released with
 * slc_key_destroy. INVALID names the rule that the file breaks; SYSTEM where it cannot be read.
 */
sluice_status slc_key_read_file(const char *path, slc_key **key, sluice_error *error);

/*
 * Reads a descriptor to its end and closes it, also on failure. A file is read from its beginning, wherever its offset
 * stands, so that many processes can share one; a pipe must end within ten seconds (TIMEOUT).
 */
sluice_status slc_key_read_descriptor(int fd, slc_key **key, sluice_error *error);

void slc_key_destroy(slc_key *key); /* wipes; NULL is allowed */

/* HKDF-SHA256 of the key with `info`: `length` bytes for whoever has that name, nobody else's. False where OpenSSL fails. */
bool slc_key_derive(const slc_key *key, const char *info, unsigned char *derived, size_t length);

#endif
