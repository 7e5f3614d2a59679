/* header.c: the header of one safetensors file. Owns the checks of dtypes, shapes and offsets; opens no file. */
#include "checkpoint/parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/members.h"

/* ---- words ---- */

const char *slc_checkpoint_shown(const char *text, char out[SLC_SHOWN])
{
    size_t length = 0;
    for (; length < SLC_SHOWN - 4 && text[length] != '\0'; length++)
        out[length] = (unsigned char)text[length] < 0x20 || text[length] == 0x7f ? '?' : text[length];
    out[length] = '\0';
    if (text[length] != '\0')
        memcpy(out + length, "...", 4);
    return out;
}

/* ---- one tensor ---- */

/* Where a record is read: for messages, and how many bytes of data the file holds. */
typedef struct {
    const char *file, *name;
    int64_t data_bytes;
} place;

static sluice_status wrong(const place *at, sluice_error *error, const char *format, ...) __attribute__((format(printf, 3, 4)));

static sluice_status wrong(const place *at, sluice_error *error, const char *format, ...)
{
    char text[512], shown[SLC_SHOWN];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return slc_refuse(error, "%s: tensor \"%s\": %s", at->file, slc_checkpoint_shown(at->name, shown), text);
}

static sluice_status read_dtype(const place *at, const json_t *record, slc_checkpoint_tensor *tensor, sluice_error *error)
{
    char shown[SLC_SHOWN];
    const char *name = json_string_value(json_object_get(record, "dtype"));
    if (name == NULL)
        return wrong(at, error, "dtype must be a string");
    tensor->dtype = slc_dtype_find_safetensors(name);
    if (tensor->dtype == NULL)
        return wrong(at, error, "dtype \"%s\" is not known", slc_checkpoint_shown(name, shown));
    return SLUICE_OK;
}

