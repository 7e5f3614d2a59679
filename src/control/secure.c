/* secure.c: see secure.h. Owns every OpenSSL object of the control connections; reads and writes the sockets under TLS. */
#include "control/secure.h"

#include "base/error.h"
#include "base/memory.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { PSK = 48, IDENTITY = 64, MAGIC = 4 };

static const char STAGE[] = "control";
static const char CIPHER[] = "TLS_AES_256_GCM_SHA384";
static const unsigned char CIPHER_NUMBER[] = { 0x13, 0x02 };

struct slc_secure {
    size_t users;
    SSL_CTX *context;
    BIO_METHOD *wire;
    const slc_key *key;
    int32_t rank;
    char identity[IDENTITY]; /* of this rank */
};

struct slc_secure_link {
    slc_secure *secure;
    SSL *tls;
    int fd;
    const char *peer;
    int32_t proved_rank, proved_world;
    unsigned char head[MAGIC]; /* the first bytes that came */
    size_t head_filled;
    bool plain; /* those of a frame */
    int code; /* errno of the wire */
};

/* ---- the wire: a socket that raises no SIGPIPE ---- */

static int wire_read(BIO *bio, char *into, int room)
{
    slc_secure_link *link = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got;
    do
        got = recv(link->fd, into, (size_t)room, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        BIO_set_retry_read(bio);
        return -1;
    }
    if (got < 0)
        link->code = errno;
    for (ssize_t i = 0; i < got && link->head_filled < MAGIC; i++)
        link->head[link->head_filled++] = (unsigned char)into[i];
    if (link->head_filled == MAGIC && memcmp(link->head, "SLCE", MAGIC) == 0) {
        link->plain = true; /* a frame: TLS must not answer with an alert, which that peer could not read */
        return -1;
    }
    return got < 0 ? -1 : (int)got;
}

static int wire_write(BIO *bio, const char *from, int length)
{
    slc_secure_link *link = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t sent;
    do
        sent = send(link->fd, from, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return (int)sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        BIO_set_retry_write(bio);
    else
        link->code = errno;
    return -1;
}

static long wire_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/* ---- identities ---- */

static void identity_of(int32_t rank, int32_t world_size, char text[IDENTITY])
{
    snprintf(text, IDENTITY, "sluice/1 rank %d of %d", rank, world_size);
}

static SSL_SESSION *session_for(SSL *tls, const slc_key *key, const char *identity)
{
    unsigned char derived[PSK];
    SSL_SESSION *session = NULL;
    const SSL_CIPHER *cipher = SSL_CIPHER_find(tls, CIPHER_NUMBER);
    if (cipher != NULL && slc_key_derive(key, identity, derived, sizeof derived))
        session = SSL_SESSION_new();
    if (session != NULL && (SSL_SESSION_set1_master_key(session, derived, sizeof derived) != 1 ||
                            SSL_SESSION_set_cipher(session, cipher) != 1 ||
                            SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1)) {
        SSL_SESSION_free(session);
        session = NULL;
    }
    explicit_bzero(derived, sizeof derived);
    return session;
}

/* The other ranks: who this one is. */
static int use_session(SSL *tls, const EVP_MD *digest, const unsigned char **identity, size_t *length, SSL_SESSION **session)
{
    (void)digest;
    const slc_secure_link *link = SSL_get_app_data(tls);
    const char *own = link->secure->identity;
    *session = session_for(tls, link->secure->key, own);
    *identity = (const unsigned char *)own;
    *length = strlen(own);
    return *session != NULL;
}

/* Rank 0: the key of whoever it says to be, spelled as identity_of spells it. OpenSSL then checks that the peer has it. */
static int find_session(SSL *tls, const unsigned char *identity, size_t length, SSL_SESSION **session)
{
    slc_secure_link *link = SSL_get_app_data(tls);
    char said[IDENTITY] = "", spelled[IDENTITY];
    int rank = -1, world_size = 0;
    *session = NULL;
    if (length >= sizeof said)
        return 1;
    memcpy(said, identity, length);
    if (sscanf(said, "sluice/1 rank %9d of %9d", &rank, &world_size) != 2)
        return 1;
    identity_of(rank, world_size, spelled);
    if (strlen(spelled) != length || memcmp(spelled, identity, length) != 0)
        return 1;
    *session = session_for(tls, link->secure->key, spelled);
    link->proved_rank = rank;
    link->proved_world = world_size;
    return *session != NULL;
}

/* ---- context ---- */

static bool set_up(slc_secure *secure)
{
    SSL_CTX *context = secure->context;
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_quiet_shutdown(context, 1);
    /* A peer that shows a certificate in place of the key is refused: nothing here trusts any. */
    SSL_CTX_set_verify(context, secure->rank == 0 ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (secure->rank == 0)
        SSL_CTX_set_psk_find_session_callback(context, find_session);
    else
        SSL_CTX_set_psk_use_session_callback(context, use_session);
    return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 && SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
           SSL_CTX_set_ciphersuites(context, CIPHER) == 1 && SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
           SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1;
}

sluice_status slc_secure_create(const slc_key *key, int32_t rank, int32_t world_size, slc_secure **secure, sluice_error *error)
{
    *secure = NULL;
    slc_secure *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, STAGE, "a TLS context", sizeof *made);
    *made = (slc_secure){ .users = 1, .key = key, .rank = rank };
    identity_of(rank, world_size, made->identity);
    ERR_clear_error();
    made->context = SSL_CTX_new(rank == 0 ? TLS_server_method() : TLS_client_method());
    made->wire = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "sluice socket");
    bool good = made->context != NULL && made->wire != NULL && BIO_meth_set_read(made->wire, wire_read) == 1 &&
                BIO_meth_set_write(made->wire, wire_write) == 1 && BIO_meth_set_ctrl(made->wire, wire_control) == 1 && set_up(made);
    if (!good) {
        slc_secure_release(made);
        return slc_fail(error, SLUICE_SYSTEM, STAGE, "OpenSSL gives no TLS 1.3 with %s", CIPHER);
    }
    *secure = made;
    return SLUICE_OK;
}

