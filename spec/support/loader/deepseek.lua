--- DeepSeek-V3: attention through latents, a shared MLP beside the experts, first layers dense, drafting layers (MTP) behind the last.
-- In fp8 each linear layer is a weight and the scales of its blocks: the same layer a second time, counted in blocks.

local host = require "spec.support.loader.host"
local llama = require "spec.support.loader.llama"

local deepseek = {}

-- How a linear layer is stored: the endings of its tensors, their dtypes, and what one element stands for.
local function forms_of(config)
   local quantized = config.quantization_config
   if not quantized then
      return { { ending = ".weight", rows = 1, columns = 1 } }
   end
   local block = quantized.weight_block_size
   return {
      { ending = ".weight", dtype = "F8_E4M3", rows = 1, columns = 1 },
      { ending = ".weight_scale_inv", dtype = "F32", rows = block[1], columns = block[2] },
   }
end

local function in_blocks(size, block)
   return math.ceil(size / block)
end

-- The linear layers of one block, and how the host makes each: [rows, columns].
local function sizes_of(config)
   local heads, hidden = config.num_attention_heads, config.hidden_size
   return {
      q_a_proj = { config.q_lora_rank, hidden }, kv_a_proj_with_mqa = { config.kv_lora_rank + config.qk_rope_head_dim, hidden },
      q_b_proj = { heads * (config.qk_nope_head_dim + config.qk_rope_head_dim), config.q_lora_rank },
      kv_b_proj = { heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank },
      o_proj = { hidden, heads * config.v_head_dim },
   }
end

local function is_dense(config, layer)
   return layer < config.first_k_dense_replace
end

-- ---- the checkpoint ----

local function add_linear(add, config, name, rows, columns)
   for _, form in ipairs(forms_of(config)) do
      add(name .. form.ending, { in_blocks(rows, form.rows), in_blocks(columns, form.columns) }, form.dtype)
   end
end

local function add_mlp(add, config, prefix, wide)
   add_linear(add, config, prefix .. "gate_proj", wide, config.hidden_size)
   add_linear(add, config, prefix .. "up_proj", wide, config.hidden_size)
   add_linear(add, config, prefix .. "down_proj", config.hidden_size, wide)
end

local function add_attention(add, prefix, config)
   for name, size in pairs(sizes_of(config)) do
      add_linear(add, config, prefix .. name, size[1], size[2])
   end
   add(prefix .. "q_a_layernorm.weight", { config.q_lora_rank })
   add(prefix .. "kv_a_layernorm.weight", { config.kv_lora_rank })
end

local function add_rest(add, prefix, config, layer)
   if is_dense(config, layer) then
      return add_mlp(add, config, prefix .. "mlp.", config.intermediate_size)
   end
   add(prefix .. "mlp.gate.weight", { config.n_routed_experts, config.hidden_size })
   add(prefix .. "mlp.gate.e_score_correction_bias", { config.n_routed_experts }, "F32")
   add_mlp(add, config, prefix .. "mlp.shared_experts.", config.n_shared_experts * config.moe_intermediate_size)
   for e = 0, config.n_routed_experts - 1 do
      add_mlp(add, config, ("%smlp.experts.%d."):format(prefix, e), config.moe_intermediate_size)
   end
end

local function add_drafter(add, config, prefix, layer)
   local hidden = config.hidden_size
   add(prefix .. "embed_tokens.weight", { config.vocab_size, hidden })
   add(prefix .. "enorm.weight", { hidden })
   add(prefix .. "hnorm.weight", { hidden })
   add(prefix .. "eh_proj.weight", { hidden, 2 * hidden })
   for _, norm in ipairs(llama.norms) do
      add(prefix .. norm .. ".weight", { hidden })
   end
   add_attention(add, prefix .. "self_attn.", config)
   add_rest(add, prefix, config, layer)
   add(prefix .. "shared_head.norm.weight", { hidden })
   add(prefix .. "shared_head.head.weight", { config.vocab_size, hidden })
end

-- ---- the host ----

-- Makes a linear layer in each of its forms; make(name, form, divide) makes one of them.
local function each_form(config, name, make)
   for _, form in ipairs(forms_of(config)) do
      make(name .. form.ending, form)
   end
end

-- A layer whose parts do not begin and end with a block cannot have scales of its own.
local function whole_blocks(config, size, what)
   local quantized = config.quantization_config
   if quantized and size % quantized.weight_block_size[1] ~= 0 then
      error({ unfit = ("%d %s are no whole number of blocks of %d"):format(size, what, quantized.weight_block_size[1]) }, 0)
   end
end

local function column(model, config, name, rows, columns)
   if model.tp > 1 then
      whole_blocks(config, host.divide(rows, model.tp, "rows of " .. name), "rows of " .. name)
   end
   each_form(config, name, function(called, form)
      model:column(called, in_blocks(rows, form.rows), { in_blocks(columns, form.columns) }, form.dtype)
   end)
end

local function row(model, config, name, rows, columns)
   if model.tp > 1 then
      whole_blocks(config, host.divide(columns, model.tp, "columns of " .. name), "columns of " .. name)
   end
   each_form(config, name, function(called, form)
      model:row(called, in_blocks(rows, form.rows), in_blocks(columns, form.columns), form.dtype)
   end)
end

