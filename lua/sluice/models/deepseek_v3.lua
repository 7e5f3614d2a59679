--- DeepSeek-V3 and R1: attention through latents, a shared MLP beside the experts, the first layers dense, drafting layers (MTP)
-- behind the last. In fp8 a linear layer is two tensors, the weight and the scales of its blocks: the same geometry twice, the
-- second time counted in blocks.

local check = require "sluice.models.check"
local decoder = require "sluice.models.decoder"
local serving = require "sluice.models.serving"

local ceil = math.ceil

-- The linear layers by what the checkpoint calls them, [out, in].
local function linear_shapes(config)
   local hidden, heads, nope = config.hidden_size, config.num_attention_heads, config.qk_nope_head_dim
   local dense, shared, one = config.intermediate_size, config.moe_intermediate_size * (config.n_shared_experts or 0),
      config.moe_intermediate_size
   local q = heads * (nope + config.qk_rope_head_dim)
   return {
      q_proj = { q, hidden }, q_a_proj = config.q_lora_rank and { config.q_lora_rank, hidden },
      q_b_proj = config.q_lora_rank and { q, config.q_lora_rank },
      kv_a_proj_with_mqa = { config.kv_lora_rank + config.qk_rope_head_dim, hidden },
      kv_b_proj = { heads * (nope + config.v_head_dim), config.kv_lora_rank }, o_proj = { hidden, heads * config.v_head_dim },
      up = { dense, hidden }, down = { hidden, dense }, shared_up = { shared, hidden }, shared_down = { hidden, shared },
      expert_up = { one, hidden }, expert_down = { hidden, one },
   }
end

-- What each linear layer is made of: the ending of its name, its dtype, and the shapes above in its unit.
local function forms_of(config)
   local quantized, shapes = config.quantization_config, linear_shapes(config)
   if not quantized then
      return { { ending = "weight", shapes = shapes } }
   end
   local block, in_blocks = quantized.weight_block_size, {}
   for name, shape in pairs(shapes) do
      in_blocks[name] = shape and { ceil(shape[1] / block[1]), ceil(shape[2] / block[2]) }
   end
   return {
      { ending = "weight", dtype = "float8_e4m3fn", shapes = shapes },
      { ending = "weight_scale_inv", dtype = "float32", shapes = in_blocks },
   }
end

local function complete(config)
   config.num_experts = config.n_routed_experts
   config.drafting_layers = config.num_nextn_predict_layers or 0
   if config.num_hidden_layers < config.all_layers then -- a model cut short has nothing to draft from
      config.all_layers, config.drafting_layers = config.all_layers + config.drafting_layers, 0
   end
   config.forms = forms_of(config)
   --- Whether a layer has experts in place of one MLP.
   function config.is_sparse(layer)
      return layer >= (config.first_k_dense_replace or 0) and layer % (config.moe_layer_freq or 1) == 0
   end
end

-- A part of a quantized weight that begins or ends inside a block has no scales of its own.
local function check_blocks(config, sizes)
   local block = config.quantization_config.weight_block_size
   local rows, columns = block[1], block[2]
   local function whole(what, size, unit)
      if size % unit ~= 0 then
         check.fail("%s of a worker (%d) must be a whole number of blocks of %d", what, size, unit)
      end
   end
   local tp, v, nope = sizes.tp, config.v_head_dim, config.qk_nope_head_dim
   local heads, dense = config.num_attention_heads / tp, config.intermediate_size / tp
   local one = config.moe_intermediate_size / sizes.moe_tp
   local shared = config.moe_intermediate_size * (config.n_shared_experts or 0) / tp
   whole("q_lora_rank", config.q_lora_rank or 0, rows)
   whole("the MLP", dense, rows)
   whole("the shared experts", shared, rows)
   whole("an expert", one, rows)
   if tp > 1 then
      whole("the queries", heads * (nope + config.qk_rope_head_dim), rows)
      whole("the keys and values", heads * (nope + v), rows)
      whole("the attention's output", heads * v, columns)
      whole("the MLP", dense, columns)
      whole("the shared experts", shared, columns)
   end
   if sizes.moe_tp > 1 then
      whole("an expert", one, columns)
   end
end

local function check_workers(config, part)
   local sizes = serving.sizes(part)
   serving.check_divides(config, "num_attention_heads", sizes.tp, "tp")
   serving.check_divides(config, "intermediate_size", sizes.tp, "tp")
   if config.n_shared_experts then
      serving.check_divides(config, "moe_intermediate_size", sizes.tp, "tp")
   end
   serving.check_divides(config, "moe_intermediate_size", sizes.moe_tp, "expert tp")
   if config.quantization_config then
      check_blocks(config, sizes)
   end
   serving.check_whole(config, sizes, "n_routed_experts")
