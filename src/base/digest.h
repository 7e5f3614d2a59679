/* digest.h: SHA-256 (OpenSSL), as 64 lower-case hex characters. */
#ifndef SLC_BASE_DIGEST_H
#define SLC_BASE_DIGEST_H

#include "sluice.h"

#define SLC_DIGEST_TEXT 65 /* with the terminator */

/* The digest of `length` bytes. INTERNAL where OpenSSL fails; `text` is untouched then. */
sluice_status slc_digest(const void *data, size_t length, char text[SLC_DIGEST_TEXT], sluice_error *error);

/* The OpenSSL of this process, in words; *number as it numbers its versions (0x30000000 for 3.0.0). */
const char *slc_openssl_version(unsigned long *number);

#endif
