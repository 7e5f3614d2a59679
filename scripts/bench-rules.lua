--- Planning with very many parameters and with very many rules: prints JSON, seconds of a processor by
-- step.
--
--    luajit scripts/bench-rules.lua [--rules N]
--
-- The list is DeepSeek-V3's with one tensor an expert and a scale beside every fp8 weight, 91,000 in all, from 256 trainers
-- (PP 16, EP 16) to 256 workers (TP 8, DP 32 and EP 256); the rule file is made here, so that it can have any number of rules.

package.path = "./?.lua;" .. package.path

local cjson = require "cjson"
local measure = require "scripts.measure"
local script = require "spec.support.script"

local LAYERS, DENSE, EXPERTS, HIDDEN, IM, FFN, PP, EP = 61, 3, 256, 7168, 2048, 18432, 16, 16
local TP = 8

local count = 10
if arg[1] == "--rules" then
   count = assert(tonumber(arg[2]), "--rules needs a number")
end

local params, live = {}, {}

local function blocks(extent)
   return math.ceil(extent / 128)
end

local function quantized(name, rows, columns, placements)
   params[#params + 1] = { name = name .. ".weight", dtype_name = "float8_e4m3fn", shape = { rows, columns }, src_mesh = "m",
                           src_placements = placements }
   params[#params + 1] = { name = name .. ".weight_scale_inv", dtype_name = "float32", shape = { blocks(rows), blocks(columns) },
                           src_mesh = "m", src_placements = placements }
end

