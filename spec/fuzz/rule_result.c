/*
 * rule_result.c: from rules to destinations, and every check on those. The input is the text of a rule file, unless it begins
 * with one of these bytes, which no rule file begins with:
 *
 *     0x01  decisions by which a rule file is written: its syntax is right, its values are not
 *     0x02  the text of a rule file, where two live tensors lie on the same memory
 *     0x03  decisions by which tables and numbers are handed straight to the functions of resolve.c, past the rule language
 */
#include "support/fuzz.h"

#include "base/error.h"
#include "script/resolve.h"

#include <stdio.h>
#include <string.h>

enum { PLAIN, WRITTEN, SHARED, HANDED_OVER };
enum { DEEPEST = 5, LONGEST_TEXT = 64 << 10 };

/* ---- the world ---- */

static const char PLAN[] =
    "{\"schema\":\"sluice/1\",\"master_address\":\"localhost\",\"master_port\":1,\"rank_offset\":2,\"world_size\":6,"
    "\"source_digest\":\"0ca9b9afd90801b3b40b59a5133aa3e5fa26c856b5d972ddf365d99f9342eef9\","
    "\"src_meshes\":[{\"name\":\"\",\"axes\":[[\"fsdp\",2]]}],"
    "\"dst_meshes\":[{\"name\":\"\",\"axes\":[[\"dp\",2],[\"tp\",2]]},{\"name\":\"experts\",\"axes\":[[\"ep\",4]]}],\"params\":["
    "{\"name\":\"m.0.q.weight\",\"dtype_name\":\"bfloat16\",\"shape\":[8,6],\"src_placements\":[{\"axis\":\"fsdp\",\"shard\":0}]}"
    ","
    "{\"name\":\"m.0.k.weight\",\"dtype_name\":\"bfloat16\",\"shape\":[4,6],\"src_placements\":[{\"axis\":\"fsdp\",\"shard\":1}]}"
    ","
    "{\"name\":\"m.0.e.3.up\",\"dtype_name\":\"float32\",\"shape\":[16,6],\"src_placements\":null},"
    "{\"name\":\"m.0.e.packed\",\"dtype_name\":\"float32\",\"shape\":[10,6,16],\"src_placements\":[{\"axis\":\"fsdp\",\"shard\":"
    "0}]},"
    "{\"name\":\"embed.weight\",\"dtype_name\":\"bfloat16\",\"shape\":[13,6],\"src_placements\":[{\"axis\":\"fsdp\",\"shard\":0}]"
    "},"
    "{\"name\":\"head.weight\",\"dtype_name\":\"bfloat16\",\"shape\":[13,6],\"src_placements\":null},"
    "{\"name\":\"norm\",\"dtype_name\":\"float32\",\"shape\":[6],\"src_placements\":null,\"allow_full_fallback\":false},"
    "{\"name\":\"patch\",\"dtype_name\":\"bfloat16\",\"shape\":[8,3,2,2,2],\"src_placements\":null},"
    "{\"name\":\"scale\",\"dtype_name\":\"float32\",\"shape\":[],\"src_placements\":null}]}";

static const char HOST[] = "{\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":2,\"num_hidden_layers\":1,\"num_"
                           "experts\":10,\"hidden_size\":6}";

static const struct {
    const char *name, *dtype;
    int ndim;
    int64_t shape[SLC_MAX_DIMS];
} LIVE[] = {
    { "m.0.qk.weight", "bfloat16", 2, { 6, 6 } },
    { "m.0.q.weight", "bfloat16", 2, { 4, 6 } },
    { "m.0.e.w13", "float32", 3, { 3, 16, 6 } },
    { "embed.weight", "bfloat16", 2, { 8, 6 } },
    { "norm", "float32", 1, { 6 } },
    { "patch", "bfloat16", 5, { 8, 3, 2, 2, 2 } },
    { "scale", "float32", 0, { 0 } },
    { "head.weight", "bfloat16", 2, { 13, 6 } },
    { "visual.w", "bfloat16", 2, { 4, 4 } },
};

static slc_plan *fresh_plan(slc_script *script)
{
    slc_init_info info;
    bool met;
    slc_plan *plan;
    sluice_error error = SLUICE_ERROR_INIT;
    fuzz_must(slc_init_info_read(script, PLAN, sizeof PLAN - 1, &info, &met, &plan, &error) == SLUICE_OK, "%s", error.text);
    return plan;
}

