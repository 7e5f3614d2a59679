/* registry.c: the transports by name. */
#include "transport/transport.h"

#include "base/error.h"
#include "transport/host/host.h"
#include "transport/nccl/plugin.h"

#include <string.h>

bool slc_transport_known(const char *name, const char **known)
{
    *known = "host, nccl, m2n";
    return strcmp(name, "host") == 0 || slc_transport_on_gpus(name);
}

bool slc_transport_on_gpus(const char *name)
{
    return name != NULL && (strcmp(name, "nccl") == 0 || strcmp(name, "m2n") == 0);
}

sluice_status slc_transport_find(const char *name, const slc_transport_ops **ops, sluice_error *error)
{
    const char *known;
    *ops = strcmp(name, "host") == 0 ? &slc_host_transport : NULL;
    if (*ops != NULL)
        return SLUICE_OK;
    if (!slc_transport_known(name, &known))
        return slc_fail(error, SLUICE_UNSUPPORTED, "runtime", "transport (%s) must be one of: %s", name, known);
    const sluice_cuda_plugin *plugin;
    sluice_status status = slc_cuda_plugin_find(&plugin, error);
    if (status == SLUICE_OK)
        *ops = strcmp(name, "m2n") == 0 ? plugin->m2n : plugin->nccl;
    return status;
}
