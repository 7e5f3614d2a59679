--- Decoders that no family file is for, as their own loading code has them: what they have beside, or in the place of, a Llama's parts
-- (spec/support/loader/llama.lua). examples/rules and spec/script/unseen_spec.lua have rule files for them.

local ffi = require "ffi"
local host = require "spec.support.loader.host"
local llama = require "spec.support.loader.llama"
local tensor = require "spec.support.loader.tensor"

local decoders = {}

local divide = host.divide

-- A decoder whose target is `target` where that says one, a Llama's otherwise.
local function family(parts, target)
   local made = llama.family(llama.parts(parts))
   made.target = function(name, config)
      local live, shard, expert = target(name, config)
      if live then
         return live, shard, expert
      end
      return llama.target(name, config)
   end
   return made
end

local function nothing() end

-- The experts of a block, one by one.
local function add_experts(add, prefix, config)
   for e = 0, config.num_experts - 1 do
      llama.mlp_tensors(add, ("%sexperts.%d."):format(prefix, e), config.moe_intermediate_size, config.hidden_size)
   end
end

local function expert_target(name)
   local block, expert, part = name:match("^(.*%.experts)%.(%d+)%.(%w+)_proj%.weight$")
   if block then
      local down = part == "down"
      return block .. (down and ".w2_weight" or ".w13_weight"), down and "w2" or part == "gate" and "w1" or "w3", tonumber(expert)
   end
end

-- ---- Qwen3-Next ----

-- Of four layers one has attention as others do.
local function is_linear(prefix)
   return tonumber(prefix:match("%.(%d+)%.")) % 2 == 0
end

local function linear_sizes(config)
   return config.linear_num_key_heads * config.linear_key_head_dim, config.linear_num_value_heads * config.linear_value_head_dim
end

decoders.qwen3_next = family({
   every_stage = true,
   tensors_of_attention = function(add, prefix, config)
      local hidden, d = config.hidden_size, config.head_dim
      if not is_linear(prefix) then
         llama.attention_tensors(function(name, shape)
            add(name, name:find("q_proj") and { 2 * shape[1], shape[2] } or shape) -- a gate for each of q's elements
         end, prefix, config)
         add(prefix .. "q_norm.weight", { d })
         add(prefix .. "k_norm.weight", { d })
         return
      end
      prefix = prefix:gsub("self_attn", "linear_attn")
      local keys, values = linear_sizes(config)
      add(prefix .. "in_proj_qkvz.weight", { 2 * keys + 2 * values, hidden })
      add(prefix .. "in_proj_ba.weight", { 2 * config.linear_num_value_heads, hidden })
      add(prefix .. "conv1d.weight", { 2 * keys + values, 1, 4 })
      add(prefix .. "A_log", { config.linear_num_value_heads }, "F32")
      add(prefix .. "dt_bias", { config.linear_num_value_heads })
      add(prefix .. "norm.weight", { config.linear_value_head_dim })
      add(prefix .. "out_proj.weight", { hidden, values })
   end,
   tensors_of_mlp = function(add, prefix, config)
      prefix = prefix .. "mlp."
      add(prefix .. "gate.weight", { config.num_experts, config.hidden_size })
      add_experts(add, prefix, config)
      llama.mlp_tensors(add, prefix .. "shared_expert.", config.shared_expert_intermediate_size, config.hidden_size)
      add(prefix .. "shared_expert_gate.weight", { 1, config.hidden_size })
   end,
   attention = function(model, prefix, config)
      local hidden, d = config.hidden_size, config.head_dim
      if not is_linear(prefix) then
         local heads = config.num_attention_heads
         local gated = setmetatable({ num_attention_heads = 2 * heads }, { __index = config })
         divide(heads, model.tp, "query heads")
         llama.build_attention(setmetatable({ row = nothing }, { __index = model }), prefix, gated)
         model:row(prefix .. "o_proj.weight", hidden, heads * d)
         model:replicated(prefix .. "q_norm.weight", { d })
         model:replicated(prefix .. "k_norm.weight", { d })
         return
      end
      prefix = prefix:gsub("self_attn", "linear_attn")
      local keys, values = linear_sizes(config)
      model:column(prefix .. "in_proj_qkvz.weight", 2 * keys + 2 * values, { hidden })
      model:column(prefix .. "in_proj_ba.weight", 2 * config.linear_num_value_heads, { hidden })
      model:merged(prefix .. "conv1d.weight", { keys, keys, values }, { 1, 4 })
      model:column(prefix .. "A_log", config.linear_num_value_heads, {}, "F32")
      model:column(prefix .. "dt_bias", config.linear_num_value_heads, {})
      model:replicated(prefix .. "norm.weight", { config.linear_value_head_dim })
      model:row(prefix .. "out_proj.weight", hidden, values)
   end,
   mlp = function(model, prefix, config)
      prefix = prefix .. "mlp."
      model:replicated(prefix .. "gate.weight", { config.num_experts, config.hidden_size })
      model:experts(prefix .. "experts.w13_weight", prefix .. "experts.w2_weight", config.num_experts, config.moe_intermediate_size,
         config.hidden_size)
      llama.build_mlp(model, prefix .. "shared_expert.", config.shared_expert_intermediate_size, config.hidden_size)
      model:replicated(prefix .. "shared_expert_gate.weight", { 1, config.hidden_size })
   end,
}, expert_target)

