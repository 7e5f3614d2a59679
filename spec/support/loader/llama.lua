--- Llama, Mistral, Qwen2.5 and Qwen3: dense decoders. They differ in a bias on q, k and v, and in norms over the heads of q and k.

local llama = {}

local function has_bias(config)
   return config.model_type == "qwen2" or config.model_type == "qwen2_5_vl" or config.attention_bias
end

local function has_head_norms(config)
   return config.model_type == "qwen3" or config.model_type == "qwen3_moe" or config.model_type == "gemma3"
end

--- The tensors of one layer's attention.
function llama.attention_tensors(add, prefix, config)
   local heads, kv_heads, d, hidden = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
   add(prefix .. "q_proj.weight", { heads * d, hidden })
   add(prefix .. "k_proj.weight", { kv_heads * d, hidden })
   add(prefix .. "v_proj.weight", { kv_heads * d, hidden })
   add(prefix .. "o_proj.weight", { hidden, heads * d })
   if has_bias(config) then
      add(prefix .. "q_proj.bias", { heads * d })
      add(prefix .. "k_proj.bias", { kv_heads * d })
      add(prefix .. "v_proj.bias", { kv_heads * d })
   end
   if config.attention_bias then
      add(prefix .. "o_proj.bias", { hidden })
   end
   if has_head_norms(config) then
      add(prefix .. "q_norm.weight", { d })
      add(prefix .. "k_norm.weight", { d })
   end
end

--- The tensors of one dense MLP.
function llama.mlp_tensors(add, prefix, wide, hidden)
   add(prefix .. "gate_proj.weight", { wide, hidden })
   add(prefix .. "up_proj.weight", { wide, hidden })
   add(prefix .. "down_proj.weight", { hidden, wide })
end

llama.norms = { "input_layernorm", "post_attention_layernorm" }

--- A decoder's tensors. parts: norms of a layer; attention(add, prefix, config) and mlp(add, prefix, config, layer) add what else it
-- has. before(name): what the checkpoint calls a tensor of the text model, where that is not its own name.
function llama.tensors(config, parts, before)
   local list, hidden = {}, { config.hidden_size }
   local vocabulary = { config.checkpoint_vocab_size or config.vocab_size, config.hidden_size }
   local function add(name, shape, dtype)
      list[#list + 1] = { before and before(name) or name, shape, dtype }
   end
   add("model.embed_tokens.weight", vocabulary)
   for layer = 0, config.num_hidden_layers - 1 do
      local prefix = ("model.layers.%d."):format(layer)
      for _, norm in ipairs(parts.norms or llama.norms) do
         add(prefix .. norm .. ".weight", hidden)
      end
      parts.tensors_of_attention(add, prefix .. "self_attn.", config)
      parts.tensors_of_mlp(add, prefix, config, layer)
   end
   add("model.norm.weight", hidden)
   if not config.tie_word_embeddings or config.announce_tied then
      add("lm_head.weight", vocabulary)
   end
   return list
end

--- Makes one layer's attention.
function llama.build_attention(model, prefix, config)
   local heads, kv_heads, d, hidden = config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.hidden_size
   model:qkv(prefix .. "qkv_proj.weight", heads, kv_heads, d, { hidden })
   model:row(prefix .. "o_proj.weight", hidden, heads * d)
   if has_bias(config) then
      model:qkv(prefix .. "qkv_proj.bias", heads, kv_heads, d, {})
   end
   if config.attention_bias then
      model:replicated(prefix .. "o_proj.bias", { hidden })
   end
   if has_head_norms(config) then
      model:replicated(prefix .. "q_norm.weight", { d })
      model:replicated(prefix .. "k_norm.weight", { d })
   end
end

--- Makes one dense MLP.
function llama.build_mlp(model, prefix, wide, hidden)
   model:merged(prefix .. "gate_up_proj.weight", { wide, wide }, { hidden })
   model:row(prefix .. "down_proj.weight", hidden, wide)
end

--- Makes a decoder. parts: norms; attention(model, prefix, config) and mlp(model, prefix, config, layer) make the rest of a layer;
-- every_stage: each pipeline stage makes what stands around the layers, used there or not. A tied head is the embedding, which the
-- last stage then has, too. embedding: its name, where that is another. within: what the host puts in front of the names.
function llama.decoder(model, config, parts, within)
   within = within or ""
   if model:is_first() or parts.every_stage or (config.tie_word_embeddings and model:is_last()) then
      model:vocabulary(within .. (parts.embedding or "model.embed_tokens") .. ".weight", config.vocab_size, config.hidden_size)
   end
   local first, behind = model:layers(config.num_hidden_layers)
   for layer = first, behind - 1 do
      local prefix = ("%smodel.layers.%d."):format(within, layer)
      for _, norm in ipairs(parts.norms or llama.norms) do
         model:replicated(prefix .. norm .. ".weight", { config.hidden_size })
      end
      parts.attention(model, prefix .. "self_attn.", config)
      parts.mlp(model, prefix, config, layer)
   end
   if model:is_last() or parts.every_stage then
      model:replicated(within .. "model.norm.weight", { config.hidden_size })
      if not config.tie_word_embeddings then
         model:vocabulary(within .. "lm_head.weight", config.vocab_size, config.hidden_size)
      end
   end
end

local stacked = {
   q_proj = { "qkv_proj", "q" }, k_proj = { "qkv_proj", "k" }, v_proj = { "qkv_proj", "v" },
   gate_proj = { "gate_up_proj", 1 }, up_proj = { "gate_up_proj", 2 },
}

--- Where a decoder's tensor goes: q, k and v into qkv_proj, gate and up into gate_up_proj, all else under its own name.
function llama.target(name, config)
   if name == "lm_head.weight" and config.tie_word_embeddings then
      return nil
   end
   local before, module, kind = name:match("^(.*)%.([%w_]+)%.([%w_]+)$")
   local into = stacked[module]
   if into then
      return ("%s.%s.%s"):format(before, into[1], kind), into[2]
   end
   return name
end

local parts = {
   tensors_of_attention = llama.attention_tensors,
   tensors_of_mlp = function(add, prefix, config)
      llama.mlp_tensors(add, prefix .. "mlp.", config.intermediate_size, config.hidden_size)
   end,
   attention = llama.build_attention,
   mlp = function(model, prefix, config)
      llama.build_mlp(model, prefix .. "mlp.", config.intermediate_size, config.hidden_size)
   end,
}

--- The parts of a dense decoder, with some of them exchanged.
function llama.parts(others)
   return setmetatable(others, { __index = parts })
end

--- A family that is a decoder of these parts and nothing else.
function llama.family(own)
   return {
      checkpoint = function(config)
         return llama.tensors(config, own)
      end,
      build = function(model, config)
         llama.decoder(model, config, own)
      end,
      target = llama.target,
   }
end

local dense = llama.family(parts)

llama.llama, llama.mistral, llama.qwen2, llama.qwen3 = dense, dense, dense, dense

return llama
