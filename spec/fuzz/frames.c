/*
 * frames.c: whatever comes over a control connection. The first byte chooses who reads: the decoders alone, a channel, rank 0
 * while its world gathers and in rounds after that, another rank in its rounds, a trainer that is sent destinations, or the
 * door of an engine, whose requests come over a socket of their own.
 *
 * What a peer sends is written as records: a byte of type and lies, a tag, two bytes of length, the payload; so that most of
 * what is tried has a header that is nearly right.
 */
#include "support/fuzz.h"

#include "control/agree.h"
#include "control/claim.h"
#include "control/door.h"
#include "control/group.h"
#include "control/word.h"
#include "engine/engine.h"
#include "plan/program.h"
#include "transport/host/card.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADERS, CLAIM, WORD, CARD, DESTINATIONS, CHANNEL, LEADER, FOLLOWER, DOOR, READERS };
enum { RAW = 0x80, OTHER_VERSION = 0x40, LONGER = 0x20, LAST = 0x10, TYPE = 0x0f, MOST_PEERS = 3, MOST_ROUNDS = 4 };

static const double DEADLINE_S = 5; /* no time passes, see support/waits.c */

static const char DIGEST[] = "0ca9b9afd90801b3b40b59a5133aa3e5fa26c856b5d972ddf365d99f9342eef9";

static void on_log(void *user, sluice_log_level level, const char *text)
{
    (void)user;
    fuzz_must(text[0] != '\0' && level >= 0, "an empty line in the log");
}

/* ---- decoders ---- */

static void read_headers(fuzz_input input)
{
    while (input.left >= SLC_FRAME_HEADER) {
        slc_frame_header header;
        unsigned char again[SLC_FRAME_HEADER];
        sluice_error error = SLUICE_ERROR_INIT;
        fuzz_input bytes = fuzz_part(&input, SLC_FRAME_HEADER);
        if (!fuzz_outcome("header", slc_frame_decode(bytes.data, &header, &error), &error))
            continue;
        slc_frame_encode(&header, again);
        fuzz_must(memcmp(again, bytes.data, sizeof again) == 0, "a header encodes otherwise");
    }
}

/* A request is told from nonsense at the first byte that is wrong, and stays what it is. */
static void read_requests(fuzz_input input)
{
    slc_door_request before = SLC_DOOR_UNFINISHED;
    for (size_t length = 1; length <= input.left && length <= SLC_DOOR_REQUEST; length++) {
        slc_door_request now = slc_door_read(input.data, length);
        bool whole = now == SLC_DOOR_STATUS || now == SLC_DOOR_PLAN;
        fuzz_must(!whole || (before == SLC_DOOR_UNFINISHED && input.data[length - 1] == '\n'), "a request in the middle of a line");
        fuzz_must(before == SLC_DOOR_UNFINISHED || now == SLC_DOOR_NONSENSE, "more bytes made sense of it");
        before = now;
    }
}

static void read_claim(fuzz_input input)
{
    slc_claim claim, again;
    slc_buffer bytes = { 0 };
    char who[SLC_WHO_TEXT];
    if (!slc_claim_read(input.data, input.left, &claim))
        return;
    slc_claim_write(&bytes, &claim);
    fuzz_must(slc_claim_read(bytes.data, bytes.length, &again) && memcmp(&claim, &again, sizeof claim) == 0,
              "a claim reads otherwise");
    slc_claim_who(&claim, "here", who);
    slc_buffer_clear(&bytes);
}

static void read_word(fuzz_input input)
{
    slc_envelope envelope, again;
    sluice_error error = SLUICE_ERROR_INIT, other = SLUICE_ERROR_INIT;
    slc_buffer bytes = { 0 };
    if (!slc_word_read_envelope(input.data, input.left, &envelope, &error))
        return;
    fuzz_must(envelope.status == SLUICE_OK || error.status != SLUICE_OK, "an error without a status");
    slc_word_write_envelope(&bytes, slc_word_deadline(envelope.left_ms, envelope.total_ms), envelope.kind, envelope.stage, &error,
                            envelope.body, envelope.length);
    fuzz_must(slc_word_read_envelope(bytes.data, bytes.length, &again, &other), "an envelope cannot be read again");
    fuzz_must(again.status == envelope.status && again.kind == envelope.kind && strcmp(again.stage, envelope.stage) == 0 &&
                  again.length == envelope.length && strcmp(error.text, other.text) == 0 && strcmp(error.stage, other.stage) == 0,
              "an envelope reads otherwise");
    slc_buffer_clear(&bytes);
}