-- ---- Llama 4 ----

local function is_dense(layer)
   return layer % 2 == 0
end

local llama4 = {
   tensors_of_attention = llama.attention_tensors,
   tensors_of_mlp = function(add, prefix, config, layer)
      prefix = prefix .. "feed_forward."
      local wide, hidden, experts = config.intermediate_size, config.hidden_size, config.num_local_experts
      if is_dense(layer) then
         return llama.mlp_tensors(add, prefix, config.intermediate_size_mlp, hidden)
      end
      add(prefix .. "router.weight", { experts, hidden })
      add(prefix .. "experts.gate_up_proj", { experts, hidden, 2 * wide })
      add(prefix .. "experts.down_proj", { experts, wide, hidden })
      llama.mlp_tensors(add, prefix .. "shared_expert.", wide, hidden)
   end,
   attention = llama.build_attention,
   mlp = function(model, prefix, config, layer)
      prefix = prefix .. "feed_forward."
      local wide, hidden, experts = config.intermediate_size, config.hidden_size, config.num_local_experts
      if is_dense(layer) then
         return llama.build_mlp(model, prefix, config.intermediate_size_mlp, hidden)
      end
      model:replicated(prefix .. "router.weight", { experts, hidden })
      -- Each expert is turned over before it is loaded.
      local turned = setmetatable({ parameter = function(_, name, shape, load, dtype)
         return model:parameter(name, shape, function(live, loaded, ...)
            load(live, loaded:transpose(1, 2), ...)
         end, dtype)
      end }, { __index = model })
      turned:experts(prefix .. "experts.w13_weight", prefix .. "experts.w2_weight", experts, wide, hidden)
      llama.build_mlp(model, prefix .. "shared_expert.", wide, hidden)
   end,
}

decoders.llama4 = {
   checkpoint = function(config)
      return llama.tensors(config, llama4, function(name) return "language_model." .. name end)
   end,
   build = function(model, config)
      llama.decoder(model, config, llama4)
   end,
   target = function(name, config)
      name = name:gsub("^language_model%.", "")
      local block, part = name:match("^(.*%.experts)%.(%w+)_proj$")
      if not block then
         block, part = name:match("^(.*%.experts)%.(gate_up)_proj$")
      end
      if block then
         return block .. (part == "down" and ".w2_weight" or ".w13_weight"), part == "down" and "w2" or "w13"
      end
      return llama.target(name, config)
   end,
}

-- ---- AWQ: three tensors a layer, [in, out], two of them packed ----

