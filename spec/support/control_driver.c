/*
 * control_driver.c: worlds of forked ranks for what Lua cannot do: runs under sanitizers, with every allocation failing in
 * turn, against peers that send damaged frames; and the times that scripts/bench prints.
 *
 *     control_driver allocations <rank>     every n-th allocation of that rank fails, once and from then on
 *     control_driver damage <seed> <count>  strangers and members that send damaged frames
 *     control_driver time <ranks> <rounds>  one line: seconds to join, seconds a round
 *     control_driver idle <ranks> <seconds> one line: what beats cost rank 0 and another rank while nobody calls anything
 *
 * Behind these: "secure" for a key, "beats" for beats of 0.1 s.
 *
 * Exit status 0 when every rank ended as it must; a rank that a sanitizer stops does not.
 */
#include "base/error.h"
#include "control/agree.h"
#include "control/word.h"
#include "driver.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, this_rank, #condition); \
            exit(3);                                                                            \
        }                                                                                       \
    } while (0)

static int this_rank = -1;
static const slc_key *key_of_all;
static double beat_of_all;

static int listen_on_loopback(uint16_t *port)
{
    int given = 0, fd = listen_at(INADDR_LOOPBACK, &given);
    CHECK(fd >= 0);
    *port = (uint16_t)given;
    return fd;
}

static void heed(const sluice_error *error, sluice_status status)
{
    CHECK(status == SLUICE_OK || (error->status == status && error->text[0] != '\0' && error->stage[0] != '\0'));
}

static slc_rendezvous_options options_of(int rank, int world, int listener, uint16_t port, double seconds)
{
    return (slc_rendezvous_options){ .address = "127.0.0.1", .port = port, .listen_fd = rank == 0 ? listener : -1, .rank = rank,
                                     .world_size = world, .deadline = slc_deadline_in(seconds), .key = key_of_all,
                                     .beat_s = beat_of_all };
}

static sluice_status answer_much(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)context;
    (void)word;
    (void)count;
    (void)error;
    for (int i = 0; i < 20000; i++)
        slc_buffer_u64(answer, (uint64_t)i);
    return SLUICE_OK;
}

static sluice_status same_bodies(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)context;
    (void)answer;
    for (int32_t i = 1; i < count; i++)
        if (word[i].length != word[0].length || memcmp(word[i].body, word[0].body, word[0].length) != 0)
            return slc_fail(error, SLUICE_DISAGREE, word[0].stage, "ranks 0 and %d differ", i);
    return SLUICE_OK;
}

/* The whole life of a rank; every call either works or says why not. */
static void live(slc_group *group, double seconds)
{
    sluice_error error = SLUICE_ERROR_INIT, mine = SLUICE_ERROR_INIT;
    slc_buffer answer = { 0 }, store = { 0 };
    const unsigned char *cards[3];
    size_t lengths[3];
    char body[8];
    slc_fail(&mine, SLUICE_INVALID, "update", "rank %d says no", group->rank);
    heed(&error, slc_group_round(group, "source", NULL, "abc", 3, same_bodies, NULL, NULL, slc_deadline_in(seconds), &error));
    snprintf(body, sizeof body, "%d", group->rank);
    heed(&error, slc_group_round(group, "source", NULL, body, 1, same_bodies, NULL, NULL, slc_deadline_in(seconds), &error));
    heed(&error, slc_group_round(group, "update", group->rank > 0 ? &mine : NULL, "", 0, NULL, NULL, NULL, slc_deadline_in(seconds), &error));
    sluice_status status = slc_group_round(group, "update", NULL, NULL, 0, answer_much, NULL, &answer, slc_deadline_in(seconds), &error);
    heed(&error, status);
    CHECK(status != SLUICE_OK ? answer.data == NULL : answer.length == 160000);
    slc_buffer_clear(&answer);
    heed(&error, slc_group_check(group, &error));
    status = slc_group_exchange(group, "connect", NULL, body, strlen(body), (const int32_t[]){ 0, 1, 2 }, 3, &store, cards, lengths,
                                slc_deadline_in(seconds), &error);
    heed(&error, status);
    for (int i = 0; i < 3 && status == SLUICE_OK; i++)
        CHECK(lengths[i] == 1 && cards[i][0] == '0' + i);
    slc_buffer_clear(&store);
    slc_group_leave(group);
}

