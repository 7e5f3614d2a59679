/* digest.c: see digest.h. */
#include "base/digest.h"

#include "base/error.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

sluice_status slc_digest(const void *data, size_t length, char text[SLC_DIGEST_TEXT], sluice_error *error)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    if (EVP_Digest(data, length, sum, &bytes, EVP_sha256(), NULL) != 1 || bytes != 32)
        return slc_fail(error, SLUICE_INTERNAL, "digest", "OpenSSL cannot compute SHA-256");
    static const char HEX[] = "0123456789abcdef";
    for (unsigned i = 0; i < bytes; i++) {
        text[2 * i] = HEX[sum[i] >> 4];
        text[2 * i + 1] = HEX[sum[i] & 15];
    }
    text[64] = '\0';
    return SLUICE_OK;
}

const char *slc_openssl_version(unsigned long *number)
{
    *number = OpenSSL_version_num();
    return OpenSSL_version(OPENSSL_VERSION);
}
