/* client.c: see client.h. It reads what embed-server sends: answers with a Content-Length. */
#include "client.h"

#include "say.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LONGEST_REPLY = 1 << 20 };

static int connect_to(int port, int wait_s)
{
    const struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                         .sin_addr = { htonl(INADDR_LOOPBACK) } };
    const struct timeval limit = { .tv_sec = wait_s };
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

client client_create(int port)
{
    client c = { .fd = -1, .port = port, .room = 16384 };
    c.reply = must_allocate(c.room + 1, 1);
    return c;
}

void client_destroy(client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->reply);
}

static bool send_all(int fd, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        bytes += sent;
        length -= (size_t)sent;
    }
    return true;
}

/* More of an answer; false where there is none. */
static bool receive(client *c)
{
    if (c->length == c->room) {
        if (c->room >= LONGEST_REPLY)
            return false;
        c->room *= 2;
        c->reply = realloc(c->reply, c->room + 1);
        if (c->reply == NULL)
            die("out of memory");
    }
    ssize_t got = recv(c->fd, c->reply + c->length, c->room - c->length, 0);
    if (got <= 0)
        return false;
    c->length += (size_t)got;
    c->reply[c->length] = '\0';
    return true;
}

static int read_answer(client *c)
{
    char *end = NULL;
    int status = -1;
    c->length = 0;
    while (end == NULL) {
        if (!receive(c))
            return -1;
        end = strstr(c->reply, "\r\n\r\n");
    }
    const char *size = strcasestr(c->reply, "\r\nContent-Length:");
    if (sscanf(c->reply, "HTTP/1.%*d %d", &status) != 1 || size == NULL || size > end)
        return -1;
    size_t head = (size_t)(end + 4 - c->reply), wanted = strtoul(size + 17, NULL, 10);
    while (c->length < head + wanted)
        if (!receive(c))
            return -1;
    memmove(c->reply, c->reply + head, wanted);
    c->reply[wanted] = '\0';
    c->length = wanted;
    return status;
}

int client_ask(client *c, const char *path, const char *body)
{
    char head[8192], size[64] = "";
    if (body != NULL)
        snprintf(size, sizeof size, "Content-Length: %zu\r\n", strlen(body));
    int length = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s%s%s%s\r\n", body == NULL ? "GET" : "POST", path, size,
                          c->token == NULL ? "" : "Authorization: Bearer ", c->token == NULL ? "" : c->token, c->token == NULL ? "" : "\r\n");
    int status = -1;
    bool fresh = c->fd < 0;
    /* A kept connection may have been closed meanwhile: then once more. */
    for (int attempt = 0; attempt < 2 && status < 0; attempt++, fresh = true) {
        if (c->fd < 0)
            c->fd = connect_to(c->port, 120);
        if (c->fd >= 0 && send_all(c->fd, head, (size_t)length) && (body == NULL || send_all(c->fd, body, strlen(body))))
            status = read_answer(c);
        if (status < 0 && c->fd >= 0) {
            close(c->fd);
            c->fd = -1;
        }
        if (fresh)
            break;
    }
    return status;
}

int client_raw(int port, const char *bytes, size_t length)
{
    char answer[256] = "";
    int fd = connect_to(port, 2), status = -1;
    if (fd < 0)
        return -1;
    (void)send_all(fd, bytes, length);
    shutdown(fd, SHUT_WR);
    ssize_t got = recv(fd, answer, sizeof answer - 1, 0);
    close(fd);
    return got > 0 && sscanf(answer, "HTTP/1.%*d %d", &status) == 1 ? status : -1;
}

double client_trickle(int port, double most)
{
    static const char START[] = "GET /health HTTP/1.1\r\nX: ";
    char answer[256];
    const double start = now();
    int fd = connect_to(port, 1);
    bool borne = fd >= 0 && send_all(fd, START, sizeof START - 1);
    while (borne && now() - start < most) {
        ssize_t got = recv(fd, answer, sizeof answer, 0);
        borne = (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) && send_all(fd, "x", 1);
    }
    if (fd >= 0)
        close(fd);
    return now() - start;
}
