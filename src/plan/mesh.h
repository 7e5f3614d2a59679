/* mesh.h: a row-major factorisation of the rank interval [first, first + size), 1 to 8 axes. The last axis runs fastest. */
#ifndef SLC_PLAN_MESH_H
#define SLC_PLAN_MESH_H

#include "sluice.h"

#define SLC_MAX_AXES 8

typedef struct slc_mesh {
    const char *name; /* how init info calls it; "" for the only one */
    int32_t first;    /* world rank of coordinate (0, ..., 0) */
    int32_t size;     /* product of the axes */
    int naxes;
    int32_t axis[SLC_MAX_AXES];          /* sizes, each at least 1 */
    const char *axis_name[SLC_MAX_AXES]; /* unique within the mesh; "" for an axis without a name */
} slc_mesh;

/* Checks sizes, names, the product and that it fits int32; fills in `size`. `where` starts the message. */
sluice_status slc_mesh_check(slc_mesh *mesh, const char *where, sluice_error *error);

int slc_mesh_axis(const slc_mesh *mesh, const char *name); /* -1 where there is none */
bool slc_mesh_holds(const slc_mesh *mesh, int32_t rank);
void slc_mesh_coordinates(const slc_mesh *mesh, int32_t rank, int32_t coordinate[SLC_MAX_AXES]); /* rank must be in the mesh */
int32_t slc_mesh_rank(const slc_mesh *mesh, const int32_t coordinate[SLC_MAX_AXES]);

#endif
