/*
 * lifetime.c: a host that opens the library, uses two engines and closes it, over and over.
 *
 *     lifetime LIBRARY COUNT
 *
 * Prints what the process holds after the first tenth and at the end: bytes of heap, descriptors, threads, mappings. Exit 0
 * where each round went well and none of these has grown. Built with AddressSanitizer, heap and mappings are that one's own, which
 * keeps what was freed for a while: it says itself what leaked.
 */
#include "sluice.h"

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct library {
    void *handle;
    sluice_status (*create)(const sluice_options *, sluice_engine **, sluice_error *);
    sluice_status (*describe)(sluice_engine *, const char *, size_t, sluice_error *);
    sluice_status (*live)(sluice_engine *, const sluice_live *, sluice_error *);
    sluice_status (*memory)(sluice_engine *, size_t, void **, sluice_error *);
    sluice_status (*init)(sluice_engine *, const char *, size_t, sluice_error *);
    void (*destroy)(sluice_engine *);
} library;

static bool find(void *handle, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(handle, name);
    memcpy(function, &symbol, size);
    return symbol != NULL;
}

static bool open_library(const char *path, library *lib)
{
    lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib->handle == NULL) {
        fprintf(stderr, "lifetime: %s\n", dlerror());
        return false;
    }
    return find(lib->handle, "sluice_engine_create", &lib->create, sizeof lib->create) &&
           find(lib->handle, "sluice_describe_host", &lib->describe, sizeof lib->describe) &&
           find(lib->handle, "sluice_register_live", &lib->live, sizeof lib->live) &&
           find(lib->handle, "sluice_memory_alloc", &lib->memory, sizeof lib->memory) &&
           find(lib->handle, "sluice_init", &lib->init, sizeof lib->init) &&
           find(lib->handle, "sluice_engine_destroy", &lib->destroy, sizeof lib->destroy);
}

/* An engine with all that it can hold before init, and an init that is refused. */
static bool use(const library *lib, sluice_engine **engine)
{
    static float data[4];
    const int64_t shape[] = { 2, 2 };
    const sluice_live live = { .size = sizeof live, .name = "w", .dtype = "float32", .ndim = 2, .shape = shape, .data = data,
                               .attributes = "{\"loader\":\"replicated\"}" };
    sluice_options options = SLUICE_OPTIONS_INIT;
    sluice_error error = SLUICE_ERROR_INIT;
    void *memory;
    bool good = lib->create(&options, engine, &error) == SLUICE_OK && lib->describe(*engine, "{}", 2, &error) == SLUICE_OK &&
                lib->live(*engine, &live, &error) == SLUICE_OK && lib->memory(*engine, 100, &memory, &error) == SLUICE_OK;
    if (!good)
        fprintf(stderr, "lifetime: %s\n", error.text);
    return good && lib->init(*engine, "{\"schema_version\":2}", 20, &error) == SLUICE_INVALID;
}

static bool round_trip(const char *path)
{
    library lib;
    sluice_engine *one = NULL, *two = NULL;
    if (!open_library(path, &lib))
        return false;
    sluice_options options = SLUICE_OPTIONS_INIT;
    bool good = use(&lib, &one) && lib.create(&options, &two, NULL) == SLUICE_OK;
    lib.destroy(one);
    lib.destroy(two);
    return dlclose(lib.handle) == 0 && good;
}

static long count_entries(const char *folder)
{
    long count = 0;
    DIR *entries = opendir(folder);
    while (entries != NULL && readdir(entries) != NULL)
        count++;
    if (entries != NULL)
        closedir(entries);
    return count;
}

static long count_lines(const char *path)
{
    long count = 0;
    FILE *file = fopen(path, "r");
    for (int c = 0; file != NULL && c != EOF; c = fgetc(file))
        count += c == '\n';
    if (file != NULL)
        fclose(file);
    return count;
}

#if defined(__SANITIZE_ADDRESS__)
enum { DESCRIPTORS, THREADS, JUDGED, HEAP = JUDGED, MAPPINGS, KINDS };
#else
enum { DESCRIPTORS, THREADS, HEAP, MAPPINGS, KINDS, JUDGED = KINDS };
#endif

static void look(long held[KINDS])
{
    held[HEAP] = (long)mallinfo2().uordblks;
    held[DESCRIPTORS] = count_entries("/proc/self/fd");
    held[THREADS] = count_entries("/proc/self/task");
    held[MAPPINGS] = count_lines("/proc/self/maps");
}

int main(int argc, char **argv)
{
    long held[2][KINDS] = { { 0 } };
    long count = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
    if (count < 10) {
        fprintf(stderr, "usage: lifetime LIBRARY COUNT (at least 10)\n");
        return 2;
    }
    for (long i = 0; i < count; i++) {
        if (!round_trip(argv[1])) {
            fprintf(stderr, "lifetime: round %ld went wrong\n", i);
            return 1;
        }
        if (i + 1 == count / 10)
            look(held[0]);
    }
    look(held[1]);
    for (int i = 0; i < 2; i++)
        printf("%s: heap %ld, descriptors %ld, threads %ld, mappings %ld\n", i == 0 ? "early" : "late", held[i][HEAP],
               held[i][DESCRIPTORS], held[i][THREADS], held[i][MAPPINGS]);
    for (int kind = 0; kind < JUDGED; kind++)
        if (held[1][kind] > held[0][kind])
            return 1;
    return 0;
}
