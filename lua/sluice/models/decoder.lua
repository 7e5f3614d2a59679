--- The decoder that Llama and most families after it share: its parameters as a checkpoint names them, and what a worker
-- holds. A family says in its form what it has otherwise (decoder.family).

local check = require "sluice.models.check"
local serving = require "sluice.models.serving"

local decoder = {}

local keys = {
   "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
   "vocab_size", "tie_word_embeddings", "announce_tied",
}
local required = {
   "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
}

local function joined(a, b)
   local all = { unpack(a) }
   for _, item in ipairs(b) do
      all[#all + 1] = item
   end
   return all
end

local function check_tied(config, form)
   if config.tie_word_embeddings == nil then
      config.tie_word_embeddings = form.tied or false
   elseif form.tied and not config.tie_word_embeddings then
      check.fail("model.config.tie_word_embeddings (false) must be true: %s has no head of its own", form.architecture)
   end
   if config.announce_tied and not config.tie_word_embeddings then
      check.fail("model.config.announce_tied (true) is for tie_word_embeddings = true")
   end
end

local function complete_experts(config, form)
   if form.experts then
      config.num_experts, config.moe_intermediate_size = config[form.experts.count], config[form.experts.width]
   end
   local dense = {}
   for _, layer in ipairs(config.mlp_only_layers or {}) do
      dense[layer] = true
   end
   local step = config.decoder_sparse_step or 1
   --- Whether a layer has experts in place of one MLP.
   function config.is_sparse(layer)
      return form.experts ~= nil and not dense[layer] and (layer + 1) % step == 0
   end
end

-- Fills in what a published configuration may leave out, and checks what no serving host could hold.
local function complete(config, form)
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
   check_tied(config, form)
   complete_experts(config, form)
end

--- Fails unless heads are cut whole; KV heads may be repeated instead.
function decoder.check_heads(config, tp)
   local kv_heads = config.num_key_value_heads
   serving.check_divides(config, "num_attention_heads", tp, "tp")
   if tp % kv_heads ~= 0 and kv_heads % tp ~= 0 then
      check.fail("model.config.num_key_value_heads (%d) must divide by the workers' tp (%d), or tp by it", kv_heads, tp)
   end
end

-- What the workers' meshes ask of the sizes.
local function check_workers(config, part, form)
   local sizes = serving.sizes(part)
   decoder.check_heads(config, sizes.tp)
   serving.check_divides(config, "intermediate_size", sizes.tp, "tp")
   if form.experts then
      serving.check_divides(config, form.experts.width, sizes.moe_tp, "expert tp")
   end
   serving.check_whole(config, sizes, form.experts and form.experts.count)
end

local function has_bias(config, form)
   return form.qkv_bias or config.attention_bias
end

local function add_attention(add, config, prefix, layer, shapes, form)
   if form.fused then
      add(prefix .. "qkv_proj.weight", shapes.qkv, "column", layer)
   else
      add(prefix .. "q_proj.weight", shapes.q, "column", layer)
      add(prefix .. "k_proj.weight", shapes.kv, "column", layer)
      add(prefix .. "v_proj.weight", shapes.kv, "column", layer)
   end
   add(prefix .. "o_proj.weight", shapes.o, "row", layer)
   if has_bias(config, form) then
      add(prefix .. "q_proj.bias", shapes.q_bias, "column", layer)
      add(prefix .. "k_proj.bias", shapes.kv_bias, "column", layer)
      add(prefix .. "v_proj.bias", shapes.kv_bias, "column", layer)
   end
   if config.attention_bias then
      add(prefix .. "o_proj.bias", shapes.hidden, "replicated", layer)
   end
   if form.qk_norm then
      add(prefix .. "q_norm.weight", shapes.head, "replicated", layer)
      add(prefix .. "k_norm.weight", shapes.head, "replicated", layer)
   end
end

local function add_mlp(add, config, prefix, layer, shapes, form)
   if form.fused then
      add(prefix .. "gate_up_proj.weight", shapes.gate_up, "column", layer)
   else
      add(prefix .. "gate_proj.weight", shapes.up, "column", layer)
      add(prefix .. "up_proj.weight", shapes.up, "column", layer)
   end
   add(prefix .. "down_proj.weight", shapes.down, "row", layer)
   if config.mlp_bias then
      add(prefix .. "gate_proj.bias", shapes.up_bias, "column", layer)
      add(prefix .. "up_proj.bias", shapes.up_bias, "column", layer)
      add(prefix .. "down_proj.bias", shapes.hidden, "replicated", layer)
   end
end

-- Where a layer's experts and their router are named, in the checkpoint.
local function expert_prefix(config, layer, form)
   return ("model.layers.%d.%s."):format(layer, config.experts == "packed" and form.experts.packed_block or form.experts.block)
end

local function add_experts(add, config, layer, shapes, form)
   local prefix, parts = expert_prefix(config, layer, form), form.experts.parts
   add(prefix .. "gate.weight", shapes.router, "replicated", layer)
   if config.experts == "packed" then
      add.packed(prefix .. "experts.gate_up_proj", shapes.packed_up, "packed_column", layer)
      add.packed(prefix .. "experts.down_proj", shapes.packed_down, "packed_row", layer)
      return
   end
   for expert = 0, config.num_experts - 1 do
      local name = prefix .. "experts." .. expert .. "."
      add.expert(name .. parts.gate, shapes.expert_up, "column", layer, expert)
      add.expert(name .. parts.up, shapes.expert_up, "column", layer, expert)
      add.expert(name .. parts.down, shapes.expert_down, "row", layer, expert)
   end
end

local function shapes_of(config)
   local hidden, d = config.hidden_size, config.head_dim
   local q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
   local wide, im, experts = config.intermediate_size, config.moe_intermediate_size, config.num_experts
   return {
      hidden = { hidden }, head = { d },
      q = { q, hidden }, kv = { kv, hidden }, o = { hidden, q }, qkv = { q + 2 * kv, hidden },
      q_bias = { q }, kv_bias = { kv }, up_bias = { wide },
      up = { wide, hidden }, down = { hidden, wide }, gate_up = { 2 * wide, hidden },
      router = experts and { experts, hidden },
      expert_up = experts and { im, hidden }, expert_down = experts and { hidden, im },
      packed_up = experts and { experts, 2 * im, hidden }, packed_down = experts and { experts, hidden, im },
   }
end

--- The checkpoint's parameters, in the order of the model's definition; add_layer(prefix, layer) adds those of one layer.
function decoder.params(config, add, add_layer)
   local hidden = { config.hidden_size }
   local vocabulary = { config.checkpoint_vocab_size or config.vocab_size, config.hidden_size }
   add("model.embed_tokens.weight", vocabulary, "column", "first")
   for layer = 0, config.num_hidden_layers - 1 do
      add_layer(("model.layers.%d."):format(layer), layer)
   end
   add("model.norm.weight", hidden, "replicated", "last")
   if not config.tie_word_embeddings or config.announce_tied then
      add("lm_head.weight", vocabulary, "column", "last")
   end
end

local function params(config, add, form)
   local shapes = shapes_of(config)
   decoder.params(config, add, function(prefix, layer)
      add_attention(add, config, prefix .. "self_attn.", layer, shapes, form)
      if config.is_sparse(layer) then
         add_experts(add, config, layer, shapes, form)
      else
         add_mlp(add, config, prefix .. "mlp.", layer, shapes, form)
      end
      for _, norm in ipairs(form.norms) do
         add(prefix .. norm .. ".weight", shapes.hidden, "replicated", layer)
      end
   end)
end

local function named(prefix, parts, suffix)
   local list = {}
   for i, part in ipairs(parts) do
      list[i] = prefix .. part .. suffix
   end
   return list
end

-- What a fused live tensor is made of: tensors of their own, or rows of one that is fused in the checkpoint, too.
local function sources_of(prefix, parts, fused, rows, form)
   local list = named(prefix, parts, "_proj.weight")
   for i = 1, form.fused and #parts or 0 do
      list[i] = { prefix .. fused .. "_proj.weight", rows[i] }
   end
   return list
end

local QKV, GATE_UP = { "q", "k", "v" }, { "gate", "up" }

local function live_attention(worker, config, prefix, shapes, form)
   local heads, kv_heads, d = config.num_attention_heads, config.num_key_value_heads, config.head_dim
   local sources = sources_of(prefix, QKV, "qkv", { 0, shapes.q[1], shapes.q[1] + shapes.kv[1] }, form)
   worker:qkv(prefix .. "qkv_proj.weight", sources, heads, kv_heads, d, shapes.hidden)
   worker:part(prefix .. "o_proj.weight", shapes.o, 1)
   if has_bias(config, form) then
      worker:qkv(prefix .. "qkv_proj.bias", named(prefix, QKV, "_proj.bias"), heads, kv_heads, d, {})
   end
   if config.attention_bias then
      worker:whole(prefix .. "o_proj.bias", shapes.hidden, "replicated")
   end
   if form.qk_norm then
      worker:whole(prefix .. "q_norm.weight", shapes.head)
      worker:whole(prefix .. "k_norm.weight", shapes.head)
   end
end

local function live_mlp(worker, config, prefix, shapes, form)
   local sources = sources_of(prefix, GATE_UP, "gate_up", { 0, config.intermediate_size }, form)
   worker:merged(prefix .. "gate_up_proj.weight", sources, shapes.up, "merged_column")
   worker:part(prefix .. "down_proj.weight", shapes.down, 1)
   if config.mlp_bias then
      worker:merged(prefix .. "gate_up_proj.bias", named(prefix, GATE_UP, "_proj.bias"), shapes.up_bias, "merged_column")
      worker:whole(prefix .. "down_proj.bias", shapes.hidden, "replicated")
   end
end

local function live_experts(worker, config, layer, shapes, form)
   local base = expert_prefix(config, layer, form)
   local live = ("model.layers.%d.%s."):format(layer, form.experts.block)
   worker:whole(live .. "gate.weight", shapes.router, "replicated", nil, base .. "gate.weight")
   worker:experts(base .. "experts", live .. config.live_experts, config.moe_intermediate_size, config.hidden_size,
      config.experts == "packed", form.experts.parts)
end

--- What one worker holds; live_layer(prefix, layer) adds what it holds of one layer. A tied head is the embedding itself, which
-- the last stage then holds, too. every_stage: each pipeline stage has what stands around the layers.
function decoder.live(config, worker, live_layer, every_stage)
   if worker.is_first or every_stage or (worker.is_last and config.tie_word_embeddings) then
      worker:vocabulary("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
   end
   for layer = worker.first_layer, worker.last_layer do
      live_layer(("model.layers.%d."):format(layer), layer)
   end
   if worker.is_last or every_stage then
      worker:whole("model.norm.weight", { config.hidden_size })
      if not config.tie_word_embeddings then
         worker:vocabulary("lm_head.weight", config.vocab_size, config.hidden_size)
      end
   end
end

local function live(config, worker, form)
   local shapes = shapes_of(config)
   decoder.live(config, worker, function(prefix, layer)
      live_attention(worker, config, prefix .. "self_attn.", shapes, form)
      if config.is_sparse(layer) then
         live_experts(worker, config, layer, shapes, form)
      else
         live_mlp(worker, config, prefix .. "mlp.", shapes, form)
      end
      for _, norm in ipairs(form.norms) do
         worker:whole(prefix .. norm .. ".weight", shapes.hidden)
      end
   end, form.every_stage)
end

--- What a checkpoint decides by holding a tensor or not.
function decoder.settle(config, holds)
   config.announce_tied = config.tie_word_embeddings and holds["lm_head.weight"] or false
end

--- A layer's norms where attention and MLP each stand between two.
decoder.four_norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm" }

local defaults = { norms = { "input_layernorm", "post_attention_layernorm" } }

--- A family made of this decoder. Keys of form:
--
-- - architecture: as config.json has it
-- - keys, required: keys of config.json that only this family has, and those of them that must be given
-- - tied: the head is always the embedding
-- - qkv_bias: q, k and v have a bias, o has none (attention_bias in the configuration gives one to all four)
-- - qk_norm: there are norms over each head of q and k
-- - norms: the names of a layer's norms
-- - fused: q, k, v and gate, up are fused in the checkpoint, too
-- - every_stage: each pipeline stage of the host has the embedding, the last norm and the head
-- - experts: { count =, width = (keys of config.json), block =, packed_block = (where a layer has them), parts = { gate =,
--   up =, down = } (names of one expert's matrices) }
function decoder.family(form)
   setmetatable(form, { __index = defaults })
   return {
      architecture = form.architecture, dtype = "bfloat16", choices = form.experts and { "experts", "live_experts" } or nil,
      layer_pattern = "^model%.layers%.(%d+)%.",
      keys = joined(keys, form.keys or {}), required = joined(required, form.required or {}),
      complete = function(config) return complete(config, form) end,
      check_workers = function(config, part) return check_workers(config, part, form) end,
      settle = decoder.settle,
      params = function(config, add) return params(config, add, form) end,
      live = function(config, worker) return live(config, worker, form) end,
   }
end

return decoder