/* ---- allocations ---- */

enum { ALLOCATION_WORLD = 3 };

static int rank_with_failures(int rank, int failing, uint64_t nth, bool sticky, int listener, uint16_t port)
{
    this_rank = rank;
    if (rank != 0)
        close(listener);
    int before = descriptors() - (rank == 0);
    sluice_error error = SLUICE_ERROR_INIT;
    slc_group *group;
    slc_rendezvous_options options = options_of(rank, ALLOCATION_WORLD, listener, port, 0.3);
    if (rank == failing)
        slc_fail_allocation(nth, sticky);
    sluice_status status = slc_rendezvous_join(&options, &group, &error);
    heed(&error, status);
    CHECK((status == SLUICE_OK) == (group != NULL));
    if (group != NULL)
        live(group, 0.3);
    uint64_t made = rank == failing ? slc_fail_allocation(0, false) : 0;
    CHECK(descriptors() == before);
    return rank == failing && made < nth ? 1 : 0; /* 1: there was no n-th one any more */
}

static int fail_allocations(int failing)
{
    uint64_t total = 0;
    for (int sticky = 0; sticky <= 1; sticky++) {
        bool done = false;
        for (uint64_t nth = 1; !done; nth++, total++) {
            uint16_t port;
            int listener = listen_on_loopback(&port);
            pid_t child[ALLOCATION_WORLD];
            for (int rank = 0; rank < ALLOCATION_WORLD; rank++)
                if ((child[rank] = fork()) == 0)
                    exit(rank_with_failures(rank, failing, nth, sticky, listener, port));
            close(listener);
            for (int rank = 0; rank < ALLOCATION_WORLD; rank++) {
                int how;
                waitpid(child[rank], &how, 0);
                if (!WIFEXITED(how) || WEXITSTATUS(how) > 1) {
                    fprintf(stderr, "allocation %llu of rank %d, %s: rank %d ended with %x\n", (unsigned long long)nth, failing,
                            sticky ? "sticky" : "once", rank, (unsigned)how);
                    return 1;
                }
                done = done || (rank == failing && WEXITSTATUS(how) == 1);
            }
        }
    }
    printf("%llu\n", (unsigned long long)total);
    return 0;
}

/* ---- damaged frames ---- */

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t value = *state;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static void append_frame(slc_buffer *bytes, uint32_t type, uint32_t tag, const slc_buffer *payload)
{
    unsigned char header[SLC_FRAME_HEADER];
    slc_frame_encode(&(slc_frame_header){ .version = SLC_PROTOCOL_VERSION, .type = type, .tag = tag, .length = (uint32_t)payload->length },
                     header);
    slc_buffer_append(bytes, header, sizeof header);
    slc_buffer_append(bytes, payload->data, payload->length);
}

static void append_join(slc_buffer *bytes, uint64_t *state)
{
    slc_buffer payload = { 0 };
    slc_buffer_u32(&payload, (uint32_t)(next_random(state) % 4));
    slc_buffer_u32(&payload, 3);
    for (int i = 0; i < 5; i++)
        slc_buffer_u64(&payload, next_random(state) % 100000);
    slc_buffer_u32(&payload, 0);
    slc_buffer_string(&payload, "host");
    append_frame(bytes, SLC_FRAME_JOIN, 0, &payload);
    slc_buffer_clear(&payload);
}

static void append_word(slc_buffer *bytes, uint64_t *state)
{
    slc_buffer payload = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    slc_fail(&error, SLUICE_INVALID, "source", "damaged");
    uint64_t choice = next_random(state) % 3;
    if (choice == 2)
        slc_word_write_error(&payload, &error);
    else
        slc_word_write_envelope(&payload, slc_deadline_in(5), (uint8_t)(next_random(state) % 3), "source", choice == 1 ? &error : NULL, "abc", 3);
    append_frame(bytes, choice == 2 ? SLC_FRAME_ABORT : SLC_FRAME_ENVELOPE, 0, &payload);
    slc_buffer_clear(&payload);
}

