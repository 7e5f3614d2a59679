/* fuzz.c: see fuzz.h. Owns the Lua state that inputs share. */
#include "support/fuzz.h"

#include "base/error.h"
#include "plan/program.h"

#include <sanitizer/allocator_interface.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

/* ---- input ---- */

uint8_t fuzz_byte(fuzz_input *input)
{
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->data++;
}

uint32_t fuzz_below(fuzz_input *input, uint32_t bound)
{
    uint32_t value = fuzz_byte(input);
    if (bound > 256)
        value = value << 8 | fuzz_byte(input);
    return value % bound;
}

fuzz_input fuzz_part(fuzz_input *input, size_t length)
{
    fuzz_input part = { .data = input->data, .left = length < input->left ? length : input->left };
    input->data += part.left;
    input->left -= part.left;
    return part;
}

/* ---- what must hold ---- */

void fuzz_must(bool holds, const char *format, ...)
{
    if (holds)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("fuzz: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

bool fuzz_outcome(const char *what, sluice_status status, const sluice_error *error)
{
    if (status == SLUICE_OK)
        return true;
    fuzz_must(strcmp(sluice_status_text(status), "unknown status") != 0, "%s: status %d is not of the list", what, (int)status);
    fuzz_must(error->status == status, "%s: status %d, and the error says %d", what, (int)status, (int)error->status);
    fuzz_must(error->text[0] != '\0' && memchr(error->text, 0, sizeof error->text) != NULL, "%s: a failure without a text", what);
    return false;
}

bool fuzz_lua_outcome(const char *what, sluice_status status, const sluice_error *error, fuzz_input input)
{
    static const char TRACE[] = "stack traceback:\n";
    if (fuzz_outcome(what, status, error))
        return true;
    bool own = status == SLUICE_INTERNAL || strstr(error->text, TRACE) != NULL;
    fuzz_must(!own || memmem(input.data, input.left, TRACE, sizeof TRACE - 2) != NULL, "%s: a mistake of our own: %s", what,
              error->text);
    return false;
}

/* ---- Lua ---- */

enum { INPUTS_A_STATE = 512, MOST_HELD = 64 << 20, MOST_SECONDS = 10 };

static slc_script *shared;

slc_script *fuzz_script(const char *prelude)
{
    static int inputs;
    sluice_error error = SLUICE_ERROR_INIT;
    char *result = NULL;
    if (shared != NULL && (++inputs % INPUTS_A_STATE == 0 || shared->used > MOST_HELD)) {
        slc_script_destroy(shared);
        shared = NULL;
    }
    if (shared != NULL)
        return shared;
    fuzz_must(slc_script_create(NULL, &shared, &error) == SLUICE_OK, "%s", error.text);
    lua_sethook(shared->L, NULL, 0, 0); /* lines.c counts from here on */
    if (prelude != NULL)
        fuzz_must(slc_script_evaluate(shared, prelude, strlen(prelude), "=prelude", &result, &error) == SLUICE_OK, "%s",
                  error.text);
    slc_release(result);
    return shared;
}

static __attribute__((destructor)) void end_script(void)
{
    slc_script_destroy(shared);
    shared = NULL;
}

typedef struct exchange {
    fuzz_input text;
    char **result;
} exchange;

static int push_text(lua_State *L, void *context)
{
    const exchange *e = context;
    lua_pushlstring(L, (const char *)e->text.data, e->text.left);
    return 1;
}

static void take_text(lua_State *L, int count, void *context)
{
    const exchange *e = context;
    if (count > 0 && e->result != NULL && lua_type(L, 1) == LUA_TSTRING)
        *e->result = slc_duplicate(lua_tostring(L, 1));
}

sluice_status fuzz_call(slc_script *script, const char *module, const char *function, fuzz_input text, char **result,
                        sluice_error *error)
{
    exchange e = { .text = text, .result = result };
    if (result != NULL)
        *result = NULL;
    return slc_script_call(script, "fuzz", module, function, push_text, take_text, &e, error);
}

/* ---- a run ---- */

/* Bytes on the heap that are not Lua's, which frees when it likes; what it keeps there through cjson goes with `collect`. */
static size_t held(bool collect)
{
    if (collect && shared != NULL)
        lua_gc(shared->L, LUA_GCCOLLECT, 0);
    return __sanitizer_get_current_allocated_bytes() - (shared == NULL ? 0 : shared->used);
}

static void took_too_long(int number)
{
    (void)number;
    fuzz_must(false, "an input took %d s of the processor's time", MOST_SECONDS);
}

/* The processor's time, so that a busy machine finds nothing that is not there; libFuzzer's own limit is for what waits. */
static void limit_time(int seconds)
{
    const struct itimerval limit = { .it_value.tv_sec = seconds };
    signal(SIGPROF, took_too_long);
    setitimer(ITIMER_PROF, &limit, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t before = 0, after = 0;
    for (int runs = 0; runs < 4 && after >= before && (runs == 0 || after > before); runs++) {
        before = held(runs > 0);
        limit_time(MOST_SECONDS);
        fuzz_target((fuzz_input){ .data = data, .left = size });
        limit_time(0);
        after = held(runs > 0);
    }
    fuzz_must(after <= before, "each run leaves memory behind, now %zu bytes", after - before);
    return 0;
}

/* ---- plans ---- */

static void compare_twins(const slc_plan *plan, slc_plan *twin)
{
    sluice_error error = SLUICE_ERROR_INIT;
    slc_buffer bytes = { 0 }, again = { 0 };
    char digest[SLC_DIGEST_TEXT], other[SLC_DIGEST_TEXT];
    fuzz_must(slc_plan_encode_destinations(plan, &bytes, &error) == SLUICE_OK, "encode: %s", error.text);
    fuzz_must(slc_plan_decode_destinations(twin, bytes.data, bytes.length, &error) == SLUICE_OK, "decode: %s", error.text);
    fuzz_must(slc_plan_encode_destinations(twin, &again, &error) == SLUICE_OK, "encode again: %s", error.text);
    fuzz_must(bytes.length == again.length && memcmp(bytes.data, again.data, bytes.length) == 0,
              "decoded destinations encode otherwise");
    fuzz_must(slc_plan_digest_destinations(plan, digest, &error) == SLUICE_OK, "digest: %s", error.text);
    fuzz_must(slc_plan_digest_destinations(twin, other, &error) == SLUICE_OK, "digest: %s", error.text);
    fuzz_must(strcmp(digest, other) == 0, "digests differ after decoding");
    slc_buffer_clear(&bytes);
    slc_buffer_clear(&again);
}

static int64_t compiled_bytes(const slc_plan *plan, const slc_live_set *live, int32_t rank)
{
    slc_program program = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    bool good = fuzz_outcome("compile", slc_program_compile(plan, live, rank, &program, &error), &error);
    fuzz_must(good, "a checked plan does not compile: %s", error.text);
    int64_t bytes = program.bytes;
    slc_program_clear(&program);
    return bytes;
}

bool fuzz_plan(slc_plan *plan, const slc_live_set *live, bool whole_modules, slc_plan *twin)
{
    int32_t trainers = slc_plan_trainers(plan), workers = slc_plan_workers(plan);
    slc_arena arena = { 0 };
    bool good = true;
    char text[2048];
    if (twin != NULL)
        compare_twins(plan, twin);
    for (size_t i = 0; i < slc_plan_count(plan); i++) {
        slc_plan_describe(plan, i, text, sizeof text);
        fuzz_must(text[0] != '\0', "a destination without a text");
    }
    for (int32_t rank = trainers; rank < trainers + workers && good; rank++) {
        slc_coverage coverage;
        sluice_error error = SLUICE_ERROR_INIT;
        good = fuzz_outcome("coverage", slc_coverage_check(plan, live, rank, whole_modules, &arena, &coverage, &error), &error);
        if (good)
            fuzz_must(coverage.written_bytes >= 0 && coverage.padded_bytes >= 0 &&
                          coverage.written_bytes + coverage.padded_bytes <= coverage.live_bytes,
                      "more is written than there is");
    }
    int64_t sent = 0, received = 0;
    for (int32_t rank = 0; rank < trainers + workers && good; rank++)
        *(rank < trainers ? &sent : &received) += compiled_bytes(plan, rank < trainers ? NULL : live, rank);
    fuzz_must(sent == received, "%lld bytes are sent and %lld received", (long long)sent, (long long)received);
    slc_arena_clear(&arena);
    return good;
}
