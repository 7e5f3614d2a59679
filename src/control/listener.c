/* listener.c: see listener.h. Owns the listening sockets. */
#include "control/listener.h"

#include "base/error.h"
#include "control/secure.h"
#include "control/socket.h"
#include "control/text.h"

#include <errno.h>
#include <unistd.h>

static void name_sockets(slc_listener *listener)
{
    slc_line line = slc_line_in(listener->text, sizeof listener->text);
    for (size_t i = 0; i < listener->count; i++) {
        char text[SLC_ADDRESS_TEXT];
        slc_endpoint here = slc_socket_here(listener->fd[i]);
        slc_address_text(&here, text);
        slc_line_add(&line, "%s%s", i == 0 ? "" : ", ", text);
    }
}

static sluice_status adopt(int fd, slc_listener *listener, sluice_error *error)
{
    listener->fd = slc_allocate(sizeof *listener->fd);
    if (listener->fd == NULL) {
        close(fd);
        return slc_fail_memory(error, "rendezvous", "a listening socket", sizeof *listener->fd);
    }
    listener->fd[listener->count++] = fd;
    return slc_socket_adopt(fd, error);
}

static sluice_status check_adopted(const slc_rendezvous_options *options, sluice_error *error)
{
    slc_endpoint here = slc_socket_here(options->listen_fd);
    return slc_secure_rule(options->key != NULL, options->insecure, &here, 1, error);
}

static sluice_status listen_on_all(const slc_endpoint *endpoint, size_t count, slc_listener *listener, sluice_error *error)
{
    listener->fd = slc_allocate(count * sizeof *listener->fd);
    if (listener->fd == NULL)
        return slc_fail_memory(error, "rendezvous", "listening sockets", count * sizeof *listener->fd);
    sluice_status status = SLUICE_OK;
    for (size_t i = 0; i < count; i++) {
        int fd, code;
        sluice_status one = slc_socket_listen(&endpoint[i], &fd, &code, error);
        if (one == SLUICE_OK)
            listener->fd[listener->count++] = fd;
        else if (code == EADDRNOTAVAIL || code == EAFNOSUPPORT)
            status = one;
        else
            return one;
    }
    return listener->count > 0 ? SLUICE_OK : status;
}

sluice_status slc_listener_open(const slc_rendezvous_options *options, slc_listener *listener, sluice_error *error)
{
    *listener = (slc_listener){ 0 };
    slc_endpoint *endpoint = NULL;
    size_t count = 0;
    sluice_status status;
    if (options->listen_fd >= 0) {
        status = adopt(options->listen_fd, listener, error);
        if (status == SLUICE_OK)
            status = check_adopted(options, error);
    } else {
        sluice_error tried = SLUICE_ERROR_INIT; /* an endpoint that was passed over leaves no trace in *error */
        status = slc_address_resolve(options->address, options->port, options->deadline, options->cancelled, &endpoint, &count, &tried);
        if (status == SLUICE_OK)
            status = slc_secure_rule(options->key != NULL, options->insecure, endpoint, count, &tried);
        if (status == SLUICE_OK)
            status = listen_on_all(endpoint, count, listener, &tried);
        if (status != SLUICE_OK)
            slc_error_copy(error, &tried);
    }
    slc_release(endpoint);
    if (status == SLUICE_OK)
        name_sockets(listener);
    else
        slc_listener_close(listener);
    return status;
}

void slc_listener_close(slc_listener *listener)
{
    for (size_t i = 0; i < listener->count; i++)
        close(listener->fd[i]);
    slc_release(listener->fd);
    listener->fd = NULL;
    listener->count = 0;
}