static void read_card(fuzz_input input)
{
    slc_host_card card, again;
    sluice_error error = SLUICE_ERROR_INIT;
    slc_buffer bytes = { 0 };
    if (!fuzz_outcome("card", slc_host_card_read(input.data, input.left, 1, &card, &error), &error))
        return;
    fuzz_must(slc_host_card_write(&card, &bytes, &error) == SLUICE_OK, "%s", error.text);
    fuzz_must(bytes.length == input.left && memcmp(bytes.data, input.data, bytes.length) == 0, "a card encodes otherwise");
    fuzz_must(slc_host_card_make(&again, &error) == SLUICE_OK, "%s", error.text);
    fuzz_outcome("check", slc_host_card_check(&again, &card, 1, &error), &error);
    slc_buffer_clear(&bytes);
}

/* ---- destinations ---- */

static const char PLAN[] =
    "{\"schema\":\"sluice/1\",\"master_address\":\"localhost\",\"master_port\":1,\"rank_offset\":2,\"world_size\":6,"
    "\"source_digest\":\"0ca9b9afd90801b3b40b59a5133aa3e5fa26c856b5d972ddf365d99f9342eef9\","
    "\"src_meshes\":[{\"name\":\"\",\"axes\":[[\"fsdp\",2]]}],"
    "\"dst_meshes\":[{\"name\":\"\",\"axes\":[[\"dp\",2],[\"tp\",2]]},{\"name\":\"experts\",\"axes\":[[\"ep\",4]]}],\"params\":["
    "{\"name\":\"q\",\"dtype_name\":\"bfloat16\",\"shape\":[5,8],\"src_placements\":[{\"axis\":\"fsdp\",\"shard\":0}]},"
    "{\"name\":\"e\",\"dtype_name\":\"float32\",\"shape\":[10,16,6],\"src_placements\":[{\"axis\":\"fsdp\",\"shard\":1}]},"
    "{\"name\":\"n\",\"dtype_name\":\"float32\",\"shape\":[7],\"src_placements\":null}]}";

static slc_plan *fresh_plan(void)
{
    slc_init_info info;
    bool met;
    slc_plan *plan;
    sluice_error error = SLUICE_ERROR_INIT;
    fuzz_must(slc_init_info_read(fuzz_script(NULL), PLAN, sizeof PLAN - 1, &info, &met, &plan, &error) == SLUICE_OK, "%s",
              error.text);
    return plan;
}

static void add_live(slc_live_set *live, const char *name, const char *dtype, int ndim, const int64_t *shape, uintptr_t at)
{
    slc_live one = {
        .name = name, .dtype = slc_dtype_find(dtype), .ndim = ndim, .data = (unsigned char *)at, .attributes = "{}"
    };
    int64_t stride = one.dtype->bytes;
    sluice_error error = SLUICE_ERROR_INIT;
    for (int d = ndim - 1; d >= 0; d--) {
        one.shape[d] = shape[d];
        one.stride[d] = stride;
        stride *= shape[d];
    }
    fuzz_must(slc_live_set_add(live, &one, &error) == SLUICE_OK, "%s", error.text);
}

