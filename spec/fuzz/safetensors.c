/*
 * safetensors.c: checkpoints. The first byte chooses: a header alone, an index alone, one file, or a directory with an index
 * and two files. Of a file's text the next two bytes say how much of it is the header, whose length is written in front.
 */
#include "support/fuzz.h"

#include "checkpoint/parse.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEADER, INDEX, ONE_FILE, DIRECTORY, KINDS };

static char folder[256];

static void write_file(const char *name, const slc_buffer *bytes)
{
    char path[320];
    const char *where = getenv("TMPDIR"); /* scripts/fuzz gives one in memory and removes it */
    if (folder[0] == '\0') {
        snprintf(folder, sizeof folder, "%s/checkpoint-XXXXXX", where == NULL ? "/tmp" : where);
        fuzz_must(mkdtemp(folder) != NULL, "no folder can be made in %s", where == NULL ? "/tmp" : where);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    fuzz_must(fd >= 0 && (bytes->length == 0 || write(fd, bytes->data, bytes->length) == (ssize_t)bytes->length),
              "cannot write %s", path);
    close(fd);
}

/* A file as the format has it: the length of the header, the header, the data. */
static slc_buffer file_of(fuzz_input *input, size_t bytes)
{
    slc_buffer file = { 0 };
    fuzz_input part = fuzz_part(input, bytes);
    uint64_t header = fuzz_below(&part, 65536);
    slc_buffer_u64(&file, header);
    slc_buffer_append(&file, part.data, part.left);
    return file;
}

static void check_tensors(const slc_checkpoint *checkpoint)
{
    volatile unsigned char seen = 0;
    for (size_t i = 0; i < slc_checkpoint_count(checkpoint); i++) {
        const slc_checkpoint_tensor *tensor = slc_checkpoint_at(checkpoint, i);
        const unsigned char *data = tensor->data;
        int64_t bytes = tensor->dtype->bytes;
        fuzz_must(slc_checkpoint_find(checkpoint, tensor->name) == tensor, "tensor %zu is not found by its name", i);
        fuzz_must(i == 0 || strcmp(slc_checkpoint_at(checkpoint, i - 1)->name, tensor->name) < 0,
                  "tensors are not in the order of names");
        for (int d = 0; d < tensor->ndim; d++)
            fuzz_must(slc_multiply(bytes, tensor->shape[d], &bytes), "a shape is too large");
        fuzz_must(bytes == (int64_t)tensor->bytes, "a shape and its bytes differ");
        for (size_t at = 0; at < tensor->bytes; at++)
            seen = seen ^ data[at];
    }
}

static void open_checkpoint(const char *name)
{
    char path[320];
    slc_checkpoint *checkpoint;
    sluice_error error = SLUICE_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (fuzz_outcome("open", slc_checkpoint_open(path, &checkpoint, &error), &error))
        check_tensors(checkpoint);
    slc_checkpoint_close(checkpoint);
}

void fuzz_target(fuzz_input input)
{
    uint8_t kind = fuzz_byte(&input) % KINDS;
    slc_arena arena = { 0 };
    slc_buffer list = { 0 }, a = { 0 }, b = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    if (kind == HEADER) {
        a = file_of(&input, SIZE_MAX);
        fuzz_outcome("header", slc_checkpoint_header("file", a.data, a.length, &arena, &list, &error), &error);
    } else if (kind == INDEX) {
        fuzz_outcome("index", slc_checkpoint_index("file", input.data, input.left, &arena, &list, &error), &error);
    } else if (kind == ONE_FILE) {
        a = file_of(&input, SIZE_MAX);
        write_file("a.safetensors", &a);
        open_checkpoint("a.safetensors");
    } else {
        fuzz_input index = fuzz_part(&input, fuzz_below(&input, 65536));
        a = file_of(&input, fuzz_below(&input, 65536));
        b = file_of(&input, SIZE_MAX);
        slc_buffer text = { .data = (unsigned char *)index.data, .length = index.left };
        write_file("model.safetensors.index.json", &text);
        write_file("a.safetensors", &a);
        write_file("b.safetensors", &b);
        open_checkpoint("model.safetensors.index.json");
    }
    slc_arena_clear(&arena);
    slc_buffer_clear(&list);
    slc_buffer_clear(&a);
    slc_buffer_clear(&b);
}
