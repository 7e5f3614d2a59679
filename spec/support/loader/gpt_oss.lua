--- GPT-OSS in bf16: experts whose matrices are transposed on disk and whose gate and up take turns, biases everywhere, a sink for each
-- head. An expert's units are cut in equal parts, rounded up; behind its last unit a worker's part is zero.

local host = require "spec.support.loader.host"
local llama = require "spec.support.loader.llama"

local gpt_oss = {}

local function add_attention(add, prefix, config)
   local heads, kv_heads, d, hidden = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
   for name, rows in pairs({ q_proj = heads * d, k_proj = kv_heads * d, v_proj = kv_heads * d }) do
      add(prefix .. name .. ".weight", { rows, hidden })
      add(prefix .. name .. ".bias", { rows })
   end
   add(prefix .. "o_proj.weight", { hidden, heads * d })
   add(prefix .. "o_proj.bias", { hidden })
   add(prefix .. "sinks", { heads })
end

local function add_experts(add, prefix, config)
   local experts, units, hidden = config.num_local_experts, config.intermediate_size, config.hidden_size
   add(prefix .. "mlp.router.weight", { experts, hidden })
   add(prefix .. "mlp.router.bias", { experts })
   add(prefix .. "mlp.experts.gate_up_proj", { experts, hidden, 2 * units })
   add(prefix .. "mlp.experts.gate_up_proj_bias", { experts, 2 * units })
   add(prefix .. "mlp.experts.down_proj", { experts, units, hidden })
   add(prefix .. "mlp.experts.down_proj_bias", { experts, hidden })
end

local function build_attention(model, prefix, config)
   local heads, kv_heads, d, hidden = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
   prefix = prefix:gsub("%.self_attn%.$", ".attn.")
   local qkv = prefix .. (config.live_qkv or "qkv_proj")
   model:qkv(qkv .. ".weight", heads, kv_heads, d, { hidden })
   model:qkv(qkv .. ".bias", heads, kv_heads, d, {})
   model:row(prefix .. "o_proj.weight", hidden, heads * d)
   model:replicated(prefix .. "o_proj.bias", { hidden })
   model:column(prefix .. "sinks", heads, {})
end

-- Makes one stack of this worker's experts; load(slab, one) loads one expert's part.
local function stack(model, name, experts, shape, load)
   local first, count = model:local_experts(experts)
   return model:parameter(name, { count, unpack(shape) }, function(live, loaded)
      host.each_expert(first, count, live, loaded, nil, load)
   end)
end

local function build_experts(model, prefix, config)
   local experts, units, hidden = config.num_local_experts, config.intermediate_size, config.hidden_size
   local parts, r = model.place.moe_tp, model.place.moe_tp_rank
   local mine = math.ceil(units / parts)
   local from = math.min(r * mine, units)
   local real = math.min(mine, units - from)
   local base = prefix .. "mlp." .. (config.live_experts or "experts") .. "."
   model:replicated(prefix .. "mlp.router.weight", { experts, hidden })
   model:replicated(prefix .. "mlp.router.bias", { experts })
   local w13 = stack(model, base .. "w13_weight", experts, { 2 * mine, hidden }, function(slab, one)
      slab:narrow(0, 0, 2 * real):copy(one:narrow(1, 2 * from, 2 * real):transpose(0, 1))
   end)
   local w13_bias = stack(model, base .. "w13_bias", experts, { 2 * mine }, function(slab, one)
      slab:narrow(0, 0, 2 * real):copy(one:narrow(0, 2 * from, 2 * real))
   end)
   local w2 = stack(model, base .. "w2_weight", experts, { hidden, mine }, function(slab, one)
      slab:narrow(1, 0, real):copy(one:narrow(0, from, real):transpose(0, 1))
   end)
   w13:narrow(1, 2 * real, 2 * (mine - real)):pad()
   w13_bias:narrow(1, 2 * real, 2 * (mine - real)):pad()
   w2:narrow(2, real, mine - real):pad()
   -- The workers' results are added up: one of them brings the bias.
   local w2_bias = stack(model, base .. "w2_bias", experts, { hidden }, function(slab, one)
      if r == 0 then
         slab:copy(one)
      end
   end)
   if r > 0 then
      w2_bias:pad()
   end
end

local parts = llama.parts({
   every_stage = true, tensors_of_attention = add_attention, tensors_of_mlp = add_experts, attention = build_attention,
   mlp = build_experts, embedding = "model.embedding",
})

local stacks = {
   gate_up_proj = "w13_weight", gate_up_proj_bias = "w13_bias", down_proj = "w2_weight", down_proj_bias = "w2_bias",
}

local function target(name, config)
   local block, stacked = name:match("^(.*%.mlp%.)experts%.([%w_]+)$")
   if block then
      return block .. (config.live_experts or "experts") .. "." .. stacks[stacked]
   end
   local attention, part, kind = name:match("^(.*)%.self_attn%.([qkv])_proj%.(%w+)$")
   if attention then
      return ("%s.attn.%s.%s"):format(attention, config.live_qkv or "qkv_proj", kind), part
   end
   return (name:gsub("%.self_attn%.", ".attn."):gsub("%.embed_tokens%.", ".embedding."))
end

gpt_oss.gpt_oss = llama.family(parts)
gpt_oss.gpt_oss.target = target

return gpt_oss