/* Addresses that nothing reads; with `shared`, two tensors lie on each other. */
static void fill_live(slc_live_set *set, bool shared)
{
    for (size_t i = 0; i < sizeof LIVE / sizeof LIVE[0]; i++) {
        slc_live live = { .name = LIVE[i].name,
                          .dtype = slc_dtype_find(LIVE[i].dtype),
                          .ndim = LIVE[i].ndim,
                          .attributes = "{\"loader\":\"replicated\",\"tp_size\":2}",
                          .data = (unsigned char *)(uintptr_t)(shared && i == 1 ? 1u << 20 : (i + 1) << 20) };
        int64_t stride = live.dtype->bytes;
        sluice_error error = SLUICE_ERROR_INIT;
        for (int d = live.ndim - 1; d >= 0; d--) {
            live.shape[d] = LIVE[i].shape[d];
            live.stride[d] = stride;
            stride *= live.shape[d];
        }
        fuzz_must(slc_live_set_add(set, &live, &error) == SLUICE_OK, "%s", error.text);
    }
}

/* ---- words that are written ---- */

static const char *const NUMBERS[] = {
    "0",    "1",   "2",     "3",      "4",    "6",    "8",    "13",   "16",   "-1",    "0.5", "1/0",
    "-1/0", "0/0", "1e308", "-1e308", "2^31", "2^53", "2^62", "2^63", "2^64", "-2^63", "-0",  "4294967296",
};
static const char *const NAMES[] = {
    "m.0.q.weight",
    "m.{l}.q.weight",
    "m.{l}.k.weight",
    "m.0.qk.weight",
    "m.{l}.qk.weight",
    "m.{l}.e.{e}.up",
    "m.{l}.e.packed",
    "m.{l}.e.w13",
    "embed.weight",
    "head.weight",
    "norm",
    "patch",
    "scale",
    "**",
    "**.weight",
    "**.{w=q|k}.weight",
    "visual.**",
    "*",
    "{",
    "}",
    "{l",
    "",
    "\\0",
    "%1",
    "tp",
    "dp",
    "ep",
    "e",
    "l",
    "zero",
    "balanced",
    "llama",
    "self.lua",
    "full",
    "default",
    "error",
};
static const char *const WORDS[] = {
    "span",   "index",       "shard",    "pin",      "pick", "spread", "share",
    "divide", "ceil_divide", "round_up", "required", "rule", "where",  "string.rep",
};
static const char *const CONSTANTS[] = {
    "column",  "row",     "replicate",         "true",           "false", "nil", "host.head_dim", "axes.tp",
    "axes.ep", "axes.xx", "meshes.experts.ep", "function() end", "print", "t",   "loop",
};
static const char *const KEYS[] = {
    "into",  "at",    "from",      "layout", "permute", "pad",   "full",     "skip",
    "alias", "shape", "companion", "parts",  "chunk",   "split", "nonsense",
};
static const char *const FILE_KEYS[] = {
    "name", "extends",   "strip", "rename",         "rename_live", "unsourced",
    "pins", "otherwise", "full",  "require_direct", "rules",       "nonsense",
};

#define ONE_OF(input, list) (list)[fuzz_below(input, sizeof(list) / sizeof(list)[0])]

static void write_value(slc_buffer *text, fuzz_input *input, int depth);

static void write_table(slc_buffer *text, fuzz_input *input, int depth)
{
    slc_buffer_text(text, "{");
    for (uint32_t left = fuzz_below(input, 5); left > 0 && text->length < LONGEST_TEXT; left--) {
        if (fuzz_below(input, 3) == 0)
            slc_buffer_text(text, "%s=", ONE_OF(input, KEYS));
        write_value(text, input, depth + 1);
        slc_buffer_text(text, ",");
    }
    slc_buffer_text(text, "}");
}

static void write_call(slc_buffer *text, fuzz_input *input, int depth)
{
    slc_buffer_text(text, "%s(", ONE_OF(input, WORDS));
    for (uint32_t left = fuzz_below(input, 4); left > 0; left--) {
        write_value(text, input, depth + 1);
        slc_buffer_text(text, left > 1 ? "," : "");
    }
    slc_buffer_text(text, ")");
}

