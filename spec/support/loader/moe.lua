--- Qwen3-MoE and Mixtral: a decoder whose layers have experts in the place of the MLP.

local llama = require "spec.support.loader.llama"

local moe = {}

-- How the two call their parts: the router, the experts, and each expert's matrices.
local names = {
   qwen3_moe = { block = "mlp.", gate = "gate_proj", up = "up_proj", down = "down_proj" },
   mixtral = { block = "block_sparse_moe.", gate = "w1", up = "w3", down = "w2" },
}

local function experts_of(config)
   return config.num_experts or config.num_local_experts
end

local function width_of(config)
   return config.moe_intermediate_size or config.intermediate_size
end

-- Some layers of Qwen3-MoE are dense.
local function is_dense(config, layer)
   for _, dense in ipairs(config.mlp_only_layers or {}) do
      if dense == layer then
         return true
      end
   end
   return (layer + 1) % (config.decoder_sparse_step or 1) ~= 0
end

local function tensors(add, prefix, config, layer)
   local called = names[config.model_type]
   local experts, wide, hidden = experts_of(config), width_of(config), config.hidden_size
   if is_dense(config, layer) then
      return llama.mlp_tensors(add, prefix .. "mlp.", config.intermediate_size, hidden)
   end
   if config.packed then -- in both by the names of Qwen3-MoE
      add(prefix .. "mlp.gate.weight", { experts, hidden })
      add(prefix .. "mlp.experts.gate_up_proj", { experts, 2 * wide, hidden })
      add(prefix .. "mlp.experts.down_proj", { experts, hidden, wide })
      return nil
   end
   add(prefix .. called.block .. "gate.weight", { experts, hidden })
   for e = 0, experts - 1 do
      local name = ("%s%sexperts.%d."):format(prefix, called.block, e)
      add(name .. called.gate .. ".weight", { wide, hidden })
      add(name .. called.up .. ".weight", { wide, hidden })
      add(name .. called.down .. ".weight", { hidden, wide })
   end
end

local function build(model, prefix, config, layer)
   local called, hidden = names[config.model_type], config.hidden_size
   if is_dense(config, layer) then
      return llama.build_mlp(model, prefix .. "mlp.", config.intermediate_size, hidden)
   end
   local experts = prefix .. called.block .. (config.live_experts or "experts")
   model:replicated(prefix .. called.block .. "gate.weight", { experts_of(config), hidden })
   model:experts(experts .. ".w13_weight", experts .. ".w2_weight", experts_of(config), width_of(config), hidden)
end

local function target(name, config)
   local called, live = names[config.model_type], config.live_experts or "experts"
   if config.model_type == "mixtral" then
      name = name:gsub("%.mlp%.", ".block_sparse_moe.")
   end
   local block, expert, part = name:match("^(.*%.)experts%.(%d+)%.([%w_]+)%.weight$")
   if block then
      local shard = part == called.gate and "w1" or part == called.up and "w3" or "w2"
      return block .. live .. (shard == "w2" and ".w2_weight" or ".w13_weight"), shard, tonumber(expert)
   end
   block, part = name:match("^(.*%.)experts%.([%w_]+)$")
   if block then
      local up = part == "gate_up_proj"
      return block .. live .. (up and ".w13_weight" or ".w2_weight"), up and "w13" or "w2"
   end
   return llama.target(name, config)
end

local family = llama.family(llama.parts({ every_stage = true, tensors_of_mlp = tensors, mlp = build }))
family.target = target

moe.qwen3_moe, moe.mixtral = family, family

return moe