void slc_secure_release(slc_secure *secure)
{
    if (secure == NULL || --secure->users > 0)
        return;
    SSL_CTX_free(secure->context);
    BIO_meth_free(secure->wire);
    slc_release(secure);
}

/* ---- one connection ---- */

sluice_status slc_secure_open(slc_secure *secure, int fd, const char *peer, slc_secure_link **link, sluice_error *error)
{
    *link = NULL;
    slc_secure_link *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL)
        return slc_fail_memory(error, STAGE, "a TLS connection", sizeof *made);
    *made = (slc_secure_link){ .secure = secure, .fd = fd, .peer = peer, .proved_rank = -1 };
    ERR_clear_error();
    made->tls = SSL_new(secure->context);
    BIO *wire = made->tls == NULL ? NULL : BIO_new(secure->wire);
    if (wire == NULL) {
        SSL_free(made->tls);
        slc_release(made);
        return slc_fail_memory(error, STAGE, "a TLS connection", 0);
    }
    secure->users++;
    BIO_set_data(wire, made);
    BIO_set_init(wire, 1);
    SSL_set_bio(made->tls, wire, wire);
    SSL_set_app_data(made->tls, made);
    if (secure->rank == 0)
        SSL_set_accept_state(made->tls);
    else
        SSL_set_connect_state(made->tls);
    *link = made;
    return SLUICE_OK;
}

void slc_secure_close(slc_secure_link *link)
{
    if (link == NULL)
        return;
    SSL_free(link->tls);
    slc_secure_release(link->secure);
    slc_release(link);
}