local GROUP, IN_ONE = 8, 8 -- inputs that share a scale; 4-bit numbers in an int32
local awq_kinds = {
   { name = ".qweight", dtype = "I32", inputs = 1, outputs = IN_ONE }, { name = ".qzeros", dtype = "I32", inputs = GROUP, outputs = IN_ONE },
   { name = ".scales", dtype = "F16", inputs = GROUP, outputs = 1 },
}

local function add_awq(add, name, outputs, inputs)
   for _, kind in ipairs(awq_kinds) do
      add(name .. kind.name, { inputs / kind.inputs, outputs / kind.outputs }, kind.dtype)
   end
end

-- Layers stacked along the outputs: parts { name = { outputs of a worker, its first on disk } } in the order of `order`.
local function awq_stack(model, name, inputs, order, parts)
   for _, kind in ipairs(awq_kinds) do
      local at, total = {}, 0
      for _, part in ipairs(order) do
         at[part], total = total, total + parts[part][1] / kind.outputs
      end
      model:parameter(name .. kind.name, { inputs / kind.inputs, total }, function(live, loaded, part)
         local count, first = parts[part][1] / kind.outputs, parts[part][2] / kind.outputs
         live:narrow(1, at[part], count):copy(loaded:narrow(1, first, count))
      end, kind.dtype)
   end
end

local function awq_row(model, name, outputs, inputs)
   for _, kind in ipairs(awq_kinds) do
      local mine = divide(inputs / kind.inputs, model.tp, "groups of inputs")
      model:parameter(name .. kind.name, { mine, outputs / kind.outputs }, function(live, loaded)
         live:copy(loaded:narrow(0, model.r * mine, mine))
      end, kind.dtype)
   end
end

