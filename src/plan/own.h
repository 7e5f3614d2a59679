/* own.h: what a plan is made of; for plan.c and plan_wire.c only. */
#ifndef SLC_PLAN_OWN_H
#define SLC_PLAN_OWN_H

#include "base/names.h"
#include "plan/plan.h"

typedef struct slc_layout_table {
    const slc_layout **layout; /* in the order of interning */
    uint32_t *slot;            /* number + 1, open addressing */
    size_t count, capacity, slots;
} slc_layout_table;

typedef struct slc_mesh_list {
    const slc_mesh **item;
    size_t count, capacity;
} slc_mesh_list;

struct slc_plan {
    int32_t trainers, workers;
    int64_t quantum;
    slc_mesh_list mesh[2]; /* of trainers, of workers */
    slc_layout_table layouts;
    slc_param *param;
    size_t count, capacity;
    int64_t bytes; /* of all parameters */
    slc_names names; /* number = index in param */
    slc_names texts; /* live names, reasons, places: each once */
    slc_arena arena;
};

/* blocks.c: that each target in blocks is followed by its scales, that no others are there, and slc_blocks_check of them. */
sluice_status slc_blocks_check_pairs(const slc_param *param, const slc_target *target, size_t count, const char *place,
                                     sluice_error *error);

/* The index of a mesh of the workers' side; SIZE_MAX where there is none. */
size_t slc_plan_mesh_index(const slc_plan *plan, const slc_mesh *mesh, bool workers);

#endif
