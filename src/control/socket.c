/* socket.c: see socket.h; owns no socket beyond a call. */
#include "control/socket.h"

#include "base/error.h"
#include "base/flag.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLICE_MS = 50, LONG_SLICE_MS = 60000 };

static const char STAGE[] = "rendezvous";

static int option(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

slc_endpoint slc_socket_here(int fd)
{
    slc_endpoint end = { 0 };
    socklen_t length = sizeof end.address;
    end.length = getsockname(fd, (struct sockaddr *)end.address, &length) < 0 || length > sizeof end.address ? 0 : length;
    return end;
}

slc_endpoint slc_socket_there(int fd)
{
    slc_endpoint end = { 0 };
    socklen_t length = sizeof end.address;
    end.length = getpeername(fd, (struct sockaddr *)end.address, &length) < 0 || length > sizeof end.address ? 0 : length;
    return end;
}

static sa_family_t family_of(const slc_endpoint *endpoint)
{
    sa_family_t family;
    memcpy(&family, (const unsigned char *)endpoint->address + offsetof(struct sockaddr, sa_family), sizeof family);
    return endpoint->length == 0 ? (sa_family_t)AF_UNSPEC : family;
}

static bool is_wildcard(const slc_endpoint *endpoint)
{
    struct sockaddr_in6 six = { 0 };
    memcpy(&six, endpoint->address, sizeof six);
    return IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

sluice_status slc_socket_listen(const slc_endpoint *endpoint, int *fd, int *code, sluice_error *error)
{
    *fd = -1;
    *code = 0;
    char text[SLC_ADDRESS_TEXT];
    slc_address_text(endpoint, text);
    int made = socket(family_of(endpoint), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool good = made >= 0 && option(made, SOL_SOCKET, SO_REUSEADDR, 1) == 0;
    if (good && family_of(endpoint) == AF_INET6)
        good = option(made, IPPROTO_IPV6, IPV6_V6ONLY, !is_wildcard(endpoint)) == 0;
    if (good && bind(made, (const struct sockaddr *)endpoint->address, endpoint->length) == 0 && listen(made, SOMAXCONN) == 0) {
        *fd = made;
        return SLUICE_OK;
    }
    *code = errno;
    if (made >= 0)
        close(made);
    return slc_fail_errno(error, *code, STAGE, "rank 0 cannot listen on %s", text);
}

void slc_socket_let_rebind(int fd)
{
    (void)option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
}

sluice_status slc_socket_adopt(int fd, sluice_error *error)
{
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0)
        return slc_fail_errno(error, errno, STAGE, "listen_fd (%d)", fd);
    slc_endpoint here = slc_socket_here(fd);
    if (!listening || (family_of(&here) != AF_INET && family_of(&here) != AF_INET6))
        return slc_fail(error, SLUICE_INVALID, STAGE, "listen_fd (%d) must be a listening TCP socket", fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return slc_fail_errno(error, errno, STAGE, "listen_fd (%d)", fd);
    slc_socket_let_rebind(fd);
    listen(fd, SOMAXCONN); /* a whole world may knock at once; where it stays as it was, they knock again */
    return SLUICE_OK;
}

static sluice_status refused(int code, const char *text, sluice_error *error)
{
    sluice_status status = slc_fail_errno(error, code, STAGE, "cannot connect to %s", text);
    bool nobody = code == ECONNREFUSED || code == ECONNRESET || code == EHOSTUNREACH || code == ENETUNREACH || code == ETIMEDOUT ||
                  code == EHOSTDOWN || code == ENETDOWN || code == EADDRNOTAVAIL || code == ECONNABORTED;
    if (nobody) {
        status = SLUICE_PEER;
        if (error != NULL)
            error->status = status;
    }
    return status;
}

static sluice_status await_connection(int fd, const char *text, slc_deadline deadline, const volatile bool *cancelled, sluice_error *error)
{
    for (;;) {
        if (slc_flag_raised(cancelled))
            return slc_fail(error, SLUICE_CANCELLED, STAGE, "cancelled while connecting to %s", text);
        struct pollfd wanted = { .fd = fd, .events = POLLOUT };
        int ready = poll(&wanted, 1, slc_deadline_poll_ms(deadline, cancelled == NULL ? LONG_SLICE_MS : SLICE_MS));
        if (ready > 0)
            break;
        if (ready < 0 && errno != EINTR)
            return slc_fail_errno(error, errno, STAGE, "cannot connect to %s", text);
        if (slc_deadline_passed(deadline))
            return slc_fail(error, SLUICE_TIMEOUT, STAGE, "cannot connect to %s: no answer within %.3g s", text, deadline.seconds);
    }
    int code = 0;
    socklen_t size = sizeof code;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0)
        code = errno;
    return code == 0 ? SLUICE_OK : refused(code, text, error);
}

static bool is_own_other_end(int fd)
{
    slc_endpoint here = slc_socket_here(fd), there = slc_socket_there(fd);
    return here.length == there.length && memcmp(here.address, there.address, here.length) == 0;
}

sluice_status slc_socket_connect(const slc_endpoint *endpoint, slc_deadline deadline, const volatile bool *cancelled, int *fd,
                                 sluice_error *error)
{
    *fd = -1;
    char text[SLC_ADDRESS_TEXT];
    slc_address_text(endpoint, text);
    int made = socket(family_of(endpoint), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (made < 0)
        return slc_fail_errno(error, errno, STAGE, "no socket to connect to %s", text);
    sluice_status status = SLUICE_OK;
    if (connect(made, (const struct sockaddr *)endpoint->address, endpoint->length) < 0)
        status = errno == EINPROGRESS || errno == EINTR ? await_connection(made, text, deadline, cancelled, error)
                                                        : refused(errno, text, error);
    if (status == SLUICE_OK && is_own_other_end(made))
        status = refused(ECONNREFUSED, text, error);
    if (status == SLUICE_OK)
        *fd = made;
    else
        close(made);
    return status;
}