static void damage(slc_buffer *bytes, size_t from, uint64_t *state)
{
    for (uint64_t times = next_random(state) % 4; times > 0 && bytes->length > from; times--) {
        size_t at = from + next_random(state) % (bytes->length - from);
        switch (next_random(state) % 4) {
        case 0: bytes->data[at] = (unsigned char)next_random(state); break;
        case 1: bytes->data[at] ^= (unsigned char)(1u << next_random(state) % 8); break;
        case 2: bytes->length = at; break;
        default: slc_buffer_u64(bytes, next_random(state)); break;
        }
    }
}

static void throw_bytes(uint16_t port, const slc_buffer *bytes, bool lingers)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && bytes->length > 0) {
        send(fd, bytes->data, bytes->length, MSG_NOSIGNAL);
        if (lingers)
            usleep(2000);
    }
    close(fd);
}

/* A world of 2 that waits for its rank 1 while damaged joins come, or whose rank 1 joins in order and then talks damage. */
static int stand_damage(uint64_t seed, int count)
{
    uint64_t state = seed;
    for (int i = 0; i < count; i++) {
        uint16_t port;
        int listener = listen_on_loopback(&port);
        bool as_member = i % 2 == 1;
        pid_t child = fork();
        if (child == 0) {
            this_rank = 0;
            int before = descriptors() - 1;
            sluice_error error = SLUICE_ERROR_INIT;
            slc_group *group;
            slc_rendezvous_options options = options_of(0, as_member ? 2 : 3, listener, port, as_member ? 1 : 0.05);
            heed(&error, slc_rendezvous_join(&options, &group, &error));
            if (group != NULL)
                live(group, 0.05);
            CHECK(descriptors() == before);
            exit(0);
        }
        slc_buffer bytes = { 0 };
        for (int k = 0; k < (as_member ? 1 : 12); k++) {
            bytes.length = 0;
            if (as_member) {
                slc_buffer payload = { 0 };
                slc_buffer_u32(&payload, 1);
                slc_buffer_u32(&payload, 2);
                for (int j = 0; j < 5; j++)
                    slc_buffer_u64(&payload, 1000);
                slc_buffer_u32(&payload, 0);
                slc_buffer_string(&payload, "host");
                append_frame(&bytes, SLC_FRAME_JOIN, 0, &payload);
                slc_buffer_clear(&payload);
                size_t whole = bytes.length;
                /* Nothing may follow the join before the welcome, so the rest goes out behind it. */
                struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port) };
                int fd = socket(AF_INET, SOCK_STREAM, 0);
                char welcome[512];
                if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && send(fd, bytes.data, whole, MSG_NOSIGNAL) > 0 &&
                    recv(fd, welcome, sizeof welcome, 0) > 0) {
                    append_word(&bytes, &state);
                    append_word(&bytes, &state);
                    damage(&bytes, whole, &state);
                    send(fd, bytes.data + whole, bytes.length - whole, MSG_NOSIGNAL);
                    usleep(5000);
                }
                close(fd);
            } else {
                append_join(&bytes, &state);
                damage(&bytes, 0, &state);
                throw_bytes(port, &bytes, k % 3 == 0);
            }
        }
        slc_buffer_clear(&bytes);
        close(listener);
        int how;
        waitpid(child, &how, 0);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
            fprintf(stderr, "damage %llu %d: case %d ended with %x\n", (unsigned long long)seed, count, i, (unsigned)how);
            return 1;
        }
    }
    printf("%d\n", count);
    return 0;
}

/* ---- times ---- */

