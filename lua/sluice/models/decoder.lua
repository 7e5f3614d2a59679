--- The decoder that the Llama and Qwen3 families share: its parameters as a checkpoint names them, and what a worker holds.
-- A family says what it adds: qk_norm, experts.

local check = require "sluice.models.check"
local serving = require "sluice.models.serving"

local decoder = {}

local dense_keys = {
   "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
   "vocab_size", "tie_word_embeddings", "announce_tied", "attention_bias",
}
local expert_keys = { "num_experts", "moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step" }
local dense_required = {
   "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
}

local function joined(a, b)
   local all = { unpack(a) }
   for _, item in ipairs(b) do
      all[#all + 1] = item
   end
   return all
end

-- Fills in what a published configuration may leave out, and checks what no serving host could hold.
local function complete(config)
   if config.head_dim == nil then
      if config.hidden_size % config.num_attention_heads ~= 0 then
         check.fail("model.config.hidden_size (%d) must divide by num_attention_heads (%d) where head_dim is not given",
            config.hidden_size, config.num_attention_heads)
      end
      config.head_dim = config.hidden_size / config.num_attention_heads
   end
   if config.num_attention_heads % config.num_key_value_heads ~= 0 then
      check.fail("model.config.num_attention_heads (%d) must divide by num_key_value_heads (%d)",
         config.num_attention_heads, config.num_key_value_heads)
   end
   if config.announce_tied and not config.tie_word_embeddings then
      check.fail("model.config.announce_tied (true) is for tie_word_embeddings = true")
   end
   local dense = {}
   for _, layer in ipairs(config.mlp_only_layers or {}) do
      dense[layer] = true
   end
   local step = config.decoder_sparse_step or 1
   --- Whether a layer has experts in place of one MLP.
   function config.is_sparse(layer)
      return config.num_experts ~= nil and not dense[layer] and (layer + 1) % step == 0
   end
end

-- What the workers' meshes ask of the sizes.
local function check_workers(config, part)
   local sizes = serving.sizes(part)
   local tp, kv_heads = sizes.tp, config.num_key_value_heads
   serving.check_divides(config, "num_attention_heads", tp, "tp")
   if tp % kv_heads ~= 0 and kv_heads % tp ~= 0 then
      check.fail("model.config.num_key_value_heads (%d) must divide by the workers' tp (%d), or tp by it", kv_heads, tp)
   end
   serving.check_divides(config, "intermediate_size", tp, "tp")
   if config.num_experts then
      serving.check_divides(config, "moe_intermediate_size", sizes.moe_tp, "expert tp")
   end
   serving.check_whole(config, sizes)
end

local function add_attention(add, config, prefix, layer, shapes, qk_norm)
   add(prefix .. "q_proj.weight", shapes.q, "column", layer)
   add(prefix .. "k_proj.weight", shapes.kv, "column", layer)
   add(prefix .. "v_proj.weight", shapes.kv, "column", layer)
   add(prefix .. "o_proj.weight", shapes.o, "row", layer)
   if config.attention_bias then
      add(prefix .. "q_proj.bias", shapes.q_bias, "column", layer)
      add(prefix .. "k_proj.bias", shapes.kv_bias, "column", layer)
      add(prefix .. "v_proj.bias", shapes.kv_bias, "column", layer)
      add(prefix .. "o_proj.bias", shapes.hidden, "replicated", layer)
   end
   if qk_norm then
      add(prefix .. "q_norm.weight", shapes.head, "replicated", layer)
      add(prefix .. "k_norm.weight", shapes.head, "replicated", layer)
   end
end

local function add_experts(add, config, prefix, layer, shapes)
   add(prefix .. "gate.weight", shapes.router, "replicated", layer)
   if config.experts == "packed" then
      add.packed(prefix .. "experts.gate_up_proj", shapes.packed_up, "packed_column", layer)
      add.packed(prefix .. "experts.down_proj", shapes.packed_down, "packed_row", layer)
      return
   end
   for expert = 0, config.num_experts - 1 do
      local name = prefix .. "experts." .. expert
      add.expert(name .. ".gate_proj.weight", shapes.expert_up, "column", layer, expert)
      add.expert(name .. ".up_proj.weight", shapes.expert_up, "column", layer, expert)
      add.expert(name .. ".down_proj.weight", shapes.expert_down, "row", layer, expert)
   end
end

local function shapes_of(config)
   local hidden, d = config.hidden_size, config.head_dim
   local q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
   local im, experts = config.moe_intermediate_size, config.num_experts
   return {
      hidden = { hidden }, head = { d },
      q = { q, hidden }, kv = { kv, hidden }, o = { hidden, q }, q_bias = { q }, kv_bias = { kv },
      up = { config.intermediate_size, hidden }, down = { hidden, config.intermediate_size },
      router = experts and { experts, hidden },
      expert_up = experts and { im, hidden }, expert_down = experts and { hidden, im },
      packed_up = experts and { experts, 2 * im, hidden }, packed_down = experts and { experts, hidden, im },
   }
end

--- The checkpoint's parameters, in the order of the model's definition; add_layer(prefix, layer) adds those of one layer.
function decoder.params(config, add, add_layer)
   local vocabulary, hidden = { config.vocab_size, config.hidden_size }, { config.hidden_size }
   add("model.embed_tokens.weight", vocabulary, "column", "first")
   for layer = 0, config.num_hidden_layers - 1 do
      add_layer(("model.layers.%d."):format(layer), layer)
   end
   add("model.norm.weight", hidden, "replicated", "last")
   if not config.tie_word_embeddings or config.announce_tied then
      add("lm_head.weight", vocabulary, "column", "last")
   end
end

local function params(config, add, qk_norm)
   local shapes = shapes_of(config)
   decoder.params(config, add, function(prefix, layer)
      add_attention(add, config, prefix .. "self_attn.", layer, shapes, qk_norm)
      if config.is_sparse(layer) then
         add_experts(add, config, prefix .. "mlp.", layer, shapes)
      else
         add(prefix .. "mlp.gate_proj.weight", shapes.up, "column", layer)
         add(prefix .. "mlp.up_proj.weight", shapes.up, "column", layer)
         add(prefix .. "mlp.down_proj.weight", shapes.down, "row", layer)
      end
      add(prefix .. "input_layernorm.weight", shapes.hidden, "replicated", layer)
      add(prefix .. "post_attention_layernorm.weight", shapes.hidden, "replicated", layer)
   end)
end

local function names(prefix, parts, suffix)
   local list = {}
   for i, part in ipairs(parts) do
      list[i] = prefix .. part .. suffix
   end
   return list
end

local function live_attention(worker, config, prefix, shapes, qk_norm)
   local heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
   local parts = { "q_proj.", "k_proj.", "v_proj." }
   worker:qkv(prefix .. "qkv_proj.weight", names(prefix, parts, "weight"), heads, kv_heads, d, shapes.hidden)
   worker:part(prefix .. "o_proj.weight", shapes.o, 1)
   if config.attention_bias then
      worker:qkv(prefix .. "qkv_proj.bias", names(prefix, parts, "bias"), heads, kv_heads, d, {})
      worker:whole(prefix .. "o_proj.bias", shapes.hidden, "replicated")
   end
   if qk_norm then
      worker:whole(prefix .. "q_norm.weight", shapes.head)
      worker:whole(prefix .. "k_norm.weight", shapes.head)
   end
end

--- What one worker holds; live_layer(prefix, layer) adds what it holds of one layer. A tied head is the embedding itself, which
-- the last stage then holds, too.
function decoder.live(config, worker, live_layer)
   if worker.is_first or (worker.is_last and config.tie_word_embeddings) then
      worker:vocabulary("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
   end
   for layer = worker.first_layer, worker.last_layer do
      live_layer(("model.layers.%d."):format(layer), layer)
   end
   if worker.is_last then
      worker:whole("model.norm.weight", { config.hidden_size })
      if not config.tie_word_embeddings then
         worker:vocabulary("lm_head.weight", config.vocab_size, config.hidden_size)
      end
   end
end

local function live(config, worker, qk_norm)
   local shapes, hidden = shapes_of(config), config.hidden_size
   decoder.live(config, worker, function(prefix, layer)
      live_attention(worker, config, prefix .. "self_attn.", shapes, qk_norm)
      if config.is_sparse(layer) then
         worker:whole(prefix .. "mlp.gate.weight", shapes.router, "replicated")
         worker:experts(prefix .. "mlp.experts", prefix .. "mlp." .. config.live_experts, config.moe_intermediate_size, hidden,
            config.experts == "packed")
      else
         worker:merged(prefix .. "mlp.gate_up_proj.weight", names(prefix .. "mlp.", { "gate_proj.", "up_proj." }, "weight"),
            shapes.up, "merged_column")
         worker:part(prefix .. "mlp.down_proj.weight", shapes.down, 1)
      end
      worker:whole(prefix .. "input_layernorm.weight", shapes.hidden)
      worker:whole(prefix .. "post_attention_layernorm.weight", shapes.hidden)
   end)
end

--- What a checkpoint decides by holding a tensor or not.
function decoder.settle(config, holds)
   config.announce_tied = config.tie_word_embeddings and holds["lm_head.weight"] or false
end

--- A family made of this decoder. options: architecture, qk_norm, experts.
function decoder.family(options)
   return {
      architecture = options.architecture, dtype = "bfloat16",
      choices = options.experts and { "experts", "live_experts" } or nil,
      layer_pattern = "^model%.layers%.(%d+)%.",
      keys = options.experts and joined(dense_keys, expert_keys) or dense_keys,
      required = options.experts and joined(dense_required, { "num_experts", "moe_intermediate_size" }) or dense_required,
      complete = complete, check_workers = check_workers,
      settle = decoder.settle,
      params = function(config, add) return params(config, add, options.qk_norm) end,
      live = function(config, worker) return live(config, worker, options.qk_norm) end,
   }
end

return decoder
