/*
 * communicator.c: a communicator for the ranks that have a peer no other road reaches, made only now that every rank is
 * connected:
 *
 *     members  every rank says whether it wants in; rank 0 checks that they can form one
 *     id       from init info, or from the lowest member; a secret: no log and no error has more of it than its digest
 *     join     all members, at the same time
 *
 * A world whose peers have other roads ends after the first of these rounds. Owns nothing beyond the call.
 */
#include "engine/engine.h"

#include <string.h>

_Static_assert(SLC_COMMUNICATOR_ID_BYTES == SLC_UNIQUE_ID_BYTES, "init info has an id as long as transports want it");

typedef struct member_list {
    int32_t *rank;
    size_t count;
} member_list;

/* ---- who ---- */

/* The answer: a bit for each rank, set for members; nothing where there are none. */
static sluice_status judge_members(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    const slc_communicator_ops *ops = context;
    size_t bytes = ((size_t)count + 7) / 8, found = 0;
    slc_member *member = slc_allocate_zeroed((size_t)count, sizeof *member);
    unsigned char *bit = slc_allocate_zeroed(bytes, 1);
    sluice_status status = SLUICE_OK;
    if (member == NULL || bit == NULL)
        status = slc_fail_memory(error, "connect", "the members of a communicator", (size_t)count * sizeof *member);
    for (int32_t i = 0; i < count && status == SLUICE_OK; i++) {
        if (word[i].length == 0)
            continue;
        member[found++] = (slc_member){ .rank = i, .card = word[i].body, .length = word[i].length };
        bit[i / 8] = (unsigned char)(bit[i / 8] | 1 << i % 8);
    }
    if (status == SLUICE_OK && found > 0)
        status = ops->check(member, found, error);
    if (status == SLUICE_OK && found > 0 && !slc_buffer_append(answer, bit, bytes))
        status = slc_fail_memory(error, "connect", "the members of a communicator", bytes);
    slc_release(member);
    slc_release(bit);
    return status;
}

static sluice_status read_members(const slc_buffer *answer, int32_t world, member_list *members, sluice_error *error)
{
    if (answer->length == 0)
        return SLUICE_OK;
    if (answer->length != ((size_t)world + 7) / 8)
        return slc_fail(error, SLUICE_PEER, "connect", "the members of a communicator from rank 0 cannot be read");
    members->rank = slc_allocate_zeroed((size_t)world, sizeof *members->rank);
    if (members->rank == NULL)
        return slc_fail_memory(error, "connect", "the members of a communicator", (size_t)world * sizeof *members->rank);
    for (int32_t i = 0; i < world; i++)
        if ((answer->data[i / 8] >> i % 8 & 1) != 0)
            members->rank[members->count++] = i;
    return SLUICE_OK;
}

/* Every rank ends it with the same members, or with an error in `mine` that the next round tells. */
static sluice_status find_members(slc_stages *stages, member_list *members, bool *any, sluice_error *error)
{
    const slc_build *build = stages->build;
    slc_buffer card = { 0 }, answer = { 0 };
    (void)build->ops->communicator->card(build->transport, &card, &stages->mine);
    sluice_status status = slc_group_round(stages->session->group, "connect", &stages->mine, card.data, card.length, judge_members,
                                           (void *)build->ops->communicator, &answer, stages->deadline, error);
    *any = status == SLUICE_OK && answer.length > 0;
    if (*any)
        (void)read_members(&answer, stages->session->info.world_size, members, &stages->mine);
    slc_buffer_clear(&card);
    slc_buffer_clear(&answer);
    return status;
}

/* ---- the id ---- */

/* One rank says an id; all others say nothing. */
static sluice_status judge_id(void *context, const slc_word *word, int32_t count, slc_buffer *answer, sluice_error *error)
{
    (void)context;
    for (int32_t i = 0; i < count; i++) {
        if (word[i].length == 0)
            continue;
        if (word[i].length != SLC_COMMUNICATOR_ID_BYTES || answer->length > 0)
            return slc_fail(error, SLUICE_INTERNAL, "connect", "rank %d sent an id that cannot be one", i);
        if (!slc_buffer_append(answer, word[i].body, word[i].length))
            return slc_fail_memory(error, "connect", "an id", word[i].length);
    }
    return answer->length > 0 ? SLUICE_OK : slc_fail(error, SLUICE_INTERNAL, "connect", "no rank sent an id");
}

static sluice_status carry_id(slc_stages *stages, bool makes, unsigned char *id, sluice_error *error)
{
    const slc_build *build = stages->build;
    slc_buffer answer = { 0 };
    if (makes && stages->mine.status == SLUICE_OK)
        (void)build->ops->communicator->make_id(build->transport, id, &stages->mine);
    sluice_status status = slc_group_round(stages->session->group, "connect", &stages->mine, id, makes ? SLC_COMMUNICATOR_ID_BYTES : 0,
                                           judge_id, NULL, &answer, stages->deadline, error);
    if (status == SLUICE_OK && answer.length == SLC_COMMUNICATOR_ID_BYTES)
        memcpy(id, answer.data, SLC_COMMUNICATOR_ID_BYTES);
    else if (status == SLUICE_OK)
        slc_fail(&stages->mine, SLUICE_PEER, "connect", "the id of a communicator from rank 0 cannot be read");
    slc_buffer_clear(&answer);
    return status;
}

/* ---- the way through ---- */

static bool is_member(const member_list *members, int32_t rank)
{
    for (size_t i = 0; i < members->count; i++)
        if (members->rank[i] == rank)
            return true;
    return false;
}

static sluice_status join(slc_stages *stages, const member_list *members, sluice_error *error)
{
    slc_session *session = stages->session;
    const slc_build *build = stages->build;
    int32_t rank = stages->engine->options.rank;
    unsigned char *id = slc_secret_allocate(SLC_COMMUNICATOR_ID_BYTES);
    sluice_status status = SLUICE_OK;
    if (id == NULL && stages->mine.status == SLUICE_OK)
        slc_fail_memory(&stages->mine, "connect", "the id of a communicator", SLC_COMMUNICATOR_ID_BYTES);
    bool given = session->info.has_unique_id && !session->id_used;
    if (given && id != NULL)
        memcpy(id, session->info.unique_id, SLC_COMMUNICATOR_ID_BYTES);
    else if (!given)
        status = carry_id(stages, members->count > 0 && members->rank[0] == rank, id, error);
    session->id_used = true;
    if (status == SLUICE_OK && stages->mine.status == SLUICE_OK && is_member(members, rank)) {
        slc_stage_enter(stages, "joins a communicator");
        (void)build->ops->communicator->join(build->transport, id, members->rank, members->count, stages->deadline,
                                             slc_stages_watch(stages), &stages->mine);
    }
    slc_secret_release(id, SLC_COMMUNICATOR_ID_BYTES);
    return status == SLUICE_OK ? slc_stages_connected(stages, error) : status;
}

sluice_status slc_communicator_agree(slc_stages *stages, sluice_error *error)
{
    member_list members = { 0 };
    bool any = false;
    if (stages->build->ops->communicator == NULL)
        return SLUICE_OK;
    sluice_status status = find_members(stages, &members, &any, error);
    if (status == SLUICE_OK && any)
        status = join(stages, &members, error);
    slc_release(members.rank);
    return status;
}
