/*
 * door_place.c: the listening socket of a door: made at a path that is checked, or taken over from the host. Owns the file at
 * that path from bind to leave: a file that is another's by then stays.
 */
#include "control/door_place.h"

#include "base/error.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BACKLOG = 16 };

static const char STAGE[] = "attach";

/* ---- a socket of the host ---- */

static bool is_listening_unix_socket(int fd)
{
    int listening = 0, domain = 0, type = 0;
    socklen_t a = sizeof listening, b = sizeof domain, c = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &a) == 0 && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &b) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &c) == 0 && listening != 0 && domain == AF_UNIX && type == SOCK_STREAM;
}

static sluice_status adopt(int fd, sluice_error *error)
{
    if (!is_listening_unix_socket(fd))
        return slc_fail(error, SLUICE_INVALID, STAGE, "the descriptor (%d) must be a listening Unix stream socket", fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return slc_fail_errno(error, errno, STAGE, "the descriptor (%d)", fd);
    return SLUICE_OK;
}

/* ---- a path ---- */

/* The path with its folder resolved: the process may be elsewhere when the file is to be removed. */
static sluice_status resolve(const char *path, struct sockaddr_un *address, sluice_error *error)
{
    char folder[PATH_MAX], found[PATH_MAX];
    struct stat facts;
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    if (strlen(path) >= sizeof folder || name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "the path (%.200s) must end in the name of a socket", path);
    snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path + 1), slash == NULL ? "." : path);
    if (realpath(folder, found) == NULL || stat(found, &facts) < 0)
        return slc_fail_errno(error, errno, STAGE, "the folder of %.200s", path);
    if ((facts.st_mode & S_IWOTH) != 0 && (facts.st_mode & S_ISVTX) == 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "the folder of %.200s has mode %04o: anyone could put another socket there", path,
                        (unsigned)(facts.st_mode & 07777));
    size_t length = strlen(found);
    if (length + 1 + strlen(name) >= sizeof address->sun_path)
        return slc_fail(error, SLUICE_INVALID, STAGE, "the path (%.200s) has %zu bytes from the root; a Unix socket's has at most %zu", path,
                        length + 1 + strlen(name), sizeof address->sun_path - 1);
    int written = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", strcmp(found, "/") == 0 ? "" : found, name);
    return written > 0 ? SLUICE_OK : slc_fail(error, SLUICE_INTERNAL, STAGE, "a path cannot be written");
}

static bool somebody_listens(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool nobody = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) < 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return !nobody;
}

/* What lies at the path may go if it is a socket of this user on which nobody listens any more. */
static sluice_status clear_way(const struct sockaddr_un *address, sluice_error *error)
{
    const char *path = address->sun_path;
    struct stat facts, again;
    if (lstat(path, &facts) < 0)
        return errno == ENOENT ? SLUICE_OK : slc_fail_errno(error, errno, STAGE, "%s", path);
    if (S_ISLNK(facts.st_mode))
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s is a symbolic link; a socket is made only where nothing is", path);
    if (!S_ISSOCK(facts.st_mode))
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s is there already (a %s)", path, slc_file_kind(facts.st_mode));
    if (facts.st_uid != geteuid())
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s is a socket of user %u", path, (unsigned)facts.st_uid);
    if (somebody_listens(address))
        return slc_fail(error, SLUICE_INVALID, STAGE, "somebody listens on %s already", path);
    if (lstat(path, &again) < 0 || again.st_dev != facts.st_dev || again.st_ino != facts.st_ino)
        return slc_fail(error, SLUICE_INVALID, STAGE, "%s has just been taken by another process", path);
    return unlink(path) == 0 || errno == ENOENT ? SLUICE_OK : slc_fail_errno(error, errno, STAGE, "%s", path);
}

/* The mode of a socket that is not bound yet becomes its file's, so that nobody else's file mode mask has to be changed. */
static sluice_status bind_to(const struct sockaddr_un *address, socklen_t length, const char *shown, int *fd, sluice_error *error)
{
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd >= 0 && fchmod(*fd, S_IRUSR | S_IWUSR) == 0 && bind(*fd, (const struct sockaddr *)address, length) == 0 &&
        listen(*fd, BACKLOG) == 0)
        return SLUICE_OK;
    return slc_fail_errno(error, errno, STAGE, "no socket at %.200s", shown);
}

static sluice_status listen_at_path(const char *path, slc_door_place *place, sluice_error *error)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    sluice_status status = resolve(path, &address, error);
    if (status == SLUICE_OK)
        status = clear_way(&address, error);
    if (status == SLUICE_OK)
        status = bind_to(&address, sizeof address, path, &place->fd, error);
    struct stat facts;
    if (status != SLUICE_OK || lstat(address.sun_path, &facts) < 0)
        return status;
    memcpy(place->path, address.sun_path, sizeof place->path);
    place->device = facts.st_dev;
    place->inode = facts.st_ino;
    return SLUICE_OK;
}

/* "@name": a name that is in no file system; who asks is all that is checked there. */
static sluice_status listen_at_name(const char *name, slc_door_place *place, sluice_error *error)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = strlen(name);
    if (length < 2 || length > sizeof address.sun_path)
        return slc_fail(error, SLUICE_INVALID, STAGE, "the name (%.200s) must have 1 to %zu bytes behind the @", name,
                        sizeof address.sun_path - 1);
    memcpy(address.sun_path + 1, name + 1, length - 1);
    return bind_to(&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length), name, &place->fd, error);
}

sluice_status slc_door_listen(const char *path, int fd, slc_door_place *place, sluice_error *error)
{
    *place = (slc_door_place){ .fd = fd };
    sluice_status status;
    if ((path == NULL) == (fd < 0))
        status = slc_fail(error, SLUICE_INVALID, STAGE, "one of a path and a descriptor must be given, and not both");
    else if (path == NULL)
        status = adopt(fd, error);
    else
        status = path[0] == '@' ? listen_at_name(path, place, error) : listen_at_path(path, place, error);
    if (status != SLUICE_OK)
        slc_door_leave(place);
    return status;
}

void slc_door_leave(slc_door_place *place)
{
    struct stat facts;
    if (place->path[0] != '\0' && lstat(place->path, &facts) == 0 && facts.st_dev == place->device && facts.st_ino == place->inode)
        (void)unlink(place->path);
    place->path[0] = '\0';
    if (place->fd >= 0)
        close(place->fd);
    place->fd = -1;
}
