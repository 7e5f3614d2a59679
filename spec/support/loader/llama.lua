--- Llama, Mistral, Qwen2.5 and Qwen3: dense decoders. They differ in a bias on q, k and v, and in norms over the heads of q and k.

local llama = {}

local function has_bias(config)
   return config.model_type == "qwen2" or config.attention_bias
end

local function has_head_norms(config)
   return config.model_type == "qwen3" or config.model_type == "qwen3_moe"
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

--- A decoder's tensors; mlp(add, prefix, config, layer) adds what stands in the place of the MLP.
function llama.tensors(config, mlp)
   local list = {}
   local function add(name, shape, dtype)
      list[#list + 1] = { name, shape, dtype }
   end
   add("model.embed_tokens.weight", { config.vocab_size, config.hidden_size })
   for layer = 0, config.num_hidden_layers - 1 do
      local prefix = ("model.layers.%d."):format(layer)
      add(prefix .. "input_layernorm.weight", { config.hidden_size })
      llama.attention_tensors(add, prefix .. "self_attn.", config)
      add(prefix .. "post_attention_layernorm.weight", { config.hidden_size })
      mlp(add, prefix, config, layer)
   end
   add("model.norm.weight", { config.hidden_size })
   if not config.tie_word_embeddings or config.announce_tied then
      add("lm_head.weight", { config.vocab_size, config.hidden_size })
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

--- Makes a decoder; mlp(model, prefix, config, layer) makes what stands in the place of the MLP. A tied head is the embedding,
-- which the last stage then has, too.
function llama.decoder(model, config, mlp)
   if model:is_first() or (config.tie_word_embeddings and model:is_last()) then
      model:vocabulary("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
   end
   local first, behind = model:layers(config.num_hidden_layers)
   for layer = first, behind - 1 do
      local prefix = ("model.layers.%d."):format(layer)
      model:replicated(prefix .. "input_layernorm.weight", { config.hidden_size })
      llama.build_attention(model, prefix .. "self_attn.", config)
      model:replicated(prefix .. "post_attention_layernorm.weight", { config.hidden_size })
      mlp(model, prefix, config, layer)
   end
   if model:is_last() then
      model:replicated("model.norm.weight", { config.hidden_size })
      if not config.tie_word_embeddings then
         model:vocabulary("lm_head.weight", config.vocab_size, config.hidden_size)
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
   local before, module, kind = name:match("^(.*)%.([%w_]+)%.(%w+)$")
   local into = stacked[module]
   if into then
      return ("%s.%s.%s"):format(before, into[1], kind), into[2]
   end
   return name
end

local dense = {
   checkpoint = function(config)
      return llama.tensors(config, function(add, prefix)
         llama.mlp_tensors(add, prefix .. "mlp.", config.intermediate_size, config.hidden_size)
      end)
   end,
   build = function(model, config)
      llama.decoder(model, config, function(_, prefix)
         llama.build_mlp(model, prefix .. "mlp.", config.intermediate_size, config.hidden_size)
      end)
   end,
   target = llama.target,
}

llama.llama, llama.mistral, llama.qwen2, llama.qwen3 = dense, dense, dense, dense

return llama