/* This process and its children, the ranks of a world. */
static slc_group *join_all(int world)
{
    uint16_t port;
    int listener = listen_on_loopback(&port);
    this_rank = 0;
    for (int i = 1; i < world && this_rank == 0; i++)
        if (fork() == 0)
            this_rank = i;
    if (this_rank != 0)
        close(listener);
    sluice_error error = SLUICE_ERROR_INIT;
    slc_group *group;
    slc_rendezvous_options options = options_of(this_rank, world, listener, port, 60);
    CHECK(slc_rendezvous_join(&options, &group, &error) == SLUICE_OK);
    return group;
}

/* Returns in rank 0 alone: how many of the others ended badly. */
static int leave_all(slc_group *group)
{
    slc_group_leave(group);
    if (this_rank != 0)
        exit(0);
    int bad = 0, how;
    while (wait(&how) > 0)
        bad += !WIFEXITED(how) || WEXITSTATUS(how) != 0;
    return bad;
}

static int take_time(int world, int rounds)
{
    sluice_error error = SLUICE_ERROR_INIT;
    double started = slc_now_s();
    slc_group *group = join_all(world);
    double joined = slc_now_s();
    char body[64];
    memset(body, 'd', sizeof body);
    for (int i = 0; i < rounds; i++)
        CHECK(slc_group_round(group, "source", NULL, body, sizeof body, same_bodies, NULL, NULL, slc_deadline_in(60), &error) == SLUICE_OK);
    double ended = slc_now_s();
    int bad = leave_all(group);
    printf("%d ranks joined in %.4f s (fork included), %d rounds of %.1f us\n", world, joined - started, rounds,
           (ended - joined) * 1e6 / rounds);
    return bad > 0;
}

/* ---- the cost of beats ---- */

static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static int stand_idle(int world, double seconds)
{
    sluice_error error = SLUICE_ERROR_INIT;
    slc_group *group = join_all(world);
    CHECK(slc_group_round(group, "source", NULL, "x", 1, same_bodies, NULL, NULL, slc_deadline_in(60), &error) == SLUICE_OK);
    double before = processor_seconds();
    usleep((useconds_t)(seconds * 1e6));
    double spent = processor_seconds() - before;
    if (this_rank < 2)
        printf("rank %d of %d: %.3f ms of processor a second with beats of %g s\n", this_rank, world, spent / seconds * 1e3, beat_of_all);
    fflush(stdout);
    CHECK(slc_group_round(group, "source", NULL, "x", 1, same_bodies, NULL, NULL, slc_deadline_in(60), &error) == SLUICE_OK);
    return leave_all(group) > 0;
}

static void set_key(void)
{
    int end[2];
    sluice_error error = SLUICE_ERROR_INIT;
    slc_key *key;
    CHECK(pipe(end) == 0 && write(end[1], "a key for this driver, long enough", 34) == 34 && close(end[1]) == 0);
    CHECK(slc_key_read_descriptor(end[0], &key, &error) == SLUICE_OK);
    key_of_all = key;
}

int main(int count, char **argument)
{
    for (bool more = true; more && count > 2;) {
        more = strcmp(argument[count - 1], "secure") == 0 || strcmp(argument[count - 1], "beats") == 0;
        if (more && strcmp(argument[count - 1], "secure") == 0)
            set_key();
        else if (more)
            beat_of_all = 0.1;
        count -= more;
    }
    if (count == 4 && strcmp(argument[1], "idle") == 0)
        return stand_idle(atoi(argument[2]), atof(argument[3]));
    if (count == 3 && strcmp(argument[1], "allocations") == 0)
        return fail_allocations(atoi(argument[2]));
    if (count == 4 && strcmp(argument[1], "damage") == 0)
        return stand_damage(strtoull(argument[2], NULL, 10), atoi(argument[3]));
    if (count == 4 && strcmp(argument[1], "time") == 0)
        return take_time(atoi(argument[2]), atoi(argument[3]));
    fprintf(stderr, "usage: control_driver allocations <rank> | damage <seed> <count> | time <ranks> <rounds> | "
                    "idle <ranks> <seconds>, then [secure] [beats]\n");
    return 2;
}