static void write_value(slc_buffer *text, fuzz_input *input, int depth)
{
    switch (depth > DEEPEST || text->length > LONGEST_TEXT ? 0 : fuzz_below(input, 8)) {
    case 0:
    case 1: slc_buffer_text(text, "(%s)", ONE_OF(input, NUMBERS)); break;
    case 2:
    case 3: slc_buffer_text(text, "\"%s\"", ONE_OF(input, NAMES)); break;
    case 4: slc_buffer_text(text, "%s", ONE_OF(input, CONSTANTS)); break;
    case 5: write_table(text, input, depth); break;
    default: write_call(text, input, depth);
    }
}

/* A value of the kind that the key wants, most of the time. */
static void write_body(slc_buffer *text, fuzz_input *input)
{
    for (uint32_t left = fuzz_below(input, 5); left > 0 && text->length < LONGEST_TEXT; left--) {
        uint32_t key = fuzz_below(input, 10);
        static const char *const SLICES[] = { "span(%u,%s,%s)", "index(%u,%s)", "span(%u,%s,%s,2)",
                                              "{span(%u,%s,%s),span(1,0,2)}" };
        static const char *const LAYOUTS[] = {
            "shard(\"tp\",%u)",
            "shard(\"ep\",%u,{split=\"balanced\"})",
            "pin(\"ep\",%u)",
            "{pin(\"dp\",%u),column}",
            "{column,shard(\"dp\",%u)}",
            "shard(\"tp\",%u,{chunk=7})",
            "shard(\"tp\",%u,{parts=1})",
        };
        unsigned dim = fuzz_below(input, 6);
        if (key < 3) {
            slc_buffer_text(text, "%s=", key == 2 ? "from" : "at");
            slc_buffer_text(text, ONE_OF(input, SLICES), dim, ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS));
        } else if (key < 5) {
            slc_buffer_text(text, "layout=");
            slc_buffer_text(text, ONE_OF(input, LAYOUTS), dim);
        } else if (key < 7) {
            slc_buffer_text(text, "into=\"%s\"", ONE_OF(input, NAMES));
        } else if (key == 7) {
            slc_buffer_text(text, "pad=\"zero\",permute={%u,%u}", dim, fuzz_below(input, 3));
        } else {
            slc_buffer_text(text, "%s=", ONE_OF(input, KEYS));
            write_value(text, input, 1);
        }
        slc_buffer_text(text, ",");
    }
}

static void write_rules(slc_buffer *text, fuzz_input *input)
{
    slc_buffer_text(text, "local t, loop = {1, {2}}, {}\nloop[1], loop.into = loop, loop\nreturn {\n");
    for (uint32_t left = fuzz_below(input, 3); left > 0; left--) {
        slc_buffer_text(text, "%s=", ONE_OF(input, FILE_KEYS));
        write_value(text, input, 0);
        slc_buffer_text(text, ",\n");
    }
    static const char *const OTHERWISE[] = { "default", "full", "error" };
    slc_buffer_text(text, "otherwise=\"%s\",rules={\n", ONE_OF(input, OTHERWISE));
    for (uint32_t left = 1 + fuzz_below(input, 8); left > 0 && text->length < LONGEST_TEXT; left--) {
        slc_buffer_text(text, "rule \"%s\" {", ONE_OF(input, NAMES));
        write_body(text, input);
        slc_buffer_text(text, "},\n");
    }
    slc_buffer_text(text, "}}\n");
}

