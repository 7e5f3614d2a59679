/* address.c: see address.h. Owns the look-up thread and what it shares with the caller. */
#include "control/address.h"

#include "base/error.h"
#include "base/flag.h"
#include "base/memory.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

_Static_assert(sizeof(struct sockaddr_storage) <= sizeof((slc_endpoint){ 0 }.address), "an endpoint holds any address");

enum { LONGEST_NAME = 255, SLICE_MS = 50 };

static const char STAGE[] = "rendezvous";

/* Shared by the caller and the look-up thread; the last one to let go frees it. */
typedef struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t done_now;
    int users;
    bool done;
    int result, system_error;
    struct addrinfo *found;
    char host[LONGEST_NAME + 1];
} lookup;

static const struct addrinfo HINTS = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };

static void let_go(lookup *job)
{
    pthread_mutex_lock(&job->lock);
    int users = --job->users;
    pthread_mutex_unlock(&job->lock);
    if (users > 0)
        return;
    if (job->found != NULL)
        freeaddrinfo(job->found);
    pthread_cond_destroy(&job->done_now);
    pthread_mutex_destroy(&job->lock);
    slc_release(job);
}

static void *look_up(void *context)
{
    lookup *job = context;
    struct addrinfo *found = NULL;
    int result = getaddrinfo(job->host, NULL, &HINTS, &found);
    int system_error = errno;
    pthread_mutex_lock(&job->lock);
    job->result = result;
    job->system_error = system_error;
    job->found = found;
    job->done = true;
    pthread_cond_signal(&job->done_now);
    pthread_mutex_unlock(&job->lock);
    let_go(job);
    return NULL;
}

static int start_thread(lookup *job)
{
    pthread_t thread;
    job->users++;
    int code = slc_thread_start(&thread, true, look_up, job);
    if (code != 0)
        job->users--;
    return code;
}

static lookup *new_lookup(const char *host)
{
    lookup *job = slc_allocate_zeroed(1, sizeof *job);
    if (job == NULL)
        return NULL;
    job->users = 1;
    snprintf(job->host, sizeof job->host, "%s", host);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&job->done_now, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&job->lock, NULL);
    return job;
}

static sluice_status await(lookup *job, slc_deadline deadline, const volatile bool *cancelled, sluice_error *error)
{
    sluice_status status = SLUICE_OK;
    pthread_mutex_lock(&job->lock);
    while (!job->done && status == SLUICE_OK) {
        int64_t until = slc_deadline_sooner(deadline, slc_deadline_in(SLICE_MS * 1e-3)).at_ns;
        struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
        pthread_cond_timedwait(&job->done_now, &job->lock, &at);
        if (job->done)
            break;
        if (slc_flag_raised(cancelled))
            status = slc_fail(error, SLUICE_CANCELLED, STAGE, "cancelled while looking up \"%s\"", job->host);
        else if (slc_deadline_passed(deadline))
            status = slc_fail(error, SLUICE_TIMEOUT, STAGE, "the look-up of \"%s\" took longer than %.3g s", job->host,
                              deadline.seconds);
    }
    pthread_mutex_unlock(&job->lock);
    return status;
}

static sluice_status unresolved(const char *address, int result, int system_error, sluice_error *error)
{
    if (result == EAI_MEMORY)
        return slc_fail_memory(error, STAGE, "the look-up of an address", 0);
    if (result == EAI_SYSTEM)
        return slc_fail_errno(error, system_error, STAGE, "address \"%s\" does not resolve", address);
    return slc_fail(error, SLUICE_INVALID, STAGE, "address \"%s\" does not resolve: %s", address, gai_strerror(result));
}

static sluice_status copy_endpoints(const struct addrinfo *found, uint16_t port, slc_endpoint **list, size_t *count,
                                    sluice_error *error)
{
    size_t room = 0;
    for (const struct addrinfo *one = found; one != NULL; one = one->ai_next)
        room++;
    slc_endpoint *all = slc_allocate_zeroed(room, sizeof *all);
    if (all == NULL)
        return slc_fail_memory(error, STAGE, "the endpoints of an address", room * sizeof *all);
    size_t used = 0;
    for (const struct addrinfo *one = found; one != NULL; one = one->ai_next) {
        if ((one->ai_family != AF_INET && one->ai_family != AF_INET6) || one->ai_addrlen > sizeof all->address)
            continue;
        slc_endpoint *endpoint = &all[used];
        uint16_t network = htons(port);
        endpoint->length = one->ai_addrlen;
        memcpy(endpoint->address, one->ai_addr, one->ai_addrlen);
        size_t at = one->ai_family == AF_INET ? offsetof(struct sockaddr_in, sin_port) : offsetof(struct sockaddr_in6, sin6_port);
        memcpy((unsigned char *)endpoint->address + at, &network, sizeof network);
        bool known = false;
        for (size_t i = 0; i < used && !known; i++)
            known = all[i].length == endpoint->length && memcmp(&all[i].address, &endpoint->address, endpoint->length) == 0;
        used += !known;
    }
    *list = all;
    *count = used;
    return SLUICE_OK;
}