static sluice_status read_shape(const place *at, const json_t *record, slc_checkpoint_tensor *tensor, sluice_error *error)
{
    const json_t *shape = json_object_get(record, "shape");
    if (!json_is_array(shape))
        return wrong(at, error, "shape must be a list of integers");
    if (json_array_size(shape) > SLC_MAX_DIMS)
        return wrong(at, error, "shape has %zu dims; at most %d are supported", json_array_size(shape), SLC_MAX_DIMS);
    tensor->ndim = (int)json_array_size(shape);
    for (int i = 0; i < tensor->ndim; i++) {
        const json_t *extent = json_array_get(shape, (size_t)i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return wrong(at, error, "shape[%d] must be an integer of at least 0", i);
        tensor->shape[i] = json_integer_value(extent);
    }
    if (strcmp(tensor->dtype->safetensors, "F4") == 0) { /* two values a byte */
        if (tensor->ndim == 0 || tensor->shape[tensor->ndim - 1] % 2 != 0)
            return wrong(at, error, "the last extent of an F4 tensor must be even");
        tensor->shape[tensor->ndim - 1] /= 2;
    }
    return SLUICE_OK;
}

static sluice_status read_offsets(const place *at, const json_t *record, const char *data, slc_checkpoint_tensor *tensor,
                                  sluice_error *error)
{
    const json_t *offsets = json_object_get(record, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return wrong(at, error, "data_offsets must be two integers");
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || begin > end || end > at->data_bytes)
        return wrong(at, error, "data_offsets [%lld, %lld) must lie within the file's %lld bytes of data", (long long)begin,
                     (long long)end, (long long)at->data_bytes);
    int64_t bytes = tensor->dtype->bytes;
    bool empty = false;
    for (int i = 0; i < tensor->ndim; i++)
        empty = empty || tensor->shape[i] == 0;
    for (int i = 0; i < tensor->ndim && !empty; i++)
        if (!slc_multiply(bytes, tensor->shape[i], &bytes))
            return wrong(at, error, "its shape has more bytes than an address can say");
    bytes = empty ? 0 : bytes;
    if (end - begin != bytes)
        return wrong(at, error, "data_offsets [%lld, %lld) hold %lld bytes; its shape and dtype %s need %lld", (long long)begin,
                     (long long)end, (long long)(end - begin), tensor->dtype->safetensors, (long long)bytes);
    tensor->data = data + begin;
    tensor->bytes = (size_t)bytes;
    return SLUICE_OK;
}

static sluice_status read_tensor(const place *at, const json_t *record, const char *data, slc_checkpoint_tensor *tensor,
                                 sluice_error *error)
{
    if (at->name[0] == '\0')
        return slc_refuse(error, "%s: a tensor's name must not be empty", at->file);
    if (!json_is_object(record) || json_object_size(record) != 3 || json_object_get(record, "dtype") == NULL ||
        json_object_get(record, "shape") == NULL || json_object_get(record, "data_offsets") == NULL)
        return wrong(at, error, "it must be an object with exactly dtype, shape and data_offsets");
    sluice_status status = read_dtype(at, record, tensor, error);
    if (status == SLUICE_OK)
        status = read_shape(at, record, tensor, error);
    return status == SLUICE_OK ? read_offsets(at, record, data, tensor, error) : status;
}

/* ---- the whole header ---- */

static sluice_status check_metadata(const char *file, slc_span text, sluice_error *error)
{
    slc_members walk;
    slc_span value;
    json_t *key = NULL, *parsed;
    char shown[SLC_SHOWN];
    sluice_status status = slc_members_begin(&walk, file, "__metadata__", text.text, text.length, error);
    while (status == SLUICE_OK && (status = slc_members_next(&walk, &key, &value, error)) == SLUICE_OK && key != NULL) {
        if (value.text[0] != '"')
            status = slc_refuse(error, "%s: __metadata__ \"%s\" must be a string", file,
                                slc_checkpoint_shown(json_string_value(key), shown));
        else if ((status = slc_members_value(&walk, value, &parsed, error)) == SLUICE_OK)
            json_decref(parsed);
        json_decref(key);
    }
    return status;
}

/* Reads one record and appends its tensor to `list`. */
static sluice_status append_tensor(const place *at, const slc_members *walk, slc_span text, const char *data, slc_arena *arena,
                                   slc_buffer *list, sluice_error *error)
{
    json_t *record;
    slc_checkpoint_tensor tensor = { 0 };
    sluice_status status = slc_members_value(walk, text, &record, error);
    if (status != SLUICE_OK)
        return status;
    status = read_tensor(at, record, data, &tensor, error);
    json_decref(record);
    if (status != SLUICE_OK)
        return status;
    tensor.name = slc_arena_text(arena, at->name, strlen(at->name));
    if (tensor.name == NULL || !slc_buffer_append(list, &tensor, sizeof tensor))
        return slc_fail_memory(error, STAGE, "the list of tensors", list->length + sizeof tensor);
    return SLUICE_OK;
}

static sluice_status read_all(slc_members *walk, const char *data, int64_t data_bytes, slc_arena *arena, slc_buffer *list,
                              sluice_error *error)
{
    json_t *key = NULL;
    slc_span value;
    bool has_metadata = false;
    sluice_status status;
    while ((status = slc_members_next(walk, &key, &value, error)) == SLUICE_OK && key != NULL) {
        place at = { walk->file, json_string_value(key), data_bytes };
        if (strcmp(at.name, "__metadata__") != 0) {
            status = append_tensor(&at, walk, value, data, arena, list, error);
        } else if (has_metadata) {
            status = slc_refuse(error, "%s: __metadata__ stands there twice", walk->file);
        } else {
            status = check_metadata(walk->file, value, error);
            has_metadata = true;
        }
        json_decref(key);
        if (status != SLUICE_OK)
            return status;
    }
    return status;
}

static int by_data(const void *left, const void *right)
{
    const slc_checkpoint_tensor *a = left, *b = right;
    const char *from = a->data, *to = b->data;
    if (from != to)
        return from < to ? -1 : 1;
    return a->bytes != b->bytes ? (a->bytes < b->bytes ? -1 : 1) : strcmp(a->name, b->name);
}

/* The format wants every byte of data to belong to exactly one tensor. */
static sluice_status check_cover(const char *file, const char *data, int64_t data_bytes, slc_checkpoint_tensor *tensors,
                                 size_t count, sluice_error *error)
{
    int64_t end = 0;
    char before[SLC_SHOWN];
    if (count > 0)
        qsort(tensors, count, sizeof *tensors, by_data);
    for (size_t i = 0; i < count; i++) {
        int64_t begin = (const char *)tensors[i].data - data;
        place at = { file, tensors[i].name, data_bytes };
        if (begin < end)
            return wrong(&at, error, "its data begins at %lld, inside tensor \"%s\" which ends at %lld", (long long)begin,
                         slc_checkpoint_shown(tensors[i - 1].name, before), (long long)end);
        if (begin > end)
            return wrong(&at, error, "its data begins at %lld and the tensor before it ends at %lld: no gap is allowed",
                         (long long)begin, (long long)end);
        end = begin + (int64_t)tensors[i].bytes;
    }
    if (end != data_bytes)
        return slc_refuse(error, "%s: %lld bytes of data follow the last tensor; there must be none", file,
                          (long long)(data_bytes - end));
    return SLUICE_OK;
}

/* The header's length, checked against the file. */
static sluice_status read_length(const char *file, const unsigned char *map, size_t size, size_t *length, sluice_error *error)
{
    if (size < 8)
        return slc_refuse(error, "%s: %zu bytes are no safetensors file: the header's length alone has 8", file, size);
    uint64_t claimed = 0;
    for (int i = 7; i >= 0; i--)
        claimed = claimed << 8 | map[i];
    if (claimed > SLC_LARGEST_HEADER)
        return slc_refuse(error, "%s: no safetensors file: its header would have %llu bytes, and at most %d are allowed", file,
                          (unsigned long long)claimed, SLC_LARGEST_HEADER);
    if (claimed > size - 8)
        return slc_refuse(error, "%s: the file is truncated: the header claims %llu bytes and %zu follow its length", file,
                          (unsigned long long)claimed, size - 8);
    *length = (size_t)claimed;
    return SLUICE_OK;
}

sluice_status slc_checkpoint_header(const char *file, const void *map, size_t size, slc_arena *arena, slc_buffer *list,
                                    sluice_error *error)
{
    slc_members walk;
    size_t length = 0;
    sluice_status status = read_length(file, map, size, &length, error);
    if (status == SLUICE_OK)
        status = slc_members_begin(&walk, file, "the header", (const char *)map + 8, length, error);
    if (status != SLUICE_OK)
        return status;
    const char *data = (const char *)map + 8 + length;
    int64_t data_bytes = (int64_t)(size - 8 - length);
    status = read_all(&walk, data, data_bytes, arena, list, error);
    if (status == SLUICE_OK)
        status = check_cover(file, data, data_bytes, (void *)list->data, list->length / sizeof(slc_checkpoint_tensor), error);
    return status;
}