decoders.awq = family({
   tensors_of_attention = function(add, prefix, config)
      local q, kv, hidden = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim, config.hidden_size
      add_awq(add, prefix .. "q_proj", q, hidden)
      add_awq(add, prefix .. "k_proj", kv, hidden)
      add_awq(add, prefix .. "v_proj", kv, hidden)
      add_awq(add, prefix .. "o_proj", hidden, q)
   end,
   tensors_of_mlp = function(add, prefix, config)
      add_awq(add, prefix .. "mlp.gate_proj", config.intermediate_size, config.hidden_size)
      add_awq(add, prefix .. "mlp.up_proj", config.intermediate_size, config.hidden_size)
      add_awq(add, prefix .. "mlp.down_proj", config.hidden_size, config.intermediate_size)
   end,
   attention = function(model, prefix, config)
      local d = config.head_dim
      local q, kv_heads = divide(config.num_attention_heads, model.tp, "query heads") * d, config.num_key_value_heads
      local parts = math.min(model.tp, kv_heads)
      local kv = divide(kv_heads, parts, "KV heads")
      local first = math.floor(model.r / divide(model.tp, parts, "workers over the KV heads")) * kv
      awq_stack(model, prefix .. "qkv_proj", config.hidden_size, { "q", "k", "v" },
         { q = { q, model.r * q }, k = { kv * d, first * d }, v = { kv * d, first * d } })
      awq_row(model, prefix .. "o_proj", config.hidden_size, config.num_attention_heads * d)
   end,
   mlp = function(model, prefix, config)
      local mine = divide(config.intermediate_size, model.tp, "outputs of gate")
      awq_stack(model, prefix .. "mlp.gate_up_proj", config.hidden_size, { "gate", "up" },
         { gate = { mine, model.r * mine }, up = { mine, model.r * mine } })
      awq_row(model, prefix .. "mlp.down_proj", config.hidden_size, config.intermediate_size)
   end,
}, function(name)
   local before, part, kind = name:match("^(.*)%.(%w+)_proj%.(q%w+)$")
   if not before then
      before, part, kind = name:match("^(.*)%.(%w+)_proj%.(scales)$")
   end
   if before and part ~= "o" and part ~= "down" then
      return ("%s.%s.%s"):format(before, #part == 1 and "qkv_proj" or "gate_up_proj", kind), part
   end
end)

-- ---- a scale for each row ----

-- Makes a linear layer's weight, in config.quantized, and its scales: make(name, columns, dtype) makes one of them.
local function with_scales(config, name, columns, make)
   make(name .. ".weight", { columns }, config.quantized)
   make(name .. ".weight_scale", config.flat_scales and {} or { 1 }, "F32")
end

decoders.fp8_rows = family({
   tensors_of_attention = function(add, prefix, config)
      local d, hidden = config.head_dim, config.hidden_size
      local function linear(name, count, columns)
         with_scales(config, prefix .. name, columns, function(called, tail, dtype) add(called, { count, unpack(tail) }, dtype) end)
      end
      linear("q_proj", config.num_attention_heads * d, hidden)
      linear("k_proj", config.num_key_value_heads * d, hidden)
      linear("v_proj", config.num_key_value_heads * d, hidden)
      linear("o_proj", hidden, config.num_attention_heads * d)
   end,
   tensors_of_mlp = function(add, prefix, config)
      local function linear(name, count, columns)
         with_scales(config, prefix .. "mlp." .. name, columns, function(called, tail, dtype) add(called, { count, unpack(tail) }, dtype) end)
      end
      linear("gate_proj", config.intermediate_size, config.hidden_size)
      linear("up_proj", config.intermediate_size, config.hidden_size)
      linear("down_proj", config.hidden_size, config.intermediate_size)
   end,
   attention = function(model, prefix, config)
      local heads, kv_heads, d, hidden = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
      with_scales(config, prefix .. "qkv_proj", hidden, function(name, tail, dtype) model:qkv(name, heads, kv_heads, d, tail, dtype) end)
      model:row(prefix .. "o_proj.weight", hidden, heads * d, config.quantized)
      model:replicated(prefix .. "o_proj.weight_scale", config.flat_scales and { hidden } or { hidden, 1 }, "F32")
   end,
   mlp = function(model, prefix, config)
      local wide, hidden = config.intermediate_size, config.hidden_size
      with_scales(config, prefix .. "mlp.gate_up_proj", hidden, function(name, tail, dtype) model:merged(name, { wide, wide }, tail, dtype) end)
      model:row(prefix .. "mlp.down_proj.weight", hidden, wide, config.quantized)
      model:replicated(prefix .. "mlp.down_proj.weight_scale", config.flat_scales and { hidden } or { hidden, 1 }, "F32")
   end,
}, nothing)

-- ---- an adapter alone ----

local SLOTS, MOST_RANK = 3, 6
local BEFORE = 0x5A -- what other slots hold

decoders.lora = {
   checkpoint = function(config)
      local list, d, hidden, rank = {}, config.head_dim, config.hidden_size, config.rank
      for layer = 0, config.num_hidden_layers - 1 do
         local outputs = { q_proj = config.num_attention_heads * d, k_proj = config.num_key_value_heads * d,
            v_proj = config.num_key_value_heads * d, o_proj = hidden }
         for _, part in ipairs({ "q_proj", "k_proj", "v_proj", "o_proj" }) do
            local name = ("base_model.model.model.layers.%d.self_attn.%s."):format(layer, part)
            list[#list + 1] = { name .. "lora_A.weight", { rank, part == "o_proj" and outputs.q_proj or hidden } }
            list[#list + 1] = { name .. "lora_B.weight", { outputs[part], rank } }
         end
      end
      return list
   end,
   build = function(model, config)
      local d, hidden, rank = config.head_dim, config.hidden_size, config.rank
      -- Into one slot of a stack, this worker's part [from, ...) of dim `cut` of the checkpoint's; what is more is zero.
      local function stack(name, shape, cut, from)
         local live = model:parameter(name, { SLOTS, 1, unpack(shape) }, function(live, loaded)
            local slot = live:select(0, config.slot):select(0, 0)
            local mine = loaded:narrow(cut, from, math.min(shape[cut + 1], loaded.shape[cut + 1]))
            for dim = 0, 1 do
               slot = slot:narrow(dim, 0, mine.shape[dim + 1])
            end
            slot:copy(mine)
         end)
         ffi.fill(live.data, live:size(), BEFORE)
         for other = 0, SLOTS - 1 do
            if other ~= config.slot then
               live:select(0, other):pad()
            end
         end
         local used = live:select(0, config.slot):select(0, 0)
         local dim = shape[1] == MOST_RANK and 0 or 1 -- along which the rank is
         local rest = used:narrow(dim, rank, MOST_RANK - rank)
         rest:copy(tensor.zeros(config.dtype, rest.shape))
      end
      local q = divide(config.num_attention_heads, model.tp, "query heads") * d
      local kv_parts = math.min(model.tp, config.num_key_value_heads)
      local kv = config.num_key_value_heads / kv_parts * d
      local kv_first = math.floor(model.r / (model.tp / kv_parts)) * kv
      for layer = 0, config.num_hidden_layers - 1 do
         local name = ("model.layers.%d.self_attn."):format(layer)
         for number, rows in ipairs({ { q, model.r * q }, { kv, kv_first }, { kv, kv_first } }) do
            stack(name .. "qkv_proj.lora_a_stacked." .. number - 1, { MOST_RANK, hidden }, 0, 0)
            stack(name .. "qkv_proj.lora_b_stacked." .. number - 1, { rows[1], MOST_RANK }, 0, rows[2])
         end
         stack(name .. "o_proj.lora_a_stacked.0", { MOST_RANK, q }, 1, model.r * q)
         stack(name .. "o_proj.lora_b_stacked.0", { hidden, MOST_RANK }, 0, 0)
         model:parameter(name .. "o_proj.base_layer.weight", { hidden, q }, nil)
      end
   end,
   target = function(name)
      local before, part, kind = name:match("^base_model%.model%.(.*)%.(%w)_proj%.lora_([AB])%.weight$")
      local number = ({ q = 0, k = 1, v = 2, o = 0 })[part]
      return ("%s.%s.lora_%s_stacked.%d"):format(before, part == "o" and "o_proj" or "qkv_proj", kind:lower(), number)
   end,
}

-- ---- GLM-4: gate and up are fused on disk, q, k and v are not ----

local glm_norms = { "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm" }

decoders.glm4 = family({
   norms = glm_norms,
   tensors_of_mlp = function(add, prefix, config)
      add(prefix .. "mlp.gate_up_proj.weight", { 2 * config.intermediate_size, config.hidden_size })
      add(prefix .. "mlp.down_proj.weight", { config.hidden_size, config.intermediate_size })
   end,
}, nothing)

-- ---- Command-R+: norms over the heads of q and k, a row a head ----

decoders.command_r = family({
   norms = { "input_layernorm" },
   tensors_of_attention = function(add, prefix, config)
      llama.attention_tensors(add, prefix, config)
      add(prefix .. "q_norm.weight", { config.num_attention_heads, config.head_dim })
      add(prefix .. "k_norm.weight", { config.num_key_value_heads, config.head_dim })
   end,
   attention = function(model, prefix, config)
      llama.build_attention(model, prefix, config)
      model:column(prefix .. "q_norm.weight", config.num_attention_heads, { config.head_dim })
      local parts = math.min(model.tp, config.num_key_value_heads)
      local count = divide(config.num_key_value_heads, parts, "KV heads")
      model:parameter(prefix .. "k_norm.weight", { count, config.head_dim }, function(live, loaded)
         live:copy(loaded:narrow(0, math.floor(model.r / (model.tp / parts)) * count, count))
      end)
   end,
}, nothing)

-- ---- Phi-3.5-MoE: Mixtral's experts, and biases wherever one can be ----

local phimoe = {
   every_stage = true,
   norms = llama.norms,
   tensors_of_attention = llama.attention_tensors,
   tensors_of_mlp = function(add, prefix, config)
      for _, norm in ipairs(llama.norms) do
         add(prefix .. norm .. ".bias", { config.hidden_size })
      end
      add(prefix .. "block_sparse_moe.gate.weight", { config.num_experts, config.hidden_size })
      for e = 0, config.num_experts - 1 do
         local name = ("%sblock_sparse_moe.experts.%d."):format(prefix, e)
         add(name .. "w1.weight", { config.moe_intermediate_size, config.hidden_size })
         add(name .. "w3.weight", { config.moe_intermediate_size, config.hidden_size })
         add(name .. "w2.weight", { config.hidden_size, config.moe_intermediate_size })
      end
   end,
   attention = llama.build_attention,
   mlp = function(model, prefix, config)
      for _, norm in ipairs(llama.norms) do
         model:replicated(prefix .. norm .. ".bias", { config.hidden_size })
      end
      prefix = prefix .. "block_sparse_moe."
      model:replicated(prefix .. "gate.weight", { config.num_experts, config.hidden_size })
      model:experts(prefix .. "experts.w13_weight", prefix .. "experts.w2_weight", config.num_experts, config.moe_intermediate_size,
         config.hidden_size)
   end,
}

decoders.phimoe = {
   checkpoint = function(config)
      local list = llama.tensors(config, phimoe)
      list[#list + 1] = { "model.norm.bias", { config.hidden_size } }
      list[#list + 1] = { "lm_head.bias", { config.vocab_size } }
      return list
   end,
   build = function(model, config)
      llama.decoder(model, config, phimoe)
      model:replicated("model.norm.bias", { config.hidden_size })
      local padded = math.ceil(config.vocab_size / 64) * 64
      local mine = divide(padded, model.tp, "rows of the padded vocabulary")
      local first = model.r * mine
      local real = math.max(0, math.min(mine, config.vocab_size - first))
      local live = model:parameter("lm_head.bias", { mine }, function(live, loaded)
         live:narrow(0, 0, real):copy(loaded:narrow(0, real > 0 and first or 0, real))
      end)
      live:narrow(0, real, mine - real):pad()
   end,
   target = function(name, config)
      local block, expert, part = name:match("^(.*%.experts)%.(%d+)%.(w%d)%.weight$")
      if block then
         return block .. (part == "w2" and ".w2_weight" or ".w13_weight"), part, tonumber(expert)
      end
      return llama.target(name, config)
   end,
}

-- ---- DBRX: experts one below the other in flat tensors ----

decoders.dbrx = {
   checkpoint = function(config)
      local rows, hidden = config.num_experts * config.moe_intermediate_size, config.hidden_size
      return { { "blocks.0.ffn.experts.mlp.w1", { rows, hidden } }, { "blocks.0.ffn.experts.mlp.v1", { rows, hidden } },
         { "blocks.0.ffn.experts.mlp.w2", { rows, hidden } } }
   end,
   build = function(model, config)
      -- As the host loads them: seen as [experts, wide, hidden]; w2 of each turned over.
      local wide = config.moe_intermediate_size
      local function one(loaded, e)
         return loaded:narrow(0, e * wide, wide)
      end
      local first, count = model:local_experts(config.num_experts)
      local mine = divide(wide, model.place.moe_tp, "columns of an expert")
      local from = model.place.moe_tp_rank * mine
      model:parameter("blocks.0.ffn.experts.w13_weight", { count, 2 * mine, config.hidden_size }, function(live, loaded, shard)
         for slab = 0, count - 1 do
            live:select(0, slab):narrow(0, shard == "v1" and mine or 0, mine):copy(one(loaded, first + slab):narrow(0, from, mine))
         end
      end)
      model:parameter("blocks.0.ffn.experts.w2_weight", { count, config.hidden_size, mine }, function(live, loaded)
         for slab = 0, count - 1 do
            live:select(0, slab):copy(one(loaded, first + slab):transpose(0, 1):narrow(1, from, mine))
         end
      end)
   end,
   target = function(name)
      local part = name:match("%w+$")
      return "blocks.0.ffn.experts." .. (part == "w2" and "w2_weight" or "w13_weight"), part
   end,
}

return decoders