/* Takes the brackets off; what stood in them must be an IPv6 literal. */
static sluice_status bare_host(const char *address, char host[LONGEST_NAME + 1], bool *literal, sluice_error *error)
{
    size_t length = strnlen(address, LONGEST_NAME + 3);
    bool opened = length > 0 && address[0] == '[', closed = length > 0 && address[length - 1] == ']';
    *literal = opened;
    if (length == 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "address must not be empty");
    if (length > LONGEST_NAME)
        return slc_fail(error, SLUICE_INVALID, STAGE, "address must be at most %d bytes long", (int)LONGEST_NAME);
    if (opened != closed || length == 1)
        return slc_fail(error, SLUICE_INVALID, STAGE, "address \"%s\" has a bracket without its partner", address);
    snprintf(host, LONGEST_NAME + 1, "%.*s", (int)(length - (opened ? 2 : 0)), address + opened);
    if (opened && strchr(host, ':') == NULL)
        return slc_fail(error, SLUICE_INVALID, STAGE, "address \"%s\" must hold an IPv6 address in its brackets", address);
    return SLUICE_OK;
}

sluice_status slc_address_resolve(const char *address, uint16_t port, slc_deadline deadline, const volatile bool *cancelled,
                                  slc_endpoint **list, size_t *count, sluice_error *error)
{
    *list = NULL;
    *count = 0;
    char host[LONGEST_NAME + 1];
    bool literal;
    sluice_status status = bare_host(address, host, &literal, error);
    if (status != SLUICE_OK)
        return status;

    struct addrinfo hints = HINTS, *found = NULL;
    hints.ai_flags = AI_NUMERICHOST;
    int result = getaddrinfo(host, NULL, &hints, &found);
    if (result == 0) {
        status = copy_endpoints(found, port, list, count, error);
        freeaddrinfo(found);
        return status;
    }
    if (result != EAI_NONAME || literal || strchr(host, ':') != NULL)
        return unresolved(address, result, errno, error);

    lookup *job = new_lookup(host);
    if (job == NULL)
        return slc_fail_memory(error, STAGE, "the look-up of an address", sizeof *job);
    int code = start_thread(job);
    if (code != 0)
        status = slc_fail_errno(error, code, STAGE, "no thread for the look-up of \"%s\"", address);
    else
        status = await(job, deadline, cancelled, error);
    if (status == SLUICE_OK && job->result != 0)
        status = unresolved(address, job->result, job->system_error, error);
    if (status == SLUICE_OK)
        status = copy_endpoints(job->found, port, list, count, error);
    let_go(job);
    return status;
}

bool slc_address_is_loopback(const slc_endpoint *endpoint)
{
    struct sockaddr_storage address = { 0 };
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    memcpy(&address, endpoint->address, endpoint->length);
    memcpy(&four, &address, sizeof four);
    memcpy(&six, &address, sizeof six);
    if (address.ss_family == AF_INET)
        return ntohl(four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (address.ss_family != AF_INET6)
        return false;
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}

void slc_address_text(const slc_endpoint *endpoint, char text[SLC_ADDRESS_TEXT])
{
    struct sockaddr_storage address = { 0 };
    struct sockaddr_in four;
    struct sockaddr_in6 six;
    char host[INET6_ADDRSTRLEN];
    memcpy(&address, endpoint->address, endpoint->length);
    memcpy(&four, &address, sizeof four);
    memcpy(&six, &address, sizeof six);
    if (address.ss_family == AF_INET) {
        inet_ntop(AF_INET, &four.sin_addr, host, sizeof host);
        snprintf(text, SLC_ADDRESS_TEXT, "%s:%u", host, ntohs(four.sin_port));
    } else if (address.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
        inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, host, sizeof host);
        snprintf(text, SLC_ADDRESS_TEXT, "%s:%u", host, ntohs(six.sin6_port));
    } else if (address.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof host);
        snprintf(text, SLC_ADDRESS_TEXT, "[%s]:%u", host, ntohs(six.sin6_port));
    } else {
        snprintf(text, SLC_ADDRESS_TEXT, "a local socket");
    }
}
