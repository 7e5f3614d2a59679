/* safetensors.c: opens and maps the files of a checkpoint and joins their tensors into one list. Owns the mappings. */
#include "checkpoint/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/parse.h"

typedef struct {
    const char *path;
    void *map; /* NULL where nothing is mapped */
    size_t size;
    slc_buffer tensors; /* slc_checkpoint_tensor, until the lists are joined */
} mapped_file;

typedef struct {
    slc_checkpoint_tensor tensor;
    const mapped_file *file;
} held_tensor;

struct slc_checkpoint {
    slc_arena arena;
    mapped_file *files; /* in the arena, as everything below */
    size_t nfiles;
    held_tensor *tensors; /* by name */
    size_t count;
};

static const char index_ending[] = ".index.json";

static bool ends_with(const char *text, const char *ending)
{
    size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

/* ---- files ---- */

/* O_NONBLOCK: a FIFO must not hold us; on a regular file it changes nothing. */
static sluice_status map_file(mapped_file *file, sluice_error *error)
{
    struct stat facts;
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be opened", file->path);
    sluice_status status = SLUICE_OK;
    if (fstat(descriptor, &facts) != 0) {
        status = slc_fail_errno(error, errno, STAGE, "%s cannot be examined", file->path);
    } else if (!S_ISREG(facts.st_mode)) {
        status = slc_refuse(error, "%s must be a regular file", file->path);
    } else if (facts.st_size == 0) {
        status = slc_refuse(error, "%s is empty", file->path);
    } else {
        void *map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (map == MAP_FAILED) {
            status =
                slc_fail_errno(error, errno, STAGE, "%s (%lld bytes) cannot be mapped", file->path, (long long)facts.st_size);
        } else {
            file->map = map;
            file->size = (size_t)facts.st_size;
        }
    }
    close(descriptor);
    return status;
}

static void unmap_file(mapped_file *file)
{
    slc_buffer_clear(&file->tensors);
    if (file->map != NULL)
        munmap(file->map, file->size);
    file->map = NULL;
}

static sluice_status open_file(slc_checkpoint *checkpoint, mapped_file *file, const char *path, sluice_error *error)
{
    file->path = path;
    sluice_status status = map_file(file, error);
    if (status == SLUICE_OK)
        status = slc_checkpoint_header(path, file->map, file->size, &checkpoint->arena, &file->tensors, error);
    return status;
}

static mapped_file *take_files(slc_checkpoint *checkpoint, size_t count, sluice_error *error)
{
    checkpoint->files = slc_arena_take(&checkpoint->arena, count, sizeof *checkpoint->files);
    if (checkpoint->files == NULL) {
        slc_fail_memory(error, STAGE, "the list of files", count * sizeof *checkpoint->files);
        return NULL;
    }
    checkpoint->nfiles = count;
    return checkpoint->files;
}

/* `directory` (its first `length` bytes, ending in a slash or empty) and `name`. */
static const char *join(slc_arena *arena, const char *directory, size_t length, const char *name)
{
    size_t tail = strlen(name);
    char *path = slc_arena_take(arena, length + tail + 1, 1);
    if (path != NULL) {
        memcpy(path, directory, length);
        memcpy(path + length, name, tail);
    }
    return path;
}

/* ---- one list of tensors ---- */

static int by_name(const void *left, const void *right)
{
    const held_tensor *a = left, *b = right;
    return strcmp(a->tensor.name, b->tensor.name);
}

static sluice_status join_tensors(slc_checkpoint *checkpoint, sluice_error *error)
{
    size_t total = 0;
    char shown[SLC_SHOWN];
    for (size_t i = 0; i < checkpoint->nfiles; i++)
        total += checkpoint->files[i].tensors.length / sizeof(slc_checkpoint_tensor);
    checkpoint->tensors = slc_arena_take(&checkpoint->arena, total == 0 ? 1 : total, sizeof *checkpoint->tensors);
    if (checkpoint->tensors == NULL)
        return slc_fail_memory(error, STAGE, "the list of tensors", total * sizeof *checkpoint->tensors);
    for (size_t i = 0; i < checkpoint->nfiles; i++) {
        mapped_file *file = &checkpoint->files[i];
        const slc_checkpoint_tensor *tensors = (const void *)file->tensors.data;
        for (size_t t = 0; t < file->tensors.length / sizeof *tensors; t++)
            checkpoint->tensors[checkpoint->count++] = (held_tensor){ tensors[t], file };
        slc_buffer_clear(&file->tensors);
    }
    qsort(checkpoint->tensors, checkpoint->count, sizeof *checkpoint->tensors, by_name);
    for (size_t i = 1; i < checkpoint->count; i++) {
        const held_tensor *a = &checkpoint->tensors[i - 1], *b = &checkpoint->tensors[i];
        bool ordered = a->file < b->file;
        if (strcmp(a->tensor.name, b->tensor.name) != 0)
            continue;
        if (a->file == b->file)
            return slc_refuse(error, "%s: tensor \"%s\" stands there twice", a->file->path,
                              slc_checkpoint_shown(a->tensor.name, shown));
        return slc_refuse(error, "tensor \"%s\" lies in two files: %s and %s", slc_checkpoint_shown(a->tensor.name, shown),
                          ordered ? a->file->path : b->file->path, ordered ? b->file->path : a->file->path);
    }
    return SLUICE_OK;
}

/* ---- the sharded form ---- */

static int by_file(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The distinct file names of the entries, sorted, in *names. */
static sluice_status distinct_files(slc_arena *arena, const slc_checkpoint_entry *entries, size_t count, const char ***names,
                                    size_t *distinct, sluice_error *error)
{
    *distinct = 0;
    *names = slc_arena_take(arena, count, sizeof **names);
    if (*names == NULL)
        return slc_fail_memory(error, STAGE, "the list of files", count * sizeof **names);
    for (size_t i = 0; i < count; i++)
        (*names)[i] = entries[i].file;
    qsort(*names, count, sizeof **names, by_file);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp((*names)[i], (*names)[*distinct - 1]) != 0)
            (*names)[(*distinct)++] = (*names)[i];
    return SLUICE_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Both lists are in the order of names: one walk finds what either lacks. */
static sluice_status check_entries(const slc_checkpoint *checkpoint, const char *index, const slc_checkpoint_entry *entries,
                                   size_t count, sluice_error *error)
{
    char shown[SLC_SHOWN];
    size_t i = 0;
    for (size_t e = 0; e < count; e++, i++) {
        const held_tensor *held = i < checkpoint->count ? &checkpoint->tensors[i] : NULL;
        int order = held == NULL ? 1 : strcmp(held->tensor.name, entries[e].tensor);
        if (order < 0)
            break;
        if (order > 0)
            return slc_refuse(error, "%s: tensor \"%s\" is missing: %s does not hold it", index,
                              slc_checkpoint_shown(entries[e].tensor, shown), entries[e].file);
        if (strcmp(base_name(held->file->path), entries[e].file) != 0)
            return slc_refuse(error, "%s: tensor \"%s\" lies in %s; weight_map says %s", index,
                              slc_checkpoint_shown(held->tensor.name, shown), held->file->path, entries[e].file);
    }
    if (i < checkpoint->count)
        return slc_refuse(error, "%s: tensor \"%s\" lies in %s, but weight_map does not list it", index,
                          slc_checkpoint_shown(checkpoint->tensors[i].tensor.name, shown), checkpoint->tensors[i].file->path);
    return SLUICE_OK;
}

static sluice_status open_shards(slc_checkpoint *checkpoint, const char *index, const slc_checkpoint_entry *entries, size_t count,
                                 sluice_error *error)
{
    const char **names;
    size_t distinct, directory = (size_t)(base_name(index) - index);
    sluice_status status = distinct_files(&checkpoint->arena, entries, count, &names, &distinct, error);
    if (status == SLUICE_OK && take_files(checkpoint, distinct, error) == NULL)
        status = SLUICE_NO_MEMORY;
    for (size_t i = 0; status == SLUICE_OK && i < distinct; i++) {
        const char *path = join(&checkpoint->arena, index, directory, names[i]);
        status = path == NULL ? slc_fail_memory(error, STAGE, "a path", directory + strlen(names[i]) + 1)
                              : open_file(checkpoint, &checkpoint->files[i], path, error);
    }
    if (status == SLUICE_OK)
        status = join_tensors(checkpoint, error);
    return status == SLUICE_OK ? check_entries(checkpoint, index, entries, count, error) : status;
}

static sluice_status open_index(slc_checkpoint *checkpoint, const char *path, sluice_error *error)
{
    mapped_file index = { .path = path };
    slc_buffer list = { 0 };
    sluice_status status = map_file(&index, error);
    if (status == SLUICE_OK && index.size > SLC_LARGEST_HEADER)
        status = slc_refuse(error, "%s (%zu bytes) must be at most %d bytes", path, index.size, SLC_LARGEST_HEADER);
    if (status == SLUICE_OK)
        status = slc_checkpoint_index(path, index.map, index.size, &checkpoint->arena, &list, error);
    unmap_file(&index);
    if (status == SLUICE_OK)
        status = open_shards(checkpoint, path, (const void *)list.data, list.length / sizeof(slc_checkpoint_entry), error);
    slc_buffer_clear(&list);
    return status;
}

/* ---- the door ---- */

/* The one index of a directory; two are an error, as nothing says which is meant. */
static sluice_status find_index(slc_arena *arena, const char *directory, const char **name, sluice_error *error)
{
    *name = NULL;
    DIR *listing = opendir(directory);
    if (listing == NULL)
        return slc_fail_errno(error, errno, STAGE, "%s cannot be listed", directory);
    sluice_status status = SLUICE_OK;
    for (struct dirent *entry; status == SLUICE_OK && (entry = readdir(listing)) != NULL;) {
        char first[SLC_SHOWN], second[SLC_SHOWN];
        if (entry->d_name[0] == '.' || !ends_with(entry->d_name, ".safetensors.index.json"))
            continue;
        if (*name != NULL) {
            bool ordered = strcmp(*name, entry->d_name) < 0;
            status = slc_refuse(error, "%s holds two indexes, %s and %s: name one of them", directory,
                                slc_checkpoint_shown(ordered ? *name : entry->d_name, first),
                                slc_checkpoint_shown(ordered ? entry->d_name : *name, second));
        } else if ((*name = slc_arena_text(arena, entry->d_name, strlen(entry->d_name))) == NULL) {
            status = slc_fail_memory(error, STAGE, "a path", strlen(entry->d_name) + 1);
        }
    }
    closedir(listing);
    if (status == SLUICE_OK && *name == NULL)
        status = slc_refuse(error, "%s holds neither model.safetensors nor a *.safetensors.index.json", directory);
    return status;
}

static sluice_status open_one(slc_checkpoint *checkpoint, const char *path, sluice_error *error)
{
    if (take_files(checkpoint, 1, error) == NULL)
        return SLUICE_NO_MEMORY;
    sluice_status status = open_file(checkpoint, &checkpoint->files[0], path, error);
    return status == SLUICE_OK ? join_tensors(checkpoint, error) : status;
}

static sluice_status open_directory(slc_checkpoint *checkpoint, const char *path, sluice_error *error)
{
    struct stat facts;
    size_t length = strlen(path);
    slc_arena *arena = &checkpoint->arena;
    const char *directory = length > 0 && path[length - 1] == '/' ? path : join(arena, path, length, "/");
    const char *model = directory == NULL ? NULL : join(arena, directory, strlen(directory), "model.safetensors");
    if (model == NULL)
        return slc_fail_memory(error, STAGE, "a path", length + 20);
    if (stat(model, &facts) == 0)
        return open_one(checkpoint, model, error);
    const char *index;
    sluice_status status = find_index(arena, path, &index, error);
    if (status != SLUICE_OK)
        return status;
    const char *whole = join(arena, directory, strlen(directory), index);
    return whole == NULL ? slc_fail_memory(error, STAGE, "a path", length + strlen(index) + 2)
                         : open_index(checkpoint, whole, error);
}

sluice_status slc_checkpoint_open(const char *path, slc_checkpoint **checkpoint, sluice_error *error)
{
    struct stat facts;
    sluice_status status;
    *checkpoint = NULL;
    slc_checkpoint *opened = slc_allocate_zeroed(1, sizeof *opened);
    if (opened == NULL)
        return slc_fail_memory(error, STAGE, "a checkpoint", sizeof *opened);
    const char *copy = slc_arena_text(&opened->arena, path, strlen(path));
    if (copy == NULL)
        status = slc_fail_memory(error, STAGE, "a path", strlen(path) + 1);
    else if (stat(path, &facts) != 0)
        status = slc_fail_errno(error, errno, STAGE, "%s cannot be opened", path);
    else if (S_ISDIR(facts.st_mode))
        status = open_directory(opened, copy, error);
    else if (ends_with(path, index_ending))
        status = open_index(opened, copy, error);
    else
        status = open_one(opened, copy, error);
    if (status != SLUICE_OK)
        slc_checkpoint_close(opened);
    else
        *checkpoint = opened;
    return status;
}

void slc_checkpoint_close(slc_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (size_t i = 0; i < checkpoint->nfiles; i++)
        unmap_file(&checkpoint->files[i]);
    slc_arena_clear(&checkpoint->arena);
    slc_release(checkpoint);
}

size_t slc_checkpoint_count(const slc_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const slc_checkpoint_tensor *slc_checkpoint_at(const slc_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->count ? &checkpoint->tensors[index].tensor : NULL;
}

const slc_checkpoint_tensor *slc_checkpoint_find(const slc_checkpoint *checkpoint, const char *name)
{
    held_tensor key = { .tensor.name = name };
    const held_tensor *found = bsearch(&key, checkpoint->tensors, checkpoint->count, sizeof key, by_name);
    return found == NULL ? NULL : &found->tensor;
}