local function plain(name, shape, placements)
   params[#params + 1] = { name = name, dtype_name = "bfloat16", shape = shape, src_mesh = "m", src_placements = placements }
end

local function held(name, dtype, shape)
   live[#live + 1] = { name = name, dtype = dtype, shape = shape }
end

local function held_quantized(name, shape)
   held(name .. "weight", "float8_e4m3fn", shape)
   local scales = { unpack(shape) }
   scales[#shape - 1], scales[#shape] = blocks(shape[#shape - 1]), blocks(shape[#shape])
   held(name .. "weight_scale_inv", "float32", scales)
end

local function mlp(name, ffn, pinned)
   for _, part in ipairs({ "gate_proj", "up_proj" }) do
      quantized(name .. part, ffn, HIDDEN, pinned)
   end
   quantized(name .. "down_proj", HIDDEN, ffn, pinned)
   held_quantized(name .. "gate_up_proj.", { 2 * ffn / TP, HIDDEN })
   held_quantized(name .. "down_proj.", { HIDDEN, ffn / TP })
end

local function attention(name, pinned)
   quantized(name .. "q_a_proj", 1536, HIDDEN, pinned)
   quantized(name .. "kv_a_proj_with_mqa", 576, HIDDEN, pinned)
   held_quantized(name .. "fused_qkv_a_proj.", { 2112, HIDDEN })
   quantized(name .. "q_b_proj", 24576, 1536, pinned)
   held_quantized(name .. "q_b_proj.", { 24576 / TP, 1536 })
   quantized(name .. "kv_b_proj", 32768, 512, pinned)
   held_quantized(name .. "kv_b_proj.", { 32768 / TP, 512 })
   quantized(name .. "o_proj", HIDDEN, 16384, pinned)
   held_quantized(name .. "o_proj.", { HIDDEN, 16384 / TP })
   for norm, size in pairs({ q_a_layernorm = 1536, kv_a_layernorm = 512 }) do
      plain(name .. norm .. ".weight", { size }, pinned)
      held(name .. norm .. ".weight", "bfloat16", { size })
   end
end

local function experts(name, stage, pinned)
   plain(name .. "gate.weight", { EXPERTS, HIDDEN }, pinned)
   held(name .. "gate.weight", "bfloat16", { EXPERTS, HIDDEN })
   for e = 0, EXPERTS - 1 do
      local owned = { { axis = "pp", pin = stage }, { axis = "ep", pin = math.floor(e / (EXPERTS / EP)) } }
      for _, part in ipairs({ "gate_proj", "up_proj", "down_proj" }) do
         local is_down = part == "down_proj"
         quantized(("%sexperts.%d.%s"):format(name, e, part), is_down and HIDDEN or IM, is_down and IM or HIDDEN, owned)
      end
   end
   held_quantized(name .. "experts.w13_", { 1, 2 * IM, HIDDEN })
   held_quantized(name .. "experts.w2_", { 1, HIDDEN, IM })
   mlp(name .. "shared_experts.", IM, pinned)
end

for l = 0, LAYERS - 1 do
   local name, stage = ("model.layers.%d."):format(l), math.floor(l * PP / LAYERS)
   local pinned = { { axis = "pp", pin = stage } }
   attention(name .. "self_attn.", pinned)
   if l < DENSE then
      mlp(name .. "mlp.", FFN, pinned)
   else
      experts(name .. "mlp.", stage, pinned)
   end
end

local init_info = cjson.encode({
   schema = "sluice/1", master_address = "localhost", master_port = 1, rank_offset = PP * EP, world_size = PP * EP + 256,
   source_digest = ("0"):rep(64), params = params,
   src_meshes = { { name = "m", axes = { { "pp", PP }, { "ep", EP } } } },
   dst_meshes = { { name = "dense", axes = { { "dp", 256 / TP }, { "tp", TP } } }, { name = "expert", axes = { { "ep", 256 } } } },
})

local RULES = [[
local map = spread(256, axes.ep)
local owner, slab = pin("ep", pick("e", map.owner)), index(0, pick("e", map.position))
local BLOCK = { weight = 1, weight_scale_inv = 128 }
local rules = { %s }
local function add(...)
   for _, made in ipairs({ ... }) do
      rules[#rules + 1] = made
   end
end
for _, kind in ipairs({ "weight", "weight_scale_inv" }) do
   local b = BLOCK[kind]
   local M, companion = "model.layers.{l}.mlp.{x=experts.{e}|e}", nil
   local E, S = "model.layers.{l}.mlp.experts.", "model.layers.{l}.mlp.{s=shared_experts.gate_proj|gate_proj}."
   add(
      rule(E .. "{e}.gate_proj." .. kind) { into = E .. "w13_" .. kind, at = { slab, span(1, 0, 2048 / b) }, layout = owner,
         companion = b == 1 and E .. "{e}.gate_proj.weight_scale_inv" or nil },
      rule(E .. "{e}.up_proj." .. kind) { into = E .. "w13_" .. kind, at = { slab, span(1, 2048 / b, 2048 / b) }, layout = owner },
      rule(E .. "{e}.down_proj." .. kind) { into = E .. "w2_" .. kind, at = slab, layout = owner })
   for _, mlp in ipairs({ { "", 18432 }, { "shared_experts.", 2048 } }) do
      local name, rows = "model.layers.{l}.mlp." .. mlp[1], mlp[2] / axes.tp / b
      add(
         rule(name .. "gate_proj." .. kind) { into = name .. "gate_up_proj." .. kind, at = span(0, 0, rows), layout = column },
         rule(name .. "up_proj." .. kind) { into = name .. "gate_up_proj." .. kind, at = span(0, rows, rows), layout = column },
         rule(name .. "down_proj." .. kind) { layout = row })
   end
   local A = "model.layers.{l}.self_attn."
   add(
      rule(A .. "q_a_proj." .. kind) { into = A .. "fused_qkv_a_proj." .. kind, at = span(0, 0, 1536 / b) },
      rule(A .. "kv_a_proj_with_mqa." .. kind) { into = A .. "fused_qkv_a_proj." .. kind, at = span(0, 1536 / b, ceil_divide(576, b)) },
      rule(A .. "{p=q_b_proj|kv_b_proj}." .. kind) { layout = column },
      rule(A .. "o_proj." .. kind) { layout = row })
end
add(rule "model.layers.{l}.self_attn.{n=q_a_layernorm|kv_a_layernorm}.weight" {}, rule "model.layers.{l}.mlp.gate.weight" {})
return { strip = { "_fsdp_wrapped_module", "_orig_mod" }, rules = rules }
]]

-- Rules of every shape that match nothing, before those that do.
local function others()
   local list, shapes = {}, {
      "model.layers.{l}.mlp.experts.{e}.other_%d.weight", "model.layers.%d.mlp.experts.{e}.gate_proj.bias",
      "other_%d.layers.{l}.**", "model.layers.{l}.{p=q|k|v}_other_%d.weight", "**.other_%d.weight",
   }
   for i = 1, count - 10 do
      list[i] = ('rule "%s" { layout = column }'):format(shapes[i % #shapes + 1]:format(i))
   end
   return table.concat(list, ",\n")
end

local path = os.tmpname()
local file = assert(io.open(path, "w"))
file:write((RULES:gsub("%%s", others)))
file:close()

local seconds, mark = {}, measure.cpu()
local function lap(step)
   local now = measure.cpu()
   seconds[step], mark = now - mark, now
end

local state = script.new()
local read = state:read_init_info(init_info)
assert(read.ok, read.text)
lap("init_info")
local set = script.live_set(live)
lap("live")
local resolved = state:resolve(read.plan, set, "{}", path)
os.remove(path)
assert(resolved.ok, resolved.text)
lap("resolve")
local coverage, problem = script.cover(read.plan, set, PP * EP, resolved)
assert(coverage, problem)
assert(tonumber(coverage.nuncovered) == 0, "live bytes stay unwritten")
lap("check")
print(cjson.encode({ parameters = #params, rules = count, seconds = seconds }))
