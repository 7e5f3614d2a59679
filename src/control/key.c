/* key.c: see key.h. Owns the pages that hold a key. */
#include "control/key.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct slc_key {
    size_t length;
    unsigned char bytes[SLC_KEY_LONGEST + 1]; /* one more, to see that there is more */
};

static const char STAGE[] = "create";
static const char SALT[] = "sluice/1 control";
static const double LONGEST_READ_S = 10;

static sluice_status read_failed(int code, const char *what, sluice_error *error)
{
    return slc_fail_errno(error, code, STAGE, "%s cannot be read", what);
}

static sluice_status await_bytes(int fd, const char *what, slc_deadline deadline, sluice_error *error)
{
    for (;;) {
        struct pollfd wanted = { .fd = fd, .events = POLLIN };
        int ready = poll(&wanted, 1, slc_deadline_poll_ms(deadline, 1000));
        if (ready > 0)
            return SLUICE_OK;
        if (ready < 0 && errno != EINTR)
            return read_failed(errno, what, error);
        if (slc_deadline_passed(deadline))
            return slc_fail(error, SLUICE_TIMEOUT, STAGE, "%s did not end within %.3g s", what, LONGEST_READ_S);
    }
}

static sluice_status read_to_end(int fd, bool seekable, const char *what, slc_key *key, sluice_error *error)
{
    slc_deadline deadline = slc_deadline_in(LONGEST_READ_S);
    while (key->length < sizeof key->bytes) {
        sluice_status status = seekable ? SLUICE_OK : await_bytes(fd, what, deadline, error);
        if (status != SLUICE_OK)
            return status;
        unsigned char *into = key->bytes + key->length;
        size_t room = sizeof key->bytes - key->length;
        ssize_t got = seekable ? pread(fd, into, room, (off_t)key->length) : read(fd, into, room);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return read_failed(errno, what, error);
        key->length += got > 0 ? (size_t)got : 0;
    }
    if (key->length < SLC_KEY_SHORTEST)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s has %zu bytes; a key must have %u to %u", what, key->length, SLC_KEY_SHORTEST,
                        SLC_KEY_LONGEST);
    if (key->length > SLC_KEY_LONGEST)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s has more than %u bytes; a key must have %u to %u", what, SLC_KEY_LONGEST,
                        SLC_KEY_SHORTEST, SLC_KEY_LONGEST);
    return SLUICE_OK;
}

static sluice_status read_key(int fd, bool seekable, const char *what, slc_key **key, sluice_error *error)
{
    slc_key *made = slc_secret_allocate(sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, STAGE, "a key", sizeof *made);
    sluice_status status = read_to_end(fd, seekable, what, made, error);
    if (status == SLUICE_OK)
        *key = made;
    else
        slc_key_destroy(made);
    return status;
}

sluice_status slc_key_read_file(const char *path, slc_key **key, sluice_error *error)
{
    *key = NULL;
    char what[512];
    struct stat facts;
    snprintf(what, sizeof what, "key_file (%s)", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return read_failed(errno, what, error);
    sluice_status status = SLUICE_OK;
    if (fstat(fd, &facts) < 0)
        status = read_failed(errno, what, error);
    else if (!S_ISREG(facts.st_mode))
        status = slc_fail(error, SLUICE_INVALID, STAGE, "%s must be a regular file", what);
    else if ((facts.st_mode & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH)) != 0)
        status = slc_fail(error, SLUICE_INVALID, STAGE, "%s has mode %04o; only its owner may read or write it (chmod 600)", what,
                          (unsigned)(facts.st_mode & 07777));
    else if (facts.st_uid != geteuid() && facts.st_uid != 0)
        status = slc_fail(error, SLUICE_INVALID, STAGE, "%s belongs to user %u; it must be of user %u, who runs this, or of root", what,
                          (unsigned)facts.st_uid, (unsigned)geteuid());
    if (status == SLUICE_OK)
        status = read_key(fd, true, what, key, error);
    close(fd);
    return status;
}

sluice_status slc_key_read_descriptor(int fd, slc_key **key, sluice_error *error)
{
    *key = NULL;
    char what[32];
    struct stat facts;
    snprintf(what, sizeof what, "key_fd (%d)", fd);
    if (fstat(fd, &facts) < 0)
        return read_failed(errno, what, error);
    sluice_status status = read_key(fd, S_ISREG(facts.st_mode), what, key, error);
    close(fd);
    return status;
}

void slc_key_destroy(slc_key *key)
{
    slc_secret_release(key, sizeof *key);
}

bool slc_key_derive(const slc_key *key, const char *info, unsigned char *derived, size_t length)
{
    EVP_KDF *kind = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *context = kind == NULL ? NULL : EVP_KDF_CTX_new(kind);
    char digest[] = "SHA256";
    OSSL_PARAM given[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)key->bytes, key->length),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, (void *)SALT, sizeof SALT - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)info, strlen(info)),
        OSSL_PARAM_construct_end(),
    };
    bool good = context != NULL && EVP_KDF_derive(context, derived, length, given) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kind);
    return good;
}
