/*
 * faults_net.c: see faults.h. The namespace is a thread's: the control connection is made in it, everything else of the rank
 * in the old one, so that only the road to rank 0 leads over the link.
 */
#include "faults.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAIRS = 16, CHUNK = 65536 };

int listen_somewhere(const char *address, uint16_t *port)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(*port) };
    socklen_t length = sizeof name;
    inet_pton(AF_INET, address, &name.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && listen(fd, 64) == 0
        && getsockname(fd, (struct sockaddr *)&name, &length) == 0) {
        *port = ntohs(name.sin_port);
        return fd;
    }
    close(fd);
    return -1;
}

uint16_t hold_port(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET };
    socklen_t length = sizeof name;
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (bind(fd, (struct sockaddr *)&name, sizeof name) == 0 && getsockname(fd, (struct sockaddr *)&name, &length) == 0
        && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0) /* not before: two who do would both be given it */
        return ntohs(name.sin_port);
    close(fd);
    return 0;
}

/* ---- the relay ---- */

static int connect_to(uint16_t port)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&name, sizeof name) == 0)
        return fd;
    close(fd);
    return -1;
}

static bool forward(int from, int to)
{
    char bytes[CHUNK];
    ssize_t got = recv(from, bytes, sizeof bytes, 0), sent = 0, now;
    while (sent < got && (now = send(to, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL)) > 0)
        sent += now;
    return got > 0 && sent == got;
}

static void forward_all(struct pollfd *end, int count)
{
    for (int i = 1; i < count; i++) {
        int other = i % 2 == 1 ? i + 1 : i - 1;
        if (end[i].fd < 0 || end[i].revents == 0 || forward(end[i].fd, end[other].fd))
            continue;
        close(end[i].fd);
        close(end[other].fd);
        end[i].fd = end[other].fd = -1;
        end[other].revents = 0;
    }
}

void relay(case_board *shared, int listener, uint16_t port)
{
    struct pollfd end[1 + 2 * PAIRS];
    int count = 1;
    end[0] = (struct pollfd){ .fd = listener, .events = POLLIN };
    while (atomic_load(&shared->relay) == 0) {
        if (poll(end, (nfds_t)count, 2) <= 0)
            continue;
        forward_all(end, count);
        if ((end[0].revents & POLLIN) == 0 || count + 2 > 1 + 2 * PAIRS)
            continue;
        end[count] = (struct pollfd){ .fd = accept(listener, NULL, NULL), .events = POLLIN };
        end[count + 1] = (struct pollfd){ .fd = connect_to(port), .events = POLLIN };
        count += 2;
    }
    /* What the victim had sent before is on its way. */
    if (poll(end + 1, (nfds_t)count - 1, 0) > 0)
        forward_all(end, count);
    atomic_store(&shared->relay, 2);
    for (;;)
        pause(); /* every connection stays open and nothing passes */
}

/* ---- the namespace ---- */

static int old_network = -1, own_network = -1;

static void link_name(char *name, size_t size, pid_t owner, char end)
{
    snprintf(name, size, "slf%d%c", (int)owner, end);
}

static bool run(case_board *shared, const char *format, const char *a, const char *b)
{
    char command[256], with[300];
    snprintf(command, sizeof command, format, a, b);
    snprintf(with, sizeof with, "%s >/dev/null 2>&1", command);
    if (system(with) == 0)
        return true;
    snprintf(shared->unavailable, sizeof shared->unavailable, "'%.200s' failed", command);
    return false;
}

bool network_make(case_board *shared)
{
    char inner[16], outer[16], parent[16];
    old_network = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (unshare(CLONE_NEWNET) != 0) {
        snprintf(shared->unavailable, sizeof shared->unavailable, "a network namespace: %s", strerror(errno));
        return false;
    }
    own_network = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    link_name(inner, sizeof inner, getpid(), 'i');
    link_name(outer, sizeof outer, getpid(), 'o');
    snprintf(parent, sizeof parent, "%d", (int)getppid());
    char make[128];
    snprintf(make, sizeof make, "ip link add %s type veth peer name %s netns %s", inner, outer, parent);
    bool leads = shared->plan.victim == 0;
    bool good = run(shared, "%s%s", make, "")
                && run(shared, "ip addr add %s/30 dev %s", leads ? shared->address : shared->other_address, inner)
                && run(shared, "ip link set %s up%s", inner, "") && run(shared, "ip link set lo up%s%s", "", "");
    network_enter(false);
    return good && run(shared, "ip addr add %s/30 dev %s", leads ? shared->other_address : shared->address, outer)
           && run(shared, "ip link set %s up%s", outer, "");
}

void network_enter(bool own)
{
    if (own_network >= 0)
        setns(own ? own_network : old_network, CLONE_NEWNET);
}

void network_cut(void)
{
    struct ifreq request = { .ifr_flags = 0 };
    link_name(request.ifr_name, sizeof request.ifr_name, getpid(), 'i');
    network_enter(true);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (ioctl(fd, SIOCSIFFLAGS, &request) != 0)
        abort();
    close(fd);
    network_enter(false);
}

bool network_remove(pid_t owner)
{
    char outer[16], command[64];
    link_name(outer, sizeof outer, owner, 'o');
    snprintf(command, sizeof command, "ip link del %s >/dev/null 2>&1", outer);
    return system(command) == 0 || if_nametoindex(outer) == 0;
}

/* ---- what is open ---- */

bool own_shared_memory(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0
           && mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=256m") == 0;
}

size_t control_sockets(uint16_t port, int *fd, size_t most)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        struct sockaddr_in here = { 0 }, there = { 0 };
        socklen_t here_length = sizeof here, there_length = sizeof there;
        int number = atoi(entry->d_name);
        if (getsockname(number, (struct sockaddr *)&here, &here_length) != 0 || here.sin_family != AF_INET
            || getpeername(number, (struct sockaddr *)&there, &there_length) != 0)
            continue;
        if ((ntohs(here.sin_port) == port || ntohs(there.sin_port) == port) && count < most)
            fd[count++] = number;
    }
    closedir(folder);
    return count;
}