/* As a trainer does with what rank T sent, and then as a worker would, had it come to the same. */
static void read_destinations(fuzz_input input)
{
    slc_plan *plan = fresh_plan(), *twin = fresh_plan();
    slc_live_set live = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    add_live(&live, "q", "bfloat16", 2, (const int64_t[]){ 8, 8 }, 1 << 20);
    add_live(&live, "w13", "float32", 3, (const int64_t[]){ 3, 16, 6 }, 2 << 20);
    add_live(&live, "n", "float32", 1, (const int64_t[]){ 7 }, 3 << 20);
    if (fuzz_outcome("decode", slc_plan_decode_destinations(plan, input.data, input.left, &error), &error)) {
        for (int32_t rank = 0; rank < slc_plan_trainers(plan); rank++) {
            slc_program program = { 0 };
            fuzz_outcome("compile", slc_program_compile(plan, NULL, rank, &program, &error), &error);
            slc_program_clear(&program);
        }
        fuzz_plan(plan, &live, true, twin);
    }
    slc_live_set_clear(&live);
    slc_plan_destroy(plan);
    slc_plan_destroy(twin);
}

/* ---- peers ---- */

typedef struct peer {
    int fd; /* where it sends */
    bool ended;
} peer;

static void send_all(int fd, const void *bytes, size_t length)
{
    ssize_t sent = length == 0 ? 0 : send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)sent; /* what does not fit is lost, as with a peer that ends */
}

/* One record, see above. False after the one that says it is the last for now. */
static bool send_record(peer *from, fuzz_input *input)
{
    uint8_t kind = fuzz_byte(input), tag = fuzz_byte(input);
    fuzz_input payload = fuzz_part(input, fuzz_below(input, 65536));
    unsigned char header[SLC_FRAME_HEADER];
    slc_frame_header said = { .version = kind & OTHER_VERSION ? 7 : SLC_PROTOCOL_VERSION,
                              .type = kind & TYPE,
                              .tag = tag,
                              .length = (uint32_t)payload.left << (kind & LONGER ? 12 : 0) };
    slc_frame_encode(&said, header);
    if ((kind & RAW) == 0)
        send_all(from->fd, header, sizeof header);
    send_all(from->fd, payload.data, payload.left);
    return (kind & LAST) == 0 && input->left > 0;
}

static void speak(peer *from, fuzz_input *input)
{
    uint8_t how = fuzz_byte(input);
    if (from->fd < 0 || from->ended)
        return;
    for (int records = how & 7; records > 0 && send_record(from, input);)
        records--;
    from->ended = (how & 0x80) != 0;
    if (from->ended)
        shutdown(from->fd, SHUT_WR);
}

static sluice_status hold_round(slc_group *group, uint8_t kind, sluice_error *error)
{
    slc_buffer answer = { 0 }, lines = { 0 };
    slc_deadline deadline = slc_deadline_in(DEADLINE_S);
    const int32_t wanted[] = { 0, group->world_size - 1 };
    const unsigned char *cards[2];
    size_t lengths[2], extra[8] = { 0 };
    sluice_status status;
    slc_list list = {
        .what = "parameter", .count = group->rank == 0 ? SIZE_MAX : 0, .extra = extra, .extra_length = sizeof extra
    };
    switch (kind % 5) {
    case 0:
        status = slc_group_round(group, "source", NULL, DIGEST, 64, NULL, NULL, &answer, deadline, error);
        break;
    case 1:
        status = slc_group_exchange(group, "connect", NULL, "card", 4, wanted, 2, &answer, cards, lengths, deadline, error);
        break;
    case 2: status = slc_agree_on_list(group, "destination", NULL, DIGEST, &list, &answer, deadline, error); break;
    case 3:
        slc_buffer_text(&lines, "library=1\ntransport=host\n");
        status = slc_agree_on_settings(group, "data plane", NULL, &lines, deadline, error);
        break;
    default: status = slc_group_check(group, error);
    }
    slc_buffer_clear(&answer);
    slc_buffer_clear(&lines);
    return status;
}

static void hold_rounds(slc_group *group, peer *peers, int npeers, fuzz_input *input)
{
    for (int rounds = 0; rounds < MOST_ROUNDS && input->left > 0; rounds++) {
        sluice_error error = SLUICE_ERROR_INIT;
        uint8_t kind = fuzz_byte(input);
        for (int i = 0; i < npeers; i++)
            speak(&peers[i], input);
        fuzz_outcome("round", hold_round(group, kind, &error), &error);
    }
    slc_group_leave(group);
}

