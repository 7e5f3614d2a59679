/* token.c: see token.h. */
#include "token.h"

#include "say.h"

#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const char SIGNS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/";

void token_read(const char *path, token *t)
{
    struct stat found;
    char line[LONGEST_TOKEN + 3] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &found) != 0)
        die("token_file (%s) cannot be read", path);
    if (!S_ISREG(found.st_mode))
        die("token_file (%s) must be a regular file", path);
    if ((found.st_mode & 077) != 0)
        die("token_file (%s) has mode %04o; only its owner may read or write it (chmod 600)", path, found.st_mode & 07777);
    if (found.st_uid != geteuid() && found.st_uid != 0)
        die("token_file (%s) belongs to user %u; it must be of user %u, who runs this, or of root", path, found.st_uid, geteuid());
    ssize_t got = read(fd, line, sizeof line - 1);
    close(fd);
    if (got < 0)
        die("token_file (%s) cannot be read", path);
    size_t length = (size_t)got;
    length -= length > 0 && line[length - 1] == '\n';
    length -= length > 0 && line[length - 1] == '\r';
    line[length] = '\0';
    if (length < SHORTEST_TOKEN || length > LONGEST_TOKEN)
        die("token_file (%s) has %zu bytes in its line; a token must have %d to %d", path, length, SHORTEST_TOKEN, LONGEST_TOKEN);
    size_t signs = strspn(line, SIGNS);
    if (signs == 0 || signs + strspn(line + signs, "=") != length)
        die("token_file (%s) must hold one line of letters, digits and - . _ ~ + /, perhaps with = at its end", path);
    *t = (token){ 0 };
    memcpy(t->text, line, length);
}

bool token_admits(const token *t, const char *authorization)
{
    static const char SCHEME[] = "Bearer ";
    char shown[sizeof t->text + 1] = ""; /* one more, so that a longer one differs */
    if (authorization != NULL && strncasecmp(authorization, SCHEME, sizeof SCHEME - 1) == 0)
        strncpy(shown, authorization + sizeof SCHEME - 1, sizeof shown - 1);
    unsigned char differs = (unsigned char)shown[sizeof t->text - 1];
    for (size_t i = 0; i < sizeof t->text; i++)
        differs |= (unsigned char)(shown[i] ^ t->text[i]);
    return differs == 0;
}
