/*
 * fuzz.h: what the fuzz targets in spec/fuzz/ share: bytes as small decisions, what must hold of every result, and a Lua
 * state whose lines count as coverage. A broken rule ends the process, which libFuzzer reports with the input.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include "base/memory.h"
#include "plan/coverage.h"
#include "script/call.h"
#include "script/init_info.h"

/* The input, taken from the front; past its end everything is 0. */
typedef struct fuzz_input {
    const uint8_t *data;
    size_t left;
} fuzz_input;

uint8_t fuzz_byte(fuzz_input *input);
uint32_t fuzz_below(fuzz_input *input, uint32_t bound); /* in [0, bound); at most two bytes are taken */
/* The next `length` bytes, fewer at the end. */
fuzz_input fuzz_part(fuzz_input *input, size_t length);

/* Ends the process with the sentence when `holds` is false. */
void fuzz_must(bool holds, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* What holds of every failure: a status of the list, the same in the error, and a text. Returns whether it succeeded. */
bool fuzz_outcome(const char *what, sluice_status status, const sluice_error *error);
/* The same of a call into Lua: a traceback in the text that the input did not bring is a mistake of Sluice's own Lua. */
bool fuzz_lua_outcome(const char *what, sluice_status status, const sluice_error *error, fuzz_input input);

/* A state for many inputs, made anew now and then. `prelude` is trusted Lua that is run once in each; NULL for none. */
slc_script *fuzz_script(const char *prelude);

/* Calls a function of a module with one text; *result (may be NULL) is its first result as text or NULL, see slc_release. */
sluice_status fuzz_call(slc_script *script, const char *module, const char *function, fuzz_input text, char **result,
                        sluice_error *error);

/*
 * All checks on a complete plan, as every rank would do them: coverage on each worker, a program on every rank, as many bytes
 * sent as received, destinations that are the same after encoding and decoding into `twin`, a fresh plan of the same
 * parameters (may be NULL). False where a check refuses the plan.
 */
bool fuzz_plan(slc_plan *plan, const slc_live_set *live, bool whole_modules, slc_plan *twin);

/*
 * What a target does with one input. One that takes 10 s of the processor's time ends the process, and so does one that
 * leaves memory behind each time that it is run.
 */
void fuzz_target(fuzz_input input);

#endif
