/* checkpoint.c: see checkpoint.h. */
#include "checkpoint.h"

#include "say.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void map_file(const char *path, checkpoint *file)
{
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) != 0 || facts.st_size < 8)
        die("%s: %s", path, strerror(errno));
    file->size = (size_t)facts.st_size;
    file->map = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file->map == MAP_FAILED)
        die("%s: %s", path, strerror(errno));
    close(fd);
}

static void read_shape(const char *path, const json_t *shape, size_t element, tensor *read)
{
    size_t bytes = element;
    if (json_array_size(shape) > MOST_DIMS)
        die("%s: %s has %zu dims; at most %d are read", path, read->name, json_array_size(shape), MOST_DIMS);
    read->ndim = (uint32_t)json_array_size(shape);
    for (uint32_t dim = 0; dim < read->ndim; dim++) {
        read->shape[dim] = json_integer_value(json_array_get(shape, dim));
        if (read->shape[dim] < 1 || __builtin_mul_overflow(bytes, (size_t)read->shape[dim], &bytes))
            die("%s: %s has a shape that no tensor has", path, read->name);
    }
    if (bytes != read->bytes)
        die("%s: %s has %zu bytes; its shape wants %zu", path, read->name, read->bytes, bytes);
}

static void read_tensor(const char *path, const char *name, const json_t *entry, size_t start, const checkpoint *file, tensor *read)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    json_int_t from = json_integer_value(json_array_get(offsets, 0)), to = json_integer_value(json_array_get(offsets, 1));
    bool is_float = dtype != NULL && strcmp(dtype, "F32") == 0, is_index = dtype != NULL && strcmp(dtype, "I64") == 0;
    if (strlen(name) >= sizeof read->name || (!is_float && !is_index))
        die("%s: %.100s must be F32 or I64 with a shorter name", path, name);
    if (from < 0 || to < from || (size_t)to > file->size - start)
        die("%s: %s lies outside of the file", path, name);
    memcpy(read->name, name, strlen(name) + 1);
    read->dtype = is_float ? "float32" : "int64";
    read->data = file->map + start + from;
    read->bytes = (size_t)(to - from);
    read_shape(path, json_object_get(entry, "shape"), is_float ? 4 : 8, read);
}

static int by_place(const void *a, const void *b)
{
    const tensor *one = a, *two = b;
    return one->data < two->data ? -1 : one->data > two->data;
}

checkpoint checkpoint_open(const char *path)
{
    checkpoint file = { 0 };
    uint64_t header;
    json_error_t problem;
    map_file(path, &file);
    memcpy(&header, file.map, sizeof header);
    if (header > file.size - 8 || header > 100u << 20)
        die("%s: its header (%llu bytes) does not fit the file", path, (unsigned long long)header);
    json_t *root = json_loadb((const char *)file.map + 8, (size_t)header, JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(root))
        die("%s: its header is no JSON object: %s", path, problem.text);
    file.tensor = must_allocate(json_object_size(root) + 1, sizeof *file.tensor);
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry) {
        if (strcmp(name, "__metadata__") != 0)
            read_tensor(path, name, entry, 8 + (size_t)header, &file, &file.tensor[file.count++]);
    }
    json_decref(root);
    qsort(file.tensor, file.count, sizeof *file.tensor, by_place);
    return file;
}

const tensor *checkpoint_find(const checkpoint *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensor[i].name, name) == 0)
            return &file->tensor[i];
    return NULL;
}

void checkpoint_close(checkpoint *file)
{
    munmap(file->map, file->size);
    free(file->tensor);
    *file = (checkpoint){ 0 };
}
