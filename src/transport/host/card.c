/* card.c: see card.h. Reads /proc; owns nothing. */
#include "transport/host/card.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <unistd.h>

#define STAGE "runtime"

static const uint32_t CARD_VERSION = 1;

/* The first line of a small file, cut to fit; 0, or the errno of why it cannot be read. */
static int read_line(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    ssize_t got = read(fd, text, size - 1);
    int code = got < 0 ? errno : 0;
    close(fd);
    text[got < 0 ? 0 : got] = '\0';
    text[strcspn(text, "\n")] = '\0';
    return code;
}

/* Whether the file, or what it tells of, is not there; anything else that fails is this process' own trouble. */
static bool is_absent(int code)
{
    return code == ENOENT || code == ESRCH || code == EACCES || code == EPERM;
}

static void read_namespace(const char *path, char *text, size_t size)
{
    ssize_t got = readlink(path, text, size - 1);
    text[got < 0 ? 0 : got] = '\0';
}

static uint64_t start_time(const char *line)
{
    enum { FIELDS_FROM_STATE_TO_START = 19 };
    const char *at = strrchr(line, ')'); /* the command's name before it may hold anything */
    if (at == NULL || at[1] == '\0')
        return 0;
    at += 2;
    if (*at == 'Z' || *at == 'X') /* dead, though not buried */
        return 0;
    for (int i = 0; i < FIELDS_FROM_STATE_TO_START && at != NULL; i++) {
        at = strchr(at, ' ');
        if (at != NULL)
            at++;
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

/* Start time of a process in clock ticks since boot; 0 where there is none. Fails where that cannot be found out. */
static sluice_status process_started(int32_t pid, uint64_t *started, sluice_error *error)
{
    char path[32], line[1024];
    *started = 0;
    snprintf(path, sizeof path, "/proc/%" PRId32 "/stat", pid);
    int code = read_line(path, line, sizeof line);
    if (code != 0 && !is_absent(code))
        return slc_fail_errno(error, code, STAGE, "the host transport cannot read %s", path);
    *started = code != 0 ? 0 : start_time(line);
    return SLUICE_OK;
}

static bool random_bytes(void *bytes, size_t length)
{
    return getrandom(bytes, length, 0) == (ssize_t)length;
}

static sluice_status name_machine(slc_host_card *card, sluice_error *error)
{
    static const char PATH[] = "/proc/sys/kernel/random/boot_id";
    int code = read_line(PATH, card->machine, sizeof card->machine);
    if (code != 0 && !is_absent(code))
        return slc_fail_errno(error, code, STAGE, "the host transport cannot read %s", PATH);
    if (code != 0 || card->machine[0] == '\0') {
        struct utsname name; /* kernels without a boot id are still told apart by their names */
        uname(&name);
        snprintf(card->machine, sizeof card->machine, "node %.64s", name.nodename);
    }
    return SLUICE_OK;
}

sluice_status slc_host_card_make(slc_host_card *card, sluice_error *error)
{
    *card = (slc_host_card){ 0 };
    sluice_status status = name_machine(card, error);
    if (status != SLUICE_OK)
        return status;
    read_namespace("/proc/self/ns/pid", card->processes, sizeof card->processes);
    read_namespace("/proc/self/ns/net", card->network, sizeof card->network);
    card->pid = (int32_t)getpid();
    status = process_started(card->pid, &card->started, error);
    if (status != SLUICE_OK)
        return status;
    if (card->started == 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "the host transport needs /proc (own start time not found in /proc/%d/stat)", (int)card->pid);
    if (!random_bytes(card->mark, sizeof card->mark) || !random_bytes(card->token, sizeof card->token))
        return slc_fail_errno(error, errno, STAGE, "host transport: getrandom");
    return SLUICE_OK;
}

sluice_status slc_host_card_write(const slc_host_card *card, slc_buffer *buffer, sluice_error *error)
{
    slc_buffer_u32(buffer, CARD_VERSION);
    slc_buffer_string(buffer, card->machine);
    slc_buffer_string(buffer, card->processes);
    slc_buffer_string(buffer, card->network);
    slc_buffer_u32(buffer, (uint32_t)card->pid);
    slc_buffer_u64(buffer, card->started);
    slc_buffer_u64(buffer, card->mark_address);
    slc_buffer_append(buffer, card->mark, sizeof card->mark);
    slc_buffer_string(buffer, card->socket);
    slc_buffer_append(buffer, card->token, sizeof card->token);
    return buffer->failed ? slc_fail_memory(error, STAGE, "the card of a host process", sizeof *card) : SLUICE_OK;
}

static void read_text(slc_reader *reader, char *text, size_t size)
{
    uint32_t length = slc_read_u32(reader);
    const unsigned char *bytes = length < size ? slc_read_bytes(reader, length) : NULL;
    if (bytes == NULL || memchr(bytes, 0, length) != NULL) {
        reader->failed = true;
        return;
    }
    memcpy(text, bytes, length);
    text[length] = '\0';
}

static void read_exactly(slc_reader *reader, void *to, size_t length)
{
    const unsigned char *bytes = slc_read_bytes(reader, length);
    if (bytes != NULL)
        memcpy(to, bytes, length);
}

sluice_status slc_host_card_read(const unsigned char *bytes, size_t length, int32_t rank, slc_host_card *card,
                                 sluice_error *error)
{
    *card = (slc_host_card){ 0 };
    slc_reader reader = { .data = bytes, .length = length };
    uint32_t version = slc_read_u32(&reader);
    if (!reader.failed && version != CARD_VERSION)
        return slc_fail(error, SLUICE_DISAGREE, STAGE, "card of rank %" PRId32 ": version (%" PRIu32 ") must be %" PRIu32, rank,
                        version, CARD_VERSION);
    read_text(&reader, card->machine, sizeof card->machine);
    read_text(&reader, card->processes, sizeof card->processes);
    read_text(&reader, card->network, sizeof card->network);
    card->pid = (int32_t)slc_read_u32(&reader);
    card->started = slc_read_u64(&reader);
    card->mark_address = slc_read_u64(&reader);
    read_exactly(&reader, card->mark, sizeof card->mark);
    read_text(&reader, card->socket, sizeof card->socket);
    read_exactly(&reader, card->token, sizeof card->token);
    if (reader.failed || slc_reader_left(&reader) != 0 || card->pid <= 0)
        return slc_fail(error, SLUICE_INVALID, STAGE, "card of rank %" PRId32 " (%zu bytes) is damaged", rank, length);
    return SLUICE_OK;
}

sluice_status slc_host_card_check(const slc_host_card *mine, const slc_host_card *peer, int32_t rank, sluice_error *error)
{
    if (strcmp(mine->machine, peer->machine) != 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "rank %" PRId32
                        " is not on this machine (its boot id is %s, here %s): the host transport moves bytes within one",
                        rank, peer->machine, mine->machine);
    if (strcmp(mine->processes, peer->processes) != 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "rank %" PRId32
                        " is on this machine but in another pid namespace (%s, here %s): the host transport needs one "
                        "for all ranks",
                        rank, peer->processes, mine->processes);
    if (strcmp(mine->network, peer->network) != 0)
        return slc_fail(error, SLUICE_UNSUPPORTED, STAGE,
                        "rank %" PRId32
                        " is on this machine but in another network namespace (%s, here %s): the host transport needs "
                        "one for all ranks",
                        rank, peer->network, mine->network);
    uint64_t started;
    sluice_status status = process_started(peer->pid, &started, error);
    if (status == SLUICE_OK && started != peer->started) {
        slc_fail(error, SLUICE_PEER, STAGE, "rank %" PRId32 " is gone (pid %" PRId32 " %s)", rank, peer->pid,
                 started == 0 ? "has ended" : "is another process now");
        if (error != NULL)
            error->rank = rank;
        return SLUICE_PEER;
    }
    return status;
}