static sluice_status tls_failed(slc_secure_link *link, unsigned long code, sluice_error *error)
{
    int reason = ERR_GET_REASON(code);
    const char *text = ERR_reason_error_string(code);
    /* OpenSSL answers a proof that does not verify with "illegal parameter", others with "decrypt error". */
    bool other_key = reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER ||
                     reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR;
    if (SSL_is_init_finished(link->tls))
        return slc_fail(error, SLUICE_INVALID, STAGE, "TLS with %s failed: %s", link->peer, text == NULL ? "no reason given" : text);
    return slc_fail(error, SLUICE_INVALID, STAGE, "the TLS handshake with %s failed: %s", link->peer,
                    other_key ? "it has another key" : text == NULL ? "no reason given" : text);
}

/* What a call of OpenSSL that did not do its work means; *wanted is what it waits for, 0 where that is over. */
static sluice_status judge(slc_secure_link *link, int result, short *wanted, sluice_error *error)
{
    int what = SSL_get_error(link->tls, result);
    unsigned long code = ERR_peek_error();
    ERR_clear_error();
    *wanted = 0;
    if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE) {
        *wanted = what == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
        return SLUICE_OK;
    }
    if (link->plain)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE, "%s has no key, and %s has one", link->secure->rank == 0 ? "it" : "rank 0",
                        link->secure->rank == 0 ? "rank 0" : "this rank");
    if (what == SSL_ERROR_SSL)
        return tls_failed(link, code, error);
    if (link->code != 0 && link->code != ECONNRESET && link->code != EPIPE) {
        slc_fail_errno(error, link->code, STAGE, "the connection to %s failed", link->peer);
        if (error != NULL)
            error->status = SLUICE_PEER;
        return SLUICE_PEER;
    }
    return slc_fail(error, SLUICE_PEER, STAGE, "%s ended the connection", link->peer);
}

/* The handshake ended well; it must have been with the key. */
static sluice_status check_key_used(slc_secure_link *link, sluice_error *error)
{
    if (SSL_session_reused(link->tls) == 1)
        return SLUICE_OK;
    return slc_fail(error, SLUICE_INVALID, STAGE, "the TLS handshake with %s failed: it did not use the key", link->peer);
}

sluice_status slc_secure_handshake(slc_secure_link *link, short *wanted, sluice_error *error)
{
    ERR_clear_error();
    int result = SSL_do_handshake(link->tls);
    if (result != 1)
        return judge(link, result, wanted, error);
    *wanted = 0;
    return check_key_used(link, error);
}

sluice_status slc_secure_read(slc_secure_link *link, void *into, size_t room, size_t *bytes, sluice_error *error)
{
    short wanted;
    *bytes = 0;
    ERR_clear_error();
    int result = SSL_read_ex(link->tls, into, room, bytes);
    if (result == 1)
        return check_key_used(link, error);
    *bytes = 0;
    return judge(link, result, &wanted, error);
}

sluice_status slc_secure_write(slc_secure_link *link, const void *from, size_t length, size_t *bytes, sluice_error *error)
{
    short wanted;
    *bytes = 0;
    ERR_clear_error();
    int result = SSL_write_ex(link->tls, from, length, bytes);
    if (result == 1)
        return SLUICE_OK;
    *bytes = 0;
    return judge(link, result, &wanted, error);
}

size_t slc_secure_pending(const slc_secure_link *link)
{
    int pending = SSL_pending(link->tls);
    return pending > 0 ? (size_t)pending : 0;
}

void slc_secure_proved(const slc_secure_link *link, int32_t *rank, int32_t *world_size)
{
    bool done = SSL_is_init_finished(link->tls);
    *rank = done ? link->proved_rank : -1;
    *world_size = done ? link->proved_world : 0;
}

/* ---- the rule ---- */

sluice_status slc_secure_rule(bool has_key, bool insecure, const slc_endpoint *endpoint, size_t count, sluice_error *error)
{
    for (size_t i = 0; i < count && !has_key && !insecure; i++) {
        char text[SLC_ADDRESS_TEXT];
        if (slc_address_is_loopback(&endpoint[i]))
            continue;
        slc_address_text(&endpoint[i], text);
        return slc_fail(error, SLUICE_INVALID, "rendezvous",
                        "%s is not on the loopback interface: a key must be given (key_file or key_fd), or insecure_control set to true", text);
    }
    return SLUICE_OK;
}
