--- BERT encoders, all-MiniLM among them: q, k and v are one parameter when served; each table of embeddings is cut as a vocabulary is.

local bert = {}

local function each_layer(config, each)
   for layer = 0, config.num_hidden_layers - 1 do
      each(("encoder.layer.%d."):format(layer), layer)
   end
end

local function checkpoint(config)
   local list, hidden, wide = {}, config.hidden_size, config.intermediate_size
   local function add(name, shape, dtype)
      list[#list + 1] = { name, shape, dtype }
   end
   local function linear(name, rows, columns)
      add(name .. ".weight", { rows, columns })
      add(name .. ".bias", { rows })
   end
   local function norm(name)
      add(name .. ".LayerNorm.weight", { hidden })
      add(name .. ".LayerNorm.bias", { hidden })
   end
   add("embeddings.position_ids", { 1, config.max_position_embeddings }, "I64")
   add("embeddings.word_embeddings.weight", { config.vocab_size, hidden })
   add("embeddings.position_embeddings.weight", { config.max_position_embeddings, hidden })
   add("embeddings.token_type_embeddings.weight", { config.type_vocab_size, hidden })
   norm("embeddings")
   each_layer(config, function(prefix)
      linear(prefix .. "attention.self.query", hidden, hidden)
      linear(prefix .. "attention.self.key", hidden, hidden)
      linear(prefix .. "attention.self.value", hidden, hidden)
      linear(prefix .. "attention.output.dense", hidden, hidden)
      norm(prefix .. "attention.output")
      linear(prefix .. "intermediate.dense", wide, hidden)
      linear(prefix .. "output.dense", hidden, wide)
      norm(prefix .. "output")
   end)
   linear("pooler.dense", hidden, hidden)
   return list
end

local function build(model, config)
   local hidden, wide, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
   local function norm(name)
      model:replicated(name .. ".LayerNorm.weight", { hidden })
      model:replicated(name .. ".LayerNorm.bias", { hidden })
   end
   if model:is_first() then
      model:replicated("embeddings.position_ids", { 1, config.max_position_embeddings }, "I64")
      model:vocabulary("embeddings.word_embeddings.weight", config.vocab_size, hidden)
      model:vocabulary("embeddings.position_embeddings.weight", config.max_position_embeddings, hidden)
      model:vocabulary("embeddings.token_type_embeddings.weight", config.type_vocab_size, hidden)
      norm("embeddings")
   end
   local first, behind = model:layers(config.num_hidden_layers)
   each_layer(config, function(prefix, layer)
      if layer < first or layer >= behind then
         return
      end
      model:qkv(prefix .. "attention.self.qkv_proj.weight", heads, heads, hidden / heads, { hidden })
      model:qkv(prefix .. "attention.self.qkv_proj.bias", heads, heads, hidden / heads, {})
      model:row(prefix .. "attention.output.dense.weight", hidden, hidden)
      model:replicated(prefix .. "attention.output.dense.bias", { hidden })
      norm(prefix .. "attention.output")
      model:column(prefix .. "intermediate.dense.weight", wide, { hidden })
      model:column(prefix .. "intermediate.dense.bias", wide, {})
      model:row(prefix .. "output.dense.weight", hidden, wide)
      model:replicated(prefix .. "output.dense.bias", { hidden })
      norm(prefix .. "output")
   end)
   if model:is_last() then
      model:replicated("pooler.dense.weight", { hidden, hidden })
      model:replicated("pooler.dense.bias", { hidden })
   end
end

local shards = { query = "q", key = "k", value = "v" }

local function target(name)
   local before, part, kind = name:match("^(.*%.attention%.self)%.(%w+)%.(%w+)$")
   if before then
      return ("%s.qkv_proj.%s"):format(before, kind), shards[part]
   end
   return name
end

bert.bert = { checkpoint = checkpoint, build = build, target = target }

return bert
