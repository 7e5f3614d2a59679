/* index.c: the index of a sharded checkpoint (*.safetensors.index.json). Owns the rule for file names; opens no file. */
#include "checkpoint/parse.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/members.h"

/* A plain name in the same directory: nothing that leads elsewhere, no hidden file. */
static bool is_plain(const char *name)
{
    static const char ending[] = ".safetensors";
    size_t length = strlen(name);
    return name[0] != '.' && strchr(name, '/') == NULL && length > sizeof ending - 1 &&
           strcmp(name + length - (sizeof ending - 1), ending) == 0;
}

static int by_tensor(const void *left, const void *right)
{
    const slc_checkpoint_entry *a = left, *b = right;
    return strcmp(a->tensor, b->tensor);
}

static sluice_status append_entry(const slc_members *walk, const char *tensor, slc_span value, slc_arena *arena, slc_buffer *list,
                                  sluice_error *error)
{
    char shown[SLC_SHOWN], shown_file[SLC_SHOWN];
    json_t *parsed = NULL;
    slc_checkpoint_entry entry = { 0 };
    if (tensor[0] == '\0')
        return slc_refuse(error, "%s: a tensor's name in weight_map must not be empty", walk->file);
    sluice_status status = value.text[0] == '"' ? slc_members_value(walk, value, &parsed, error) : SLUICE_OK;
    if (status != SLUICE_OK)
        return status;
    const char *name = json_string_value(parsed);
    if (name == NULL || !is_plain(name)) {
        status = slc_refuse(error, "%s: weight_map[\"%s\"] (%s) must be the plain name of a .safetensors file beside the index",
                            walk->file, slc_checkpoint_shown(tensor, shown),
                            name == NULL ? "no string" : slc_checkpoint_shown(name, shown_file));
    } else {
        entry.tensor = slc_arena_text(arena, tensor, strlen(tensor));
        entry.file = slc_arena_text(arena, name, strlen(name));
        if (entry.tensor == NULL || entry.file == NULL || !slc_buffer_append(list, &entry, sizeof entry))
            status = slc_fail_memory(error, STAGE, "the index", list->length + sizeof entry);
    }
    json_decref(parsed);
    return status;
}

static sluice_status read_map(const char *file, slc_span text, slc_arena *arena, slc_buffer *list, sluice_error *error)
{
    slc_members walk;
    slc_span value;
    json_t *key = NULL;
    char shown[SLC_SHOWN];
    sluice_status status = slc_members_begin(&walk, file, "weight_map", text.text, text.length, error);
    while (status == SLUICE_OK && (status = slc_members_next(&walk, &key, &value, error)) == SLUICE_OK && key != NULL) {
        status = append_entry(&walk, json_string_value(key), value, arena, list, error);
        json_decref(key);
    }
    if (status != SLUICE_OK)
        return status;
    slc_checkpoint_entry *entries = (void *)list->data;
    size_t count = list->length / sizeof *entries;
    if (count == 0)
        return slc_refuse(error, "%s: weight_map must name at least one tensor", file);
    qsort(entries, count, sizeof *entries, by_tensor);
    for (size_t i = 1; i < count; i++)
        if (strcmp(entries[i - 1].tensor, entries[i].tensor) == 0)
            return slc_refuse(error, "%s: weight_map lists tensor \"%s\" twice", file,
                              slc_checkpoint_shown(entries[i].tensor, shown));
    return SLUICE_OK;
}

/* What else an index says (a total size) is read to be JSON and not used. */
static sluice_status read_member(const slc_members *walk, const char *key, slc_span value, slc_span *map, bool *has_metadata,
                                 sluice_error *error)
{
    char shown[SLC_SHOWN];
    bool is_map = strcmp(key, "weight_map") == 0;
    if (!is_map && strcmp(key, "metadata") != 0)
        return slc_refuse(error, "%s: the index has the unknown key \"%s\"; known are metadata and weight_map", walk->file,
                          slc_checkpoint_shown(key, shown));
    if (is_map ? map->text != NULL : *has_metadata)
        return slc_refuse(error, "%s: the index has %s twice", walk->file, key);
    if (is_map) {
        *map = value;
        return SLUICE_OK;
    }
    json_t *parsed;
    sluice_status status = slc_members_value(walk, value, &parsed, error);
    *has_metadata = true;
    json_decref(parsed);
    return status;
}

sluice_status slc_checkpoint_index(const char *file, const void *text, size_t length, slc_arena *arena, slc_buffer *list,
                                   sluice_error *error)
{
    slc_members walk;
    slc_span value, map = { 0 };
    json_t *key = NULL;
    bool has_metadata = false;
    sluice_status status = slc_members_begin(&walk, file, "the index", text, length, error);
    while (status == SLUICE_OK && (status = slc_members_next(&walk, &key, &value, error)) == SLUICE_OK && key != NULL) {
        status = read_member(&walk, json_string_value(key), value, &map, &has_metadata, error);
        json_decref(key);
    }
    if (status == SLUICE_OK && map.text == NULL)
        status = slc_refuse(error, "%s: weight_map is missing", file);
    return status == SLUICE_OK ? read_map(file, map, arena, list, error) : status;
}