local function mlp(model, config, prefix, wide)
   local hidden = config.hidden_size
   whole_blocks(config, host.divide(wide, model.tp, "rows of " .. prefix .. "gate_up_proj"), "rows of " .. prefix .. "gate_up_proj")
   each_form(config, prefix .. "gate_up_proj", function(called, form)
      local rows = in_blocks(wide, form.rows)
      model:merged(called, { rows, rows }, { in_blocks(hidden, form.columns) }, form.dtype)
   end)
   row(model, config, prefix .. "down_proj", hidden, wide)
end

local function build_attention(model, prefix, config)
   local size = sizes_of(config)
   whole_blocks(config, config.q_lora_rank, "rows of q_a_proj")
   each_form(config, prefix .. "fused_qkv_a_proj", function(called, form)
      model:merged(called, { in_blocks(size.q_a_proj[1], form.rows), in_blocks(size.kv_a_proj_with_mqa[1], form.rows) },
         { in_blocks(config.hidden_size, form.columns) }, form.dtype, 1)
   end)
   for _, name in ipairs({ "q_b_proj", "kv_b_proj" }) do
      column(model, config, prefix .. name, size[name][1], size[name][2])
   end
   row(model, config, prefix .. "o_proj", size.o_proj[1], size.o_proj[2])
   model:replicated(prefix .. "q_a_layernorm.weight", { config.q_lora_rank })
   model:replicated(prefix .. "kv_a_layernorm.weight", { config.kv_lora_rank })
end

local function build_rest(model, prefix, config, layer)
   if is_dense(config, layer) then
      return mlp(model, config, prefix .. "mlp.", config.intermediate_size)
   end
   local wide, hidden = config.moe_intermediate_size, config.hidden_size
   model:replicated(prefix .. "mlp.gate.weight", { config.n_routed_experts, hidden })
   model:replicated(prefix .. "mlp.gate.e_score_correction_bias", { config.n_routed_experts }, "F32")
   mlp(model, config, prefix .. "mlp.shared_experts.", config.n_shared_experts * wide)
   whole_blocks(config, host.divide(wide, model.place.moe_tp, "columns of an expert"), "columns of an expert")
   for _, form in ipairs(forms_of(config)) do
      local experts, ending = prefix .. "mlp." .. (config.live_experts or "experts"), form.ending:gsub("^%.", "")
      model:experts(experts .. ".w13_" .. ending, experts .. ".w2_" .. ending, config.n_routed_experts, in_blocks(wide, form.rows),
         in_blocks(hidden, form.columns), form.dtype)
   end
end

local parts = llama.parts({
   tensors_of_attention = add_attention, tensors_of_mlp = add_rest, attention = build_attention, mlp = build_rest,
})

local function drafting_layers(config)
   return config.num_hidden_layers, config.num_hidden_layers + (config.num_nextn_predict_layers or 0) - 1
end

local function checkpoint(config)
   local list = llama.tensors(config, parts)
   local first, last = drafting_layers(config)
   for layer = first, last do
      add_drafter(function(name, shape, dtype)
         list[#list + 1] = { name, shape, dtype }
      end, config, ("model.layers.%d."):format(layer), layer)
   end
   return list
end

local beside_block = { embed_tokens = true, enorm = true, hnorm = true, eh_proj = true, shared_head = true }

-- The drafter is a model of its own, on the last stage: one block inside mtp_block, and beside it what only drafting needs.
local function build_drafter(model, config, layer)
   local prefix, hidden = ("model.layers.%d."):format(layer), config.hidden_size
   model:vocabulary(prefix .. "embed_tokens.weight", config.vocab_size, hidden)
   model:replicated(prefix .. "enorm.weight", { hidden })
   model:replicated(prefix .. "hnorm.weight", { hidden })
   model:replicated(prefix .. "eh_proj.weight", { hidden, 2 * hidden })
   local block = prefix .. "mtp_block."
   for _, norm in ipairs(llama.norms) do
      model:replicated(block .. norm .. ".weight", { hidden })
   end
   build_attention(model, block .. "self_attn.", config)
   build_rest(model, block, config, layer)
   model:replicated(prefix .. "shared_head.norm.weight", { hidden })
   model:vocabulary(prefix .. "shared_head.head.weight", config.vocab_size, hidden)
end

local function build(model, config)
   llama.decoder(model, config, parts)
   local first, last = drafting_layers(config)
   for layer = first, config.serves_mtp and model:is_last() and last or first - 1 do
      build_drafter(model, config, layer)
   end
end

local function target(name, config)
   local layer, rest = name:match("^model%.layers%.(%d+)%.(.*)$")
   if layer and tonumber(layer) >= config.num_hidden_layers then
      if not config.serves_mtp then
         return nil
      end
      name = ("model.layers.%s.%s%s"):format(layer, beside_block[rest:match("^[^.]*")] and "" or "mtp_block.", rest)
   end
   local block, expert, part, ending = name:match("^(.*%.)experts%.(%d+)%.([%w_]+)%.([%w_]+)$")
   if block then
      local stack = part == "down_proj" and "w2_" or "w13_"
      local shard = part == "gate_proj" and "w1" or part == "up_proj" and "w3" or "w2"
      return ("%s%s.%s%s"):format(block, config.live_experts or "experts", stack, ending), shard, tonumber(expert)
   end
   local before, latent, form = name:match("^(.*%.)([%w_]+)%.([%w_]+)$")
   if latent == "q_a_proj" or latent == "kv_a_proj_with_mqa" then
      return before .. "fused_qkv_a_proj." .. form, latent == "q_a_proj" and 1 or 2
   end
   return llama.target(name, config)
end

deepseek.deepseek_v3 = { checkpoint = checkpoint, build = build, target = target }

return deepseek
