/*
 * engine_driver.c: two engines in one process, a trainer and a worker on a thread each, through a whole life. Built for
 * specs that need C: the allocator failing at every n-th request, and many lives in a row.
 *
 *     engine_driver sweep STEP [FIRST]  request FIRST (1), FIRST + STEP, ... fails, one a life, until a life ends before it
 *     engine_driver cycles N N lives; prints descriptors and resident pages after the first tenth and at the end
 *
 * Exit 0: each life ended in success or in an error with a text, and nothing else.
 */
#include "base/memory.h"
#include "sluice.h"

#include <dirent.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char PARAMS[] =
    "{\"schema_version\":2,\"master_address\":\"127.0.0.1\",\"master_port\":%d,\"rank_offset\":1,\"world_size\":2,"
    "\"dst_mesh_dims\":[1,1],\"params\":["
    "{\"name\":\"a.weight\",\"dtype_name\":\"float32\",\"shape\":[4,6],\"src_mesh_dims\":[1,1],\"src_placements\":null},"
    "{\"name\":\"b.bias\",\"dtype_name\":\"float32\",\"shape\":[3],\"src_mesh_dims\":[1,1],\"src_placements\":null}]}";

typedef struct life {
    int rank, listen_fd;
    double timeout_s;
    const char *init_info;
    float a[24], b[3]; /* trainer: sources; worker: live a and what load_weights brought */
    sluice_status status;
    sluice_error error;
} life;

static sluice_status load(void *user, sluice_weights *weights, sluice_error *error)
{
    life *self = user;
    const sluice_tensor *tensor;
    sluice_status status;
    while ((status = sluice_weights_next(weights, &tensor, error)) == SLUICE_OK && tensor != NULL)
        memcpy(self->b, tensor->data, tensor->bytes);
    return status;
}

static sluice_status own(sluice_engine *engine, life *self)
{
    sluice_error *error = &self->error;
    if (self->rank == 0) {
        sluice_status status = sluice_register_source(engine, "a.weight", "float32", self->a, sizeof self->a, error);
        return status != SLUICE_OK ? status : sluice_register_source(engine, "b.bias", "float32", self->b, sizeof self->b, error);
    }
    const int64_t shape[] = { 4, 6 };
    sluice_live live = { .size = sizeof live, .name = "a.weight", .dtype = "float32", .ndim = 2, .shape = shape, .data = self->a,
                         .attributes = "{\"loader\":\"replicated\",\"tp_size\":1}" };
    sluice_status status = sluice_describe_host(engine, "{\"tensor_parallel_size\":1}", 26, error);
    return status != SLUICE_OK ? status : sluice_register_live(engine, &live, error);
}

static sluice_status live_once(life *self)
{
    static const char *const names[] = { "a.weight", "b.bias" };
    sluice_options options = SLUICE_OPTIONS_INIT;
    sluice_error *error = &self->error;
    options.rank = self->rank;
    options.listen_fd = self->listen_fd;
    options.timeout_s = self->timeout_s;
    options.callbacks.user = self;
    options.callbacks.load_weights = load;
    sluice_engine *engine;
    sluice_status status = sluice_engine_create(&options, &engine, error);
    if (status != SLUICE_OK) {
        if (self->listen_fd >= 0)
            close(self->listen_fd);
        return status;
    }
    status = own(engine, self);
    if (status == SLUICE_OK)
        status = sluice_init(engine, self->init_info, strlen(self->init_info), error);
    if (status == SLUICE_OK)
        status = sluice_start_update(engine, false, error);
    if (status == SLUICE_OK)
        status = sluice_update(engine, names, 2, error);
    if (status == SLUICE_OK)
        status = sluice_finish_update(engine, "v1", error);
    if (status == SLUICE_OK && strcmp(sluice_version(engine), "v1") != 0)
        status = SLUICE_INTERNAL;
    sluice_engine_destroy(engine);
    return status;
}

static void *run(void *argument)
{
    life *self = argument;
    self->status = live_once(self);
    return NULL;
}

static int listener(int *port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 8) != 0
        || getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        return -1;
    *port = ntohs(address.sin_port);
    return fd;
}

