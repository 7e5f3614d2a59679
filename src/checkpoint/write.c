/* write.c: the header of a safetensors file and the way of its bytes to the disk. Owns the file while it is being written. */
#include "checkpoint/write.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/flag.h"
#include "checkpoint/parse.h"

enum { STEP = 16 * 1024 * 1024, ALIGNMENT = 8 };

/* ---- the header ---- */

static int by_name(const void *left, const void *right)
{
    const slc_checkpoint_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* The widest elements first: each tensor then begins at a multiple of its own. */
static int by_width(const void *left, const void *right)
{
    const slc_checkpoint_tensor *const *a = left, *const *b = right;
    if ((*a)->dtype->bytes != (*b)->dtype->bytes)
        return (*a)->dtype->bytes < (*b)->dtype->bytes ? 1 : -1;
    return by_name(left, right);
}

static sluice_status check_bytes(const slc_checkpoint_tensor *tensor, const char *path, sluice_error *error)
{
    int64_t bytes = tensor->dtype->bytes;
    bool fits = tensor->ndim >= 0 && tensor->ndim <= SLC_MAX_DIMS;
    for (int i = 0; fits && i < tensor->ndim; i++)
        fits = slc_multiply(bytes, tensor->shape[i], &bytes);
    char shown[SLC_SHOWN];
    if (!fits || (uint64_t)bytes != tensor->bytes)
        return slc_refuse(error, "%s: tensor \"%s\" has %zu bytes, which its shape and dtype do not give", path,
                          slc_checkpoint_shown(tensor->name, shown), tensor->bytes);
    if (tensor->dtype->safetensors == NULL)
        return slc_refuse(error, "%s: tensor \"%s\": the format has no dtype %s", path, slc_checkpoint_shown(tensor->name, shown),
                          tensor->dtype->name);
    return SLUICE_OK;
}

/* The tensors in the order of the file, in *order: released by the caller. */
static sluice_status order_tensors(const char *path, const slc_checkpoint_tensor *tensors, size_t count,
                                   const slc_checkpoint_tensor ***order, sluice_error *error)
{
    char shown[SLC_SHOWN];
    *order = slc_allocate_zeroed(count == 0 ? 1 : count, sizeof **order);
    if (*order == NULL)
        return slc_fail_memory(error, STAGE, "the list of tensors", count * sizeof **order);
    for (size_t i = 0; i < count; i++) {
        sluice_status status = check_bytes(&tensors[i], path, error);
        if (status != SLUICE_OK)
            return status;
        (*order)[i] = &tensors[i];
    }
    qsort(*order, count, sizeof **order, by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp((*order)[i - 1]->name, (*order)[i]->name) == 0)
            return slc_refuse(error, "%s: tensor \"%s\" is there twice", path, slc_checkpoint_shown((*order)[i]->name, shown));
    qsort(*order, count, sizeof **order, by_width);
    return SLUICE_OK;
}

static sluice_status append_name(slc_buffer *header, const char *path, const char *name, sluice_error *error)
{
    char shown[SLC_SHOWN];
    json_t *text = json_string(name);
    if (text == NULL)
        return slc_refuse(error, "%s: tensor \"%s\": its name is no UTF-8", path, slc_checkpoint_shown(name, shown));
    char *encoded = json_dumps(text, JSON_ENCODE_ANY);
    json_decref(text);
    if (encoded == NULL)
        return slc_fail_memory(error, STAGE, "a name", strlen(name));
    slc_buffer_append(header, encoded, strlen(encoded));
    free(encoded);
    return SLUICE_OK;
}

static void append_record(slc_buffer *header, const slc_checkpoint_tensor *tensor, uint64_t at)
{
    /* F4 counts values, two a byte. */
    bool packed = strcmp(tensor->dtype->safetensors, "F4") == 0;
    slc_buffer_text(header, ":{\"dtype\":\"%s\",\"shape\":[", tensor->dtype->safetensors);
    for (int i = 0; i < tensor->ndim; i++) {
        int64_t extent = tensor->shape[i] * (packed && i == tensor->ndim - 1 ? 2 : 1);
        slc_buffer_text(header, "%s%lld", i == 0 ? "" : ",", (long long)extent);
    }
    slc_buffer_text(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + tensor->bytes));
}

