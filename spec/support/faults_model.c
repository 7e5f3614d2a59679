/* faults_model.c: see faults.h. Values are functions of parameter, update and position, so that any world can check its own. */
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NAME[2 * BATCHES] = { "m0.a.weight", "m0.b.bias", "m1.a.weight", "m1.b.bias", "m2.a.weight", "m2.b.bias" };

const char *model_name(int index)
{
    return NAME[index];
}

int model_index(const char *name)
{
    int index = 0;
    while (index < 2 * BATCHES && strcmp(NAME[index], name) != 0)
        index++;
    return index;
}

static float value(int index, int number, int position)
{
    return (float)(number * 100000 + index * 20000 + position);
}

sluice_status model_info(const char *address, uint16_t port, int trainers, int workers, bool swapped, char **info, sluice_error *error)
{
    char text[4096];
    int used = snprintf(text, sizeof text,
                        "{\"schema_version\":2,\"master_address\":\"%s\",\"master_port\":%u,\"rank_offset\":%d,\"world_size\":%d,"
                        "\"dst_mesh_dims\":[1,%d],\"params\":[", address, port, trainers, trainers + workers, workers);
    for (int i = 0; i < 2 * BATCHES; i++) {
        int index = swapped && i < 2 ? 1 - i : i;
        char shape[32];
        snprintf(shape, sizeof shape, index % 2 == 0 ? "[%d,%d]" : "[%d]", index % 2 == 0 ? SIDE : LONG, SIDE);
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s{\"name\":\"%s\",\"dtype_name\":\"float32\",\"shape\":%s,\"src_mesh_dims\":[1,%d],\"src_placements\":[-1,0]}",
                         i > 0 ? "," : "", NAME[index], shape, trainers);
    }
    used += snprintf(text + used, sizeof text - (size_t)used, "]}");
    return sluice_seal_init_info(text, (size_t)used, info, error);
}

static int elements(const model *own, int index)
{
    if (own->rank < own->trainers)
        return (index % 2 == 0 ? SIDE * SIDE : LONG) / own->trainers;
    return index % 2 == 0 ? SIDE * SIDE / own->workers : LONG;
}

static size_t bytes_of(const model *own, int index)
{
    return (size_t)elements(own, index) * sizeof(float);
}

static bool on_gpu(const model *own, int index)
{
    return own->memory == MEMORY_GPU && (own->rank < own->trainers || index % 2 == 0);
}

/* What is registered of a tensor: the memory itself, or its double on the GPU. */
static sluice_status place(model *own, sluice_engine *engine, int index, void **data, sluice_error *error)
{
    size_t bytes = bytes_of(own, index);
    sluice_status status = SLUICE_OK;
    *data = NULL;
    if (own->memory == MEMORY_MAPPED && own->rank < own->trainers)
        status = sluice_memory_alloc(engine, bytes, data, error);
    else
        *data = calloc(1, bytes);
    own->shard[index] = *data;
    if (status != SLUICE_OK || !on_gpu(own, index))
        return status;
    status = own->gpus->allocate(own->gpu, bytes, data, error);
    own->there[index] = *data;
    return status;
}

static sluice_status send(model *own, int index, sluice_error *error)
{
    return on_gpu(own, index) ? own->gpus->write(own->gpu, own->there[index], own->shard[index], bytes_of(own, index), error) : SLUICE_OK;
}

static sluice_status own_source(model *own, sluice_engine *engine, int index, int number, sluice_error *error)
{
    int count = elements(own, index);
    void *data;
    sluice_status status = place(own, engine, index, &data, error);
    if (status != SLUICE_OK)
        return status;
    for (int i = 0; i < count; i++)
        own->shard[index][i] = value(index, number, own->rank * count + i);
    status = send(own, index, error);
    return status == SLUICE_OK ? sluice_register_source(engine, NAME[index], "float32", data, bytes_of(own, index), error) : status;
}

