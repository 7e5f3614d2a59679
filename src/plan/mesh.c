/* mesh.c: ranks and their coordinates. Owns nothing. */
#include "plan/mesh.h"

#include <string.h>

#include "base/error.h"

static sluice_status check_axis(const slc_mesh *mesh, int index, const char *where, sluice_error *error)
{
    if (mesh->axis[index] < 1)
        return slc_fail(error, SLUICE_INVALID, "init", "%s.axes[%d] (%d) must be at least 1", where, index,
                        (int)mesh->axis[index]);
    const char *name = mesh->axis_name[index] == NULL ? "" : mesh->axis_name[index];
    for (int i = 0; i < index && name[0] != '\0'; i++)
        if (mesh->axis_name[i] != NULL && strcmp(mesh->axis_name[i], name) == 0)
            return slc_fail(error, SLUICE_INVALID, "init", "%s.axes[%d] ('%s') has the name of axes[%d]; names of a mesh differ",
                            where, index, name, i);
    return SLUICE_OK;
}

sluice_status slc_mesh_check(slc_mesh *mesh, const char *where, sluice_error *error)
{
    if (mesh->naxes < 1 || mesh->naxes > SLC_MAX_AXES)
        return slc_fail(error, SLUICE_INVALID, "init", "%s has %d axes; a mesh has 1 to %d", where, mesh->naxes, SLC_MAX_AXES);
    if (mesh->first < 0)
        return slc_fail(error, SLUICE_INVALID, "init", "%s begins at rank %d; ranks begin at 0", where, (int)mesh->first);
    int64_t size = 1;
    for (int i = 0; i < mesh->naxes; i++) {
        sluice_status status = check_axis(mesh, i, where, error);
        if (status != SLUICE_OK)
            return status;
        size *= mesh->axis[i];
        if (size + mesh->first > INT32_MAX)
            return slc_fail(error, SLUICE_INVALID, "init", "%s has more ranks than the %d that a world can have", where,
                            INT32_MAX);
    }
    mesh->size = (int32_t)size;
    return SLUICE_OK;
}

int slc_mesh_axis(const slc_mesh *mesh, const char *name)
{
    if (name == NULL || name[0] == '\0')
        return -1;
    for (int i = 0; i < mesh->naxes; i++)
        if (mesh->axis_name[i] != NULL && strcmp(mesh->axis_name[i], name) == 0)
            return i;
    return -1;
}

bool slc_mesh_holds(const slc_mesh *mesh, int32_t rank)
{
    return rank >= mesh->first && rank - mesh->first < mesh->size;
}

void slc_mesh_coordinates(const slc_mesh *mesh, int32_t rank, int32_t coordinate[SLC_MAX_AXES])
{
    int32_t rest = rank - mesh->first;
    for (int i = mesh->naxes - 1; i >= 0; i--) {
        coordinate[i] = rest % mesh->axis[i];
        rest /= mesh->axis[i];
    }
}

int32_t slc_mesh_rank(const slc_mesh *mesh, const int32_t coordinate[SLC_MAX_AXES])
{
    int32_t rank = 0;
    for (int i = 0; i < mesh->naxes; i++)
        rank = rank * mesh->axis[i] + coordinate[i];
    return mesh->first + rank;
}
