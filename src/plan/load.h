/* load.h: the loads of traffic.h as they are filled: who sits where, one piece added, the most of each taken. */
#ifndef SLC_PLAN_LOAD_H
#define SLC_PLAN_LOAD_H

#include "plan/traffic.h"

typedef struct slc_load_map {
    int32_t world, gpus, nodes;
    int32_t *gpu; /* by rank */
    int32_t *domain, *node; /* by GPU */
} slc_load_map;

/* INVALID: places below 1. NO_MEMORY. Ended by slc_load_map_clear, also after a failure. */
sluice_status slc_load_map_make(slc_load_map *map, int32_t world, const slc_places *places, sluice_error *error);
void slc_load_map_clear(slc_load_map *map);

/* All zero. NO_MEMORY. */
sluice_status slc_load_make(slc_load *load, const slc_load_map *map, sluice_error *error);

/* What goes from one rank of the world to another. */
static inline void slc_load_add(slc_load *load, const slc_load_map *map, int32_t from, int32_t to, int64_t bytes)
{
    int32_t a = map->gpu[from], b = map->gpu[to];
    load->rank[from] += bytes;
    load->rank[to] += bytes;
    if (a == b)
        return;
    if (map->domain[a] == map->domain[b]) {
        load->link_out[a] += bytes;
        load->link_in[b] += bytes;
    } else {
        load->card_out[map->node[a]] += bytes;
        load->card_in[map->node[b]] += bytes;
    }
}

/* Puts the most of a rank, of a link and of a node's cards, and half the sum of all ranks as bytes, into *kind, and zeroes the load. */
void slc_load_most(slc_load *load, slc_kind *kind);

#endif