static sluice_status own_live(model *own, sluice_engine *engine, bool bare, int index, sluice_error *error)
{
    void *data;
    sluice_status status = place(own, engine, index, &data, error);
    if (status == SLUICE_OK)
        status = send(own, index, error);
    if (status != SLUICE_OK || index % 2 == 1)
        return status;
    char attributes[96];
    snprintf(attributes, sizeof attributes, "{\"loader\":\"row\",\"input_dim\":1,\"tp_size\":%d}", own->workers);
    const int64_t shape[] = { SIDE, SIDE / own->workers };
    sluice_live live = { .size = sizeof live, .name = NAME[index], .dtype = "float32", .ndim = 2, .shape = shape,
                         .data = data, .attributes = bare && index == 0 ? NULL : attributes };
    return sluice_register_live(engine, &live, error);
}

static sluice_status open_gpu(model *own, sluice_error *error)
{
    const sluice_cuda_plugin *plugin;
    int count = 0;
    sluice_status status = slc_cuda_plugin_find(&plugin, error);
    if (status == SLUICE_OK)
        status = plugin->gpu->count(&count, error);
    if (status != SLUICE_OK)
        return status;
    own->gpus = plugin->gpu;
    return own->gpus->open(own->rank % count, &own->gpu, error);
}

void model_touch_gpu(int rank)
{
    model own = { .rank = rank };
    if (open_gpu(&own, NULL) == SLUICE_OK)
        own.gpus->close(own.gpu);
}

sluice_status model_own(model *own, sluice_engine *engine, bool bare, int number, sluice_error *error)
{
    sluice_status status = own->memory == MEMORY_GPU && own->gpu == NULL ? open_gpu(own, error) : SLUICE_OK;
    for (int i = 0; i < 2 * BATCHES && status == SLUICE_OK; i++)
        status = own->rank < own->trainers ? own_source(own, engine, i, number, error) : own_live(own, engine, bare, i, error);
    return status;
}

void model_free(model *own, sluice_engine *engine)
{
    for (int i = 0; i < 2 * BATCHES; i++) {
        if (own->there[i] != NULL)
            own->gpus->release(own->gpu, own->there[i]);
        if (own->shard[i] != NULL && own->memory == MEMORY_MAPPED && own->rank < own->trainers)
            sluice_memory_free(engine, own->shard[i]);
        else
            free(own->shard[i]);
        own->shard[i] = own->there[i] = NULL;
    }
    if (own->gpu != NULL)
        own->gpus->close(own->gpu);
    own->gpu = NULL;
}

void model_forget_values(model *own)
{
    sluice_error error = SLUICE_ERROR_INIT;
    for (int i = 0; i < 2 * BATCHES && own->rank >= own->trainers; i++) {
        memset(own->shard[i], 0, bytes_of(own, i));
        (void)send(own, i, &error); /* what stays there is found when the values are checked */
    }
}

sluice_status model_load(model *own, const sluice_tensor *tensor, sluice_error *error)
{
    int index = model_index(tensor->name);
    if (own->memory == MEMORY_GPU)
        return own->gpus->read(own->gpu, own->shard[index], tensor->data, tensor->bytes, error);
    memcpy(own->shard[index], tensor->data, tensor->bytes);
    return SLUICE_OK;
}

static bool fetch(model *own, char *why, size_t size)
{
    sluice_error error = SLUICE_ERROR_INIT;
    for (int i = 0; i < 2 * BATCHES; i++)
        if (on_gpu(own, i) && own->gpus->read(own->gpu, own->shard[i], own->there[i], bytes_of(own, i), &error) != SLUICE_OK) {
            snprintf(why, size, "%s", error.text);
            return false;
        }
    return true;
}

bool model_holds(model *own, int number, char *why, size_t size)
{
    if (own->rank < own->trainers)
        return true;
    if (!fetch(own, why, size))
        return false;
    int columns = SIDE / own->workers, first = (own->rank - own->trainers) * columns;
    for (int index = 0; index < 2 * BATCHES; index++)
        for (int i = 0; i < elements(own, index); i++) {
            int position = index % 2 == 0 ? i / columns * SIDE + first + i % columns : i;
            if (own->shard[index][i] == value(index, number, position))
                continue;
            snprintf(why, size, "%s[%d] is %g, it must be %g", NAME[index], i, (double)own->shard[index][i],
                     (double)value(index, number, position));
            return false;
        }
    return true;
}
