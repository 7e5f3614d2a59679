/* client.h: a small HTTP client: one connection that is kept, one request at a time. */
#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct client {
    int fd, port;
    const char *token;  /* the caller's; shown with every request; NULL: none */
    char *reply; /* the body of the last answer, terminated */
    size_t length, room;
} client;

client client_create(int port); /* of 127.0.0.1; connects when it is used */
void client_destroy(client *client);
/* The status of the answer, whose body is in client->reply; -1 where none came. `body` NULL: a GET. */
int client_ask(client *client, const char *path, const char *body);
/* Sends bytes as they are and reads until the server has answered and closed, or two seconds have passed. The status, or -1. */
int client_raw(int port, const char *bytes, size_t length);
/* Sends a byte of a header every second; how long the server bore that, at most `most` seconds. */
double client_trickle(int port, double most);

#endif