/* Length and header, as the file begins with them; *total is what follows. */
static sluice_status make_header(const char *path, const slc_checkpoint_tensor *const *order, size_t count, slc_buffer *header,
                                 uint64_t *total, sluice_error *error)
{
    *total = 0;
    slc_buffer_u64(header, 0);
    slc_buffer_text(header, "{");
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            slc_buffer_text(header, ",");
        sluice_status status = append_name(header, path, order[i]->name, error);
        if (status != SLUICE_OK)
            return status;
        append_record(header, order[i], *total);
        if (__builtin_add_overflow(*total, order[i]->bytes, total))
            return slc_refuse(error, "%s: the tensors have more bytes than a file can", path);
        if (header->failed)
            break;
        if (header->length > SLC_LARGEST_HEADER)
            return slc_refuse(error, "%s: the header would be above %d bytes", path, SLC_LARGEST_HEADER);
    }
    slc_buffer_text(header, "}");
    while (header->length % ALIGNMENT != 0 && slc_buffer_text(header, " "))
        ;
    if (header->failed)
        return slc_fail_memory(error, STAGE, "the header", header->length);
    uint64_t length = header->length - 8;
    for (int i = 0; i < 8; i++)
        header->data[i] = (unsigned char)(length >> 8 * i);
    return SLUICE_OK;
}

/* ---- the file ---- */

static sluice_status write_bytes(int descriptor, const char *path, const void *bytes, size_t count,
                                 const volatile bool *cancelled, sluice_error *error)
{
    const unsigned char *at = bytes;
    while (count > 0) {
        if (slc_flag_raised(cancelled))
            return slc_fail(error, SLUICE_CANCELLED, STAGE, "cancelled while it wrote %s", path);
        ssize_t done = write(descriptor, at, count < STEP ? count : STEP);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return slc_fail_errno(error, done < 0 ? errno : EIO, STAGE, "%s cannot be written", path);
        at += done;
        count -= (size_t)done;
    }
    return SLUICE_OK;
}

/* O_NONBLOCK: a FIFO that lies there must not hold us. */
static sluice_status open_part(const char *part, int *descriptor, sluice_error *error)
{
    struct stat facts;
    *descriptor = open(part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (*descriptor < 0)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be written", part);
    if (fstat(*descriptor, &facts) != 0)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be examined", part);
    if (!S_ISREG(facts.st_mode))
        return slc_refuse(error, "%s must be a regular file", part);
    if (ftruncate(*descriptor, 0) != 0)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be written", part);
    return SLUICE_OK;
}

static sluice_status write_part(const char *part, const slc_buffer *header, const slc_checkpoint_tensor *const *order,
                                size_t count, const volatile bool *cancelled, sluice_error *error)
{
    int descriptor;
    sluice_status status = open_part(part, &descriptor, error);
    bool ours = status == SLUICE_OK;
    if (ours)
        status = write_bytes(descriptor, part, header->data, header->length, cancelled, error);
    for (size_t i = 0; i < count && status == SLUICE_OK; i++)
        status = write_bytes(descriptor, part, order[i]->data, order[i]->bytes, cancelled, error);
    if (descriptor >= 0 && close(descriptor) != 0 && status == SLUICE_OK)
        status = slc_fail_errno(error, errno, STAGE, "%s cannot be written", part);
    if (ours && status != SLUICE_OK)
        unlink(part);
    return status;
}

sluice_status slc_checkpoint_write(const char *path, const slc_checkpoint_tensor *tensors, size_t count,
                                   const volatile bool *cancelled, uint64_t *written, sluice_error *error)
{
    const slc_checkpoint_tensor **order = NULL;
    slc_buffer header = { 0 }, part = { 0 };
    uint64_t total = 0;
    sluice_status status = order_tensors(path, tensors, count, &order, error);
    if (status == SLUICE_OK)
        status = make_header(path, order, count, &header, &total, error);
    if (status == SLUICE_OK && !slc_buffer_append(&part, path, strlen(path)))
        status = slc_fail_memory(error, STAGE, "a path", strlen(path));
    if (status == SLUICE_OK && !slc_buffer_append(&part, ".part", sizeof ".part"))
        status = slc_fail_memory(error, STAGE, "a path", strlen(path) + sizeof ".part");
    if (status != SLUICE_OK)
        goto out;
    const char *part_path = (const char *)part.data;
    status = write_part(part_path, &header, order, count, cancelled, error);
    if (status == SLUICE_OK && rename(part_path, path) != 0) {
        status = slc_fail_errno(error, errno, STAGE, "%s cannot be put in place", path);
        unlink(part_path);
    }
out:
    if (written != NULL)
        *written = status == SLUICE_OK ? header.length + total : 0;
    slc_release(order);
    slc_buffer_clear(&header);
    slc_buffer_clear(&part);
    return status;
}
