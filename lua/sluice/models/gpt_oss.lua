--- GPT-OSS in bfloat16: attention with biases and a sink a head, experts in every layer. The checkpoint brings all experts of a
-- layer in one tensor whose last dim is the output's; the host has it transposed. Gate and up take turns along that dim on both
-- sides, so that a unit is two of its rows.

local decoder = require "sluice.models.decoder"
local serving = require "sluice.models.serving"

local ceil, min = math.ceil, math.min

local family = decoder.family({
   architecture = "GptOssForCausalLM", keys = { "num_local_experts", "attention_bias" }, required = { "num_local_experts" },
   experts = { count = "num_local_experts", width = "intermediate_size" },
})
family.choices = { "live_experts", "live_qkv" }

local complete = family.complete

function family.complete(config)
   if config.attention_bias == nil then
      config.attention_bias = true
   end
   complete(config)
end

-- An expert's units need not divide by tp: the last ranks hold fewer, or none.
function family.check_workers(config, part)
   local sizes = serving.sizes(part)
   decoder.check_heads(config, sizes.tp)
   serving.check_whole(config, sizes, "num_local_experts")
end

-- ---- the checkpoint ----

local QKV = { "q_proj", "k_proj", "v_proj" }

local function rows_of(config, part)
   return (part == "q_proj" and config.num_attention_heads or config.num_key_value_heads) * config.head_dim
end

local function add_attention(add, config, prefix, layer)
   local hidden, q = config.hidden_size, rows_of(config, "q_proj")
   for _, part in ipairs(QKV) do
      add(prefix .. part .. ".weight", { rows_of(config, part), hidden }, "column", layer)
      if config.attention_bias then
         add(prefix .. part .. ".bias", { rows_of(config, part) }, "column", layer)
      end
   end
   add(prefix .. "o_proj.weight", { hidden, q }, "row", layer)
   if config.attention_bias then
      add(prefix .. "o_proj.bias", { hidden }, "replicated", layer)
   end
   add(prefix .. "sinks", { config.num_attention_heads }, "column", layer)
end

local function add_experts(add, config, prefix, layer)
   local count, hidden, wide = config.num_experts, config.hidden_size, config.intermediate_size
   add(prefix .. "router.weight", { count, hidden }, "replicated", layer)
   add(prefix .. "router.bias", { count }, "replicated", layer)
   add.packed(prefix .. "experts.gate_up_proj", { count, hidden, 2 * wide }, "packed_row", layer)
   add.packed(prefix .. "experts.gate_up_proj_bias", { count, 2 * wide }, "packed_column", layer)
   add.packed(prefix .. "experts.down_proj", { count, wide, hidden }, "packed_column", layer)
   add.packed(prefix .. "experts.down_proj_bias", { count, hidden }, "packed", layer)
end

function family.params(config, add)
   local hidden = { config.hidden_size }
   decoder.params(config, add, function(prefix, layer)
      add_attention(add, config, prefix .. "self_attn.", layer)
      add_experts(add, config, prefix .. "mlp.", layer)
      add(prefix .. "input_layernorm.weight", hidden, "replicated", layer)
      add(prefix .. "post_attention_layernorm.weight", hidden, "replicated", layer)
   end)
end

-- ---- a worker ----

local function live_attention(worker, config, layer)
   local live, source, hidden = layer .. "attn.", layer .. "self_attn.", config.hidden_size
   local heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
   for _, ending in ipairs(config.attention_bias and { "weight", "bias" } or { "weight" }) do
      local sources = {}
      for i, part in ipairs(QKV) do
         sources[i] = source .. part .. "." .. ending
      end
      worker:qkv(live .. config.live_qkv .. "." .. ending, sources, heads, kv_heads, d, ending == "weight" and { hidden } or {})
   end
   worker:part(live .. "o_proj.weight", { hidden, heads * d }, 1, nil, source .. "o_proj.weight")
   if config.attention_bias then
      worker:whole(live .. "o_proj.bias", { hidden }, "replicated", nil, source .. "o_proj.bias")
   end
   worker:part(live .. "sinks", { heads }, 0, nil, source .. "sinks")
end

-- What a worker holds of an expert's units: where they begin, how many there are, how many there is room for.
local function share_of(worker, units)
   local room = ceil(units / worker.moe_tp)
   local first = min(worker.moe_r * room, units)
   return first, min(room, units - first), room
end

-- Experts stacked. dims: the live dim of each dim of the source; shape: of the live tensor, where its dim `cut` (0-based) has
-- room for this worker's units, `per` elements each; what lies behind the last unit is zero.
local function stack(worker, units, name, source, dims, shape, cut, per)
   local first, count = share_of(worker, units)
   local from, at, extent = {}, {}, {}
   for i, dim in ipairs(dims) do
      from[i] = dim == 0 and worker.first_expert or dim == cut and per * first or 0
      extent[i] = dim == cut and per * count or shape[dim + 1]
      at[i] = 0
   end
   local behind, rest = { unpack(at) }, { unpack(shape) }
   behind[cut + 1], rest[cut + 1] = per * count, shape[cut + 1] - per * count
   local content = { source = source, from = from, extent = extent, at = at, dims = dims }
   worker:add(name, shape, "fused_moe", count > 0 and { content } or {},
      rest[cut + 1] > 0 and { { source = source, at = behind, extent = rest } } or nil)
end

-- Ranks sum what their experts give: the first of them holds the bias, the others zeros.
local function live_down_bias(worker, name, source, shape)
   local first = worker.moe_r == 0
   worker:add(name, shape, "fused_moe",
      first and { { source = source, from = { worker.first_expert, 0 }, extent = shape, at = { 0, 0 }, dims = { 0, 1 } } } or {},
      not first and { { source = source, at = { 0, 0 }, extent = shape } } or nil)
end

local function live_experts(worker, config, prefix)
   local hidden, units, count = config.hidden_size, config.intermediate_size, worker.local_experts
   local source, live, _, _, room = prefix .. "experts.", prefix .. config.live_experts .. ".", share_of(worker, units)
   worker:whole(prefix .. "router.weight", { config.num_experts, hidden }, "replicated")
   worker:whole(prefix .. "router.bias", { config.num_experts }, "replicated")
   stack(worker, units, live .. "w13_weight", source .. "gate_up_proj", { 0, 2, 1 }, { count, 2 * room, hidden }, 1, 2)
   stack(worker, units, live .. "w13_bias", source .. "gate_up_proj_bias", { 0, 1 }, { count, 2 * room }, 1, 2)
   stack(worker, units, live .. "w2_weight", source .. "down_proj", { 0, 2, 1 }, { count, hidden, room }, 2, 1)
   live_down_bias(worker, live .. "w2_bias", source .. "down_proj_bias", { count, hidden })
end

function family.live(config, worker)
   local hidden = { config.hidden_size }
   decoder.live(config, worker, function(prefix)
      live_attention(worker, config, prefix)
      live_experts(worker, config, prefix .. "mlp.")
      worker:whole(prefix .. "input_layernorm.weight", hidden)
      worker:whole(prefix .. "post_attention_layernorm.weight", hidden)
   end, true)
end

function family.prefixes()
   return { checkpoint = {}, live = { { "model.embed_tokens.", "model.embedding." } } }
end

return family