/* Calls of the functions that resolve.lua is given, with arguments that it would never give. */
static void write_hostile(slc_buffer *text, fuzz_input *input)
{
    static const char *const CALLS[] = {
        "set(%s,1,'r','w',nil,'m.0.q.weight',%s)",
        "set(%s,%s,'r','w')",
        "set(%s,3,'r','w','norm',%s)",
        "set(%s,2,'r','w',%s)",
        "param(%s,%s)",
        "live(%s,%s)",
        "attributes(%s,%s)",
        "finish({%s},{%s},true,false)",
        "finish({'norm'},{'embed.weight'},%s,%s)",
        "set(%s,1,'r','w',nil,'norm',1,'scale',%s)",
    };
    slc_buffer_text(text, "local P = ...\nfor i = 1, P.count() do P.set(i, 4, '', '') end\n");
    for (uint32_t left = 1 + fuzz_below(input, 24); left > 0 && text->length < LONGEST_TEXT; left--) {
        slc_buffer_text(text, "pcall(function() P.");
        if (fuzz_below(input, 2) == 0) {
            slc_buffer_text(text, "template('%s',{{%s,%s,%s,%s,%s}},{", fuzz_below(input, 2) == 0 ? "" : "experts",
                            ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS),
                            ONE_OF(input, NUMBERS));
            for (uint32_t part = 0; part < 2; part++) {
                for (uint32_t dims = fuzz_below(input, 10); dims > 0; dims--)
                    slc_buffer_text(text, "{%s,%s,%s,%s},", ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS),
                                    ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS));
                slc_buffer_text(text, part == 0 ? "},{" : "},{%s,%s},", ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS));
            }
            slc_buffer_text(text, "%s)", ONE_OF(input, NUMBERS));
        } else {
            slc_buffer_text(text, ONE_OF(input, CALLS), ONE_OF(input, NUMBERS), ONE_OF(input, NUMBERS));
        }
        slc_buffer_text(text, " end)\n");
    }
}

/* ---- a run ---- */

/* Rule files are this input, whatever their path; loops end after a hundredth of the steps. */
static const char PRELUDE[] = "local core = require 'sluice.core'\n"
                              "local guard, text, hostile = core.guard, '', nil\n"
                              "function core.guard(code, steps, bytes, ...) return guard(code, steps / 100, bytes, ...) end\n"
                              "function core.read_file() return text end\n"
                              "local resolve = require 'sluice.resolve'\n"
                              "local usual = resolve.resolve\n"
                              "package.loaded['fuzz.rules'] = {\n"
                              "   text = function(given) text, resolve.resolve = given, usual end,\n"
                              "   hostile = function(given) resolve.resolve = assert(loadstring(given, '=hostile')) end,\n"
                              "}\n";

static void check(slc_script *script, fuzz_input given, bool shared)
{
    slc_plan *plan = fresh_plan(script), *twin = fresh_plan(script);
    slc_live_set live = { 0 };
    slc_arena arena = { 0 };
    slc_resolution resolution;
    sluice_error error = SLUICE_ERROR_INIT;
    fill_live(&live, shared);
    fuzz_must(slc_script_describe_host(script, HOST, sizeof HOST - 1, &error) == SLUICE_OK, "%s", error.text);
    sluice_status status = slc_resolve(script, plan, &live, "fuzz.lua", &arena, &resolution, &error);
    if (fuzz_lua_outcome("resolve", status, &error, given) && fuzz_plan(plan, &live, resolution.whole_modules, twin)) {
        slc_coverage coverage;
        status = slc_coverage_check(plan, &live, slc_plan_trainers(plan), resolution.whole_modules, &arena, &coverage, &error);
        if (fuzz_outcome("coverage", status, &error))
            fuzz_outcome("resolution", slc_resolution_check(&resolution, &coverage, &live, &error), &error);
    }
    slc_arena_clear(&arena);
    slc_live_set_clear(&live);
    slc_plan_destroy(plan);
    slc_plan_destroy(twin);
}

void fuzz_target(fuzz_input input)
{
    uint8_t kind = input.left > 0 && input.data[0] >= WRITTEN && input.data[0] <= HANDED_OVER ? fuzz_byte(&input) : PLAIN;
    slc_script *script = fuzz_script(PRELUDE);
    slc_buffer text = { 0 };
    sluice_error error = SLUICE_ERROR_INIT;
    if (kind == HANDED_OVER)
        write_hostile(&text, &input);
    else if (kind == WRITTEN)
        write_rules(&text, &input);
    fuzz_input given = kind == PLAIN || kind == SHARED ? input : (fuzz_input){ .data = text.data, .left = text.length };
    sluice_status status = fuzz_call(script, "fuzz.rules", kind == HANDED_OVER ? "hostile" : "text", given, NULL, &error);
    fuzz_must(status == SLUICE_OK, "%s", error.text);
    check(script, given, kind == SHARED);
    slc_buffer_clear(&text);
}