end

-- ---- the checkpoint ----

-- The parameters of one layer; stage: where the trainer's pipeline has it.
local function add_layer(add, config, prefix, stage, is_sparse)
   local function linear(name, key, kind)
      for _, form in ipairs(config.forms) do
         add(prefix .. name .. "." .. form.ending, form.shapes[key], kind, stage, form.dtype)
      end
   end
   local function norm(name, extent)
      add(prefix .. name .. ".weight", { extent }, "replicated", stage)
   end
   local function mlp(name, up, down)
      linear(name .. ".gate_proj", up, "column")
      linear(name .. ".up_proj", up, "column")
      linear(name .. ".down_proj", down, "row")
   end
   local function expert(number, name, key, kind)
      for _, form in ipairs(config.forms) do
         local full_name = ("%smlp.experts.%d.%s.%s"):format(prefix, number, name, form.ending)
         add.expert(full_name, form.shapes[key], kind, stage, number, form.dtype)
      end
   end
   if config.q_lora_rank then
      linear("self_attn.q_a_proj", "q_a_proj", "replicated")
      norm("self_attn.q_a_layernorm", config.q_lora_rank)
      linear("self_attn.q_b_proj", "q_b_proj", "column")
   else
      linear("self_attn.q_proj", "q_proj", "column")
   end
   linear("self_attn.kv_a_proj_with_mqa", "kv_a_proj_with_mqa", "replicated")
   norm("self_attn.kv_a_layernorm", config.kv_lora_rank)
   linear("self_attn.kv_b_proj", "kv_b_proj", "column")
   linear("self_attn.o_proj", "o_proj", "row")
   if is_sparse then
      add(prefix .. "mlp.gate.weight", { config.num_experts, config.hidden_size }, "replicated", stage)
      add(prefix .. "mlp.gate.e_score_correction_bias", { config.num_experts }, "replicated", stage, "float32")
      if config.n_shared_experts then
         mlp("mlp.shared_experts", "shared_up", "shared_down")
      end
      for number = 0, config.num_experts - 1 do
         expert(number, "gate_proj", "expert_up", "column")
         expert(number, "up_proj", "expert_up", "column")
         expert(number, "down_proj", "expert_down", "row")
      end
   else
      mlp("mlp", "up", "down")
   end
   norm("input_layernorm", config.hidden_size)
   norm("post_attention_layernorm", config.hidden_size)
end

local function add_drafting(add, config, prefix)
   local hidden, vocabulary = { config.hidden_size }, { config.vocab_size, config.hidden_size }
   add(prefix .. "embed_tokens.weight", vocabulary, "column", "last")
   add(prefix .. "enorm.weight", hidden, "replicated", "last")
   add(prefix .. "hnorm.weight", hidden, "replicated", "last")
   add(prefix .. "eh_proj.weight", { config.hidden_size, 2 * config.hidden_size }, "replicated", "last")
   add_layer(add, config, prefix, "last", true)
   add(prefix .. "shared_head.norm.weight", hidden, "replicated", "last")
   add(prefix .. "shared_head.head.weight", vocabulary, "column", "last")
end

local function params(config, add)
   decoder.params(config, add, function(prefix, layer)
      add_layer(add, config, prefix, layer, config.is_sparse(layer))
   end)
   for i = 0, config.drafting_layers - 1 do
      add_drafting(add, config, ("model.layers.%d."):format(config.num_hidden_layers + i))
   end
end

-- ---- a worker ----

local function live_mlp(worker, form, prefix, up, down)
   local sources = { prefix .. "gate_proj." .. form.ending, prefix .. "up_proj." .. form.ending }
   worker:merged(prefix .. "gate_up_proj." .. form.ending, sources, form.shapes[up], "merged_column", form.dtype)
   worker:part(prefix .. "down_proj." .. form.ending, form.shapes[down], 1, form.dtype)
end

local function live_attention(worker, config, form, prefix)
   local ending, shapes, dtype = "." .. form.ending, form.shapes, form.dtype
   local kv_a = prefix .. "kv_a_proj_with_mqa" .. ending
   if config.q_lora_rank then
      worker:joined(prefix .. "fused_qkv_a_proj" .. ending,
         { { prefix .. "q_a_proj" .. ending, shapes.q_a_proj }, { kv_a, shapes.kv_a_proj_with_mqa } }, "replicated", dtype)
      worker:part(prefix .. "q_b_proj" .. ending, shapes.q_b_proj, 0, dtype)
   else
      worker:part(prefix .. "q_proj" .. ending, shapes.q_proj, 0, dtype)
      worker:whole(kv_a, shapes.kv_a_proj_with_mqa, "replicated", dtype)
   end
   worker:part(prefix .. "kv_b_proj" .. ending, shapes.kv_b_proj, 0, dtype)
   worker:part(prefix .. "o_proj" .. ending, shapes.o_proj, 1, dtype)