static slc_rendezvous_options options_of(int32_t rank, int32_t world_size)
{
    return (slc_rendezvous_options){ .listen_fd = -1,
                                     .rank = rank,
                                     .world_size = world_size,
                                     .deadline = slc_deadline_in(DEADLINE_S),
                                     .log = { .write = on_log },
                                     .last_words_s = DEADLINE_S };
}

static void end_peers(peer *peers, int npeers)
{
    const struct linger at_once = { .l_onoff = 1 }; /* no port stays taken */
    for (int i = 0; i < npeers; i++) {
        if (peers[i].fd < 0)
            continue;
        setsockopt(peers[i].fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(peers[i].fd);
    }
}

static void take_frames(fuzz_input input)
{
    int pair[2];
    slc_channel *channel;
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
    peer from = { .fd = pair[1] };
    fuzz_must(slc_channel_open(pair[0], fuzz_byte(&input) % 2 == 0 ? 0 : 1024, &channel, NULL) == SLUICE_OK, "no channel");
    for (bool good = true; good && !from.ended;) {
        if (input.left > 0)
            speak(&from, &input);
        else if (!from.ended)
            from.ended = shutdown(from.fd, SHUT_WR) == 0;
        for (bool got = true; got && good;) {
            slc_frame frame;
            sluice_error error = SLUICE_ERROR_INIT;
            good = fuzz_outcome("take", slc_channel_take(channel, &frame, &got, &error), &error);
            fuzz_must(good || !got, "a failure gives a frame");
            slc_frame_clear(&frame);
        }
    }
    slc_channel_close(channel);
    close(pair[1]);
}

/* Rank 0 with some that come: whoever is let in takes part in rounds. */
static void lead(fuzz_input input)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int npeers = 1 + fuzz_byte(&input) % MOST_PEERS, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    slc_rendezvous_options options = options_of(0, 2 + fuzz_byte(&input) % 2);
    fuzz_must(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 8) == 0 &&
                  getsockname(listener, (struct sockaddr *)&address, &length) == 0,
              "no listening socket");
    peer peers[MOST_PEERS];
    for (int i = 0; i < npeers; i++) {
        peers[i] = (peer){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) };
        fuzz_must(peers[i].fd >= 0 && connect(peers[i].fd, (struct sockaddr *)&address, sizeof address) == 0, "no connection");
        speak(&peers[i], &input);
    }
    slc_group *group;
    sluice_error error = SLUICE_ERROR_INIT;
    options.listen_fd = listener;
    if (fuzz_outcome("join", slc_rendezvous_join(&options, &group, &error), &error))
        hold_rounds(group, peers, npeers, &input);
    else
        fuzz_must(group == NULL, "a failed join gives a group");
    end_peers(peers, npeers);
}

/* Rank 1 of 2, whose rank 0 sends what it likes. */
static void follow(fuzz_input input)
{
    int pair[2];
    slc_group *group;
    slc_channel *channel;
    sluice_error error = SLUICE_ERROR_INIT;
    slc_rendezvous_options options = options_of(1, 2);
    slc_claim claim = { .world_size = 2, .host = "a" };
    fuzz_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
    fuzz_must(slc_group_create(&options, &group, &error) == SLUICE_OK &&
                  slc_channel_open(pair[0], 0, &channel, &error) == SLUICE_OK &&
                  slc_group_link(group, 0, channel, &claim, &error) == SLUICE_OK,
              "%s", error.text);
    peer from = { .fd = pair[1] };
    hold_rounds(group, &from, 1, &input);
    end_peers(&from, 1);
}

void fuzz_target(fuzz_input input)
{
    static void (*const READER[READERS])(fuzz_input) = {
        [HEADERS] = read_headers,           [CLAIM] = read_claim,    [WORD] = read_word, [CARD] = read_card,
        [DESTINATIONS] = read_destinations, [CHANNEL] = take_frames, [LEADER] = lead,    [FOLLOWER] = follow,
        [DOOR] = read_requests,
    };
    READER[fuzz_byte(&input) % READERS](input);
}