/* One life of both; a complaint in *why where it ended as none may. */
static bool both(uint64_t failing, double timeout_s, uint64_t *requests, bool *succeeded, char *why, size_t size)
{
    int port = 0, fd = listener(&port);
    char text[sizeof PARAMS + 16];
    snprintf(text, sizeof text, PARAMS, port);
    sluice_error error = SLUICE_ERROR_INIT;
    char *sealed = NULL;
    if (fd < 0 || sluice_seal_init_info(text, strlen(text), &sealed, &error) != SLUICE_OK)
        return snprintf(why, size, "set-up failed: %s", error.text), false;
    life trainer = { .rank = 0, .listen_fd = fd, .timeout_s = timeout_s, .init_info = sealed, .error = SLUICE_ERROR_INIT };
    life worker = { .rank = 1, .listen_fd = -1, .timeout_s = timeout_s, .init_info = sealed, .error = SLUICE_ERROR_INIT };
    for (int i = 0; i < 24; i++)
        trainer.a[i] = (float)(i + 1);
    for (int i = 0; i < 3; i++)
        trainer.b[i] = (float)(100 + i);
    pthread_t thread;
    slc_fail_allocation(failing, false);
    if (pthread_create(&thread, NULL, run, &worker) != 0)
        return snprintf(why, size, "no thread"), false;
    run(&trainer);
    pthread_join(thread, NULL);
    *requests = slc_fail_allocation(0, false);
    sluice_free(sealed);
    *succeeded = trainer.status == SLUICE_OK && worker.status == SLUICE_OK;
    if (*succeeded && (memcmp(trainer.a, worker.a, sizeof worker.a) != 0 || memcmp(trainer.b, worker.b, sizeof worker.b) != 0))
        return snprintf(why, size, "both succeeded and the values differ"), false;
    const life *ends[] = { &trainer, &worker };
    for (int i = 0; i < 2; i++)
        if (ends[i]->status != SLUICE_OK && (ends[i]->error.text[0] == '\0' || ends[i]->error.status != ends[i]->status))
            return snprintf(why, size, "rank %d failed (%s) without a text of its own", i, sluice_status_text(ends[i]->status)), false;
    return true;
}

static int sweep(uint64_t step, uint64_t first)
{
    char why[SLUICE_ERROR_TEXT + 64];
    uint64_t failed = 0, passed = 0;
    for (uint64_t nth = first;; nth += step) {
        uint64_t requests;
        bool succeeded;
        if (!both(nth, 0.5, &requests, &succeeded, why, sizeof why)) {
            fprintf(stderr, "request %" PRIu64 ": %s\n", nth, why);
            return 1;
        }
        failed += !succeeded;
        passed += succeeded;
        if (requests < nth) {
            printf("%" PRIu64 " requests in a life, every %" PRIu64 ". failed in turn: %" PRIu64 " lives ended in an error, %" PRIu64
                   " did without\n", requests, step, failed, passed);
            return succeeded ? 0 : 1;
        }
    }
}

static long descriptors(void)
{
    long count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static long resident_pages(void)
{
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &size, &resident) != 2)
        resident = -1;
    if (file != NULL)
        fclose(file);
    return resident;
}

static int cycles(long count)
{
    char why[SLUICE_ERROR_TEXT + 64];
    for (long i = 0; i < count; i++) {
        uint64_t requests;
        bool succeeded;
        if (!both(0, 10, &requests, &succeeded, why, sizeof why) || !succeeded) {
            fprintf(stderr, "life %ld did not succeed: %s\n", i, why);
            return 1;
        }
        if (i + 1 == (count + 9) / 10 || i + 1 == count)
            printf("%ld lives: %ld descriptors, %ld pages\n", i + 1, descriptors(), resident_pages());
    }
    return 0;
}

int main(int argc, char **argv)
{
    if ((argc == 3 || argc == 4) && strcmp(argv[1], "sweep") == 0 && atol(argv[2]) > 0)
        return sweep((uint64_t)atol(argv[2]), argc == 4 ? (uint64_t)atol(argv[3]) : 1);
    if (argc == 3 && strcmp(argv[1], "cycles") == 0)
        return cycles(strtol(argv[2], NULL, 10));
    fprintf(stderr, "usage: engine_driver sweep STEP [FIRST] | cycles N\n");
    return 2;
}