end

local function live_experts(worker, config, form, prefix)
   local base, live = prefix .. "experts", prefix .. config.live_experts
   worker:stack(live .. ".w13_" .. form.ending, base, { "gate_proj." .. form.ending, "up_proj." .. form.ending },
      form.shapes.expert_up, 0, form.dtype)
   worker:stack(live .. ".w2_" .. form.ending, base, { "down_proj." .. form.ending }, form.shapes.expert_down, 1, form.dtype)
end

local function live_layer(worker, config, prefix, is_sparse)
   for _, form in ipairs(config.forms) do
      live_attention(worker, config, form, prefix .. "self_attn.")
      if not is_sparse then
         live_mlp(worker, form, prefix .. "mlp.", "up", "down")
      else
         live_experts(worker, config, form, prefix .. "mlp.")
         if config.n_shared_experts then
            live_mlp(worker, form, prefix .. "mlp.shared_experts.", "shared_up", "shared_down")
         end
      end
   end
   if config.q_lora_rank then
      worker:whole(prefix .. "self_attn.q_a_layernorm.weight", { config.q_lora_rank })
   end
   worker:whole(prefix .. "self_attn.kv_a_layernorm.weight", { config.kv_lora_rank })
   if is_sparse then
      worker:whole(prefix .. "mlp.gate.weight", { config.num_experts, config.hidden_size }, "replicated")
      worker:whole(prefix .. "mlp.gate.e_score_correction_bias", { config.num_experts }, nil, "float32")
   end
   worker:whole(prefix .. "input_layernorm.weight", { config.hidden_size })
   worker:whole(prefix .. "post_attention_layernorm.weight", { config.hidden_size })
end

-- The drafter's layer is a block of its own inside, mtp_block; what only drafting needs stands beside it.
local function live_drafting(worker, config, prefix)
   local from = #worker.list
   live_layer(worker, config, prefix, true)
   for i = from + 1, #worker.list do
      local held = worker.list[i]
      held.name = prefix .. "mtp_block." .. held.name:sub(#prefix + 1)
   end
   local hidden = { config.hidden_size }
   worker:vocabulary(prefix .. "embed_tokens.weight", config.vocab_size, config.hidden_size)
   worker:whole(prefix .. "enorm.weight", hidden)
   worker:whole(prefix .. "hnorm.weight", hidden)
   worker:whole(prefix .. "eh_proj.weight", { config.hidden_size, 2 * config.hidden_size })
   worker:whole(prefix .. "shared_head.norm.weight", hidden)
   worker:vocabulary(prefix .. "shared_head.head.weight", config.vocab_size, config.hidden_size)
end

local function live(config, worker)
   decoder.live(config, worker, function(prefix, layer)
      live_layer(worker, config, prefix, config.is_sparse(layer))
   end)
   for i = 0, worker.is_last and config.mtp == "served" and config.drafting_layers - 1 or -1 do
      live_drafting(worker, config, ("model.layers.%d."):format(config.num_hidden_layers + i))
   end
end

-- What a host of this family says of itself beyond what every host says.
local function host(config)
   local quantized = config.quantization_config
   return {
      quantization = quantized and "fp8", weight_block_size = quantized and quantized.weight_block_size,
      q_lora_rank = config.q_lora_rank, kv_lora_rank = config.kv_lora_rank, qk_nope_head_dim = config.qk_nope_head_dim,
      qk_rope_head_dim = config.qk_rope_head_dim, v_head_dim = config.v_head_dim, n_shared_experts = config.n_shared_experts,
      head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim,
      num_nextn_predict_layers = config.drafting_layers, serves_mtp = config.mtp == "served",
   }
end

return {
   architecture = "DeepseekV3ForCausalLM", dtype = "bfloat16", layer_pattern = "^model%.layers%.(%d+)%.",
   choices = { "live_experts", "mtp" },
   keys = {
      "num_hidden_layers", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads",
      "num_key_value_heads", "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "moe_layer_freq", "q_lora_rank", "kv_lora_rank",
      "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "vocab_size", "num_nextn_predict_layers", "tie_word_embeddings",
      "quantization_config",
   },
   required = {
      "num_hidden_layers", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_attention_heads", "n_routed_experts",
      "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "vocab_size",
   },
   complete = complete, check_workers = check_workers, settle = decoder.settle, params = params, live = live, host = host,
}
