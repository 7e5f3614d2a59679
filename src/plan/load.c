/* load.c: tables of what ranks, GPUs and nodes send and receive. */
#include "plan/load.h"

#include "base/error.h"
#include "base/memory.h"

sluice_status slc_load_map_make(slc_load_map *map, int32_t world, const slc_places *places, sluice_error *error)
{
    *map = (slc_load_map){ 0 };
    if (places->ranks_a_gpu < 1 || places->gpus_a_domain < 1 || places->gpus_a_node < 1)
        return slc_fail(error, SLUICE_INVALID, "traffic",
                        "ranks a GPU (%d), GPUs a domain (%d) and GPUs a node (%d) must be at least 1", (int)places->ranks_a_gpu,
                        (int)places->gpus_a_domain, (int)places->gpus_a_node);
    map->world = world;
    map->gpus = (world - 1) / places->ranks_a_gpu + 1;
    map->nodes = (map->gpus - 1) / places->gpus_a_node + 1;
    map->gpu = slc_allocate_zeroed((size_t)world + 2 * (size_t)map->gpus, sizeof *map->gpu);
    if (map->gpu == NULL)
        return slc_fail_memory(error, "traffic", "the places of ranks", (size_t)world * sizeof *map->gpu);
    map->domain = map->gpu + world;
    map->node = map->domain + map->gpus;
    for (int32_t rank = 0; rank < world; rank++)
        map->gpu[rank] = rank / places->ranks_a_gpu;
    for (int32_t gpu = 0; gpu < map->gpus; gpu++) {
        map->domain[gpu] = gpu / places->gpus_a_domain;
        map->node[gpu] = gpu / places->gpus_a_node;
    }
    return SLUICE_OK;
}

void slc_load_map_clear(slc_load_map *map)
{
    slc_release(map->gpu);
    *map = (slc_load_map){ 0 };
}

sluice_status slc_load_make(slc_load *load, const slc_load_map *map, sluice_error *error)
{
    size_t world = (size_t)map->world, gpus = (size_t)map->gpus, nodes = (size_t)map->nodes,
           count = 5 * world + 2 * gpus + 2 * nodes;
    *load = (slc_load){ .world = map->world, .gpus = map->gpus, .nodes = map->nodes };
    load->memory = slc_allocate_zeroed(count, sizeof *load->memory);
    if (load->memory == NULL)
        return slc_fail_memory(error, "traffic", "the loads of ranks", count * sizeof *load->memory);
    load->rank = load->memory;
    load->link_out = load->rank + world;
    load->link_in = load->link_out + gpus;
    load->card_out = load->link_in + gpus;
    load->card_in = load->card_out + nodes;
    load->copies = load->card_in + nodes;
    load->peers = load->copies + world;
    load->card_peers = load->peers + world;
    load->card = load->card_peers + world;
    return SLUICE_OK;
}

void slc_load_clear(slc_load *load)
{
    slc_release(load->memory);
    *load = (slc_load){ 0 };
}

static int64_t take_most(int64_t *value, int32_t count, int64_t *sum)
{
    int64_t most = 0;
    for (int32_t i = 0; i < count; i++) {
        most = value[i] > most ? value[i] : most;
        *sum += value[i];
        value[i] = 0;
    }
    return most;
}

void slc_load_most(slc_load *load, slc_kind *kind)
{
    int64_t twice = 0, other = 0;
    kind->rank = take_most(load->rank, load->world, &twice);
    kind->link = take_most(load->link_out, 2 * load->gpus, &other); /* link_in lies behind it */
    kind->card = take_most(load->card_out, 2 * load->nodes, &other);
    kind->bytes = twice / 2;
}
