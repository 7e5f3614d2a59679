--- BERT encoders (all-MiniLM-L6-v2): q, k and v fused into one qkv_proj when served, each table of embeddings cut like a vocabulary.

local check = require "sluice.models.check"
local serving = require "sluice.models.serving"

local function complete(config)
   if config.hidden_size % config.num_attention_heads ~= 0 then
      check.fail("model.config.hidden_size (%d) must divide by num_attention_heads (%d)", config.hidden_size,
         config.num_attention_heads)
   end
   config.num_key_value_heads = config.num_attention_heads
   config.head_dim = config.hidden_size / config.num_attention_heads
   config.has_position_ids = true
end

local function check_workers(config, part)
   local sizes = serving.sizes(part)
   serving.check_divides(config, "num_attention_heads", sizes.tp, "tp")
   serving.check_divides(config, "intermediate_size", sizes.tp, "tp")
   serving.check_whole(config, sizes)
   for _, key in ipairs({ "max_position_embeddings", "type_vocab_size" }) do
      local padded = serving.padded(config[key])
      if padded % sizes.tp ~= 0 then
         check.fail("model.config.%s (%d, padded to %d) must divide by the workers' tp (%d) after padding", key, config[key], padded,
            sizes.tp)
      end
   end
end

local function add_norm(add, prefix, shape, layer)
   add(prefix .. "LayerNorm.weight", shape, "replicated", layer)
   add(prefix .. "LayerNorm.bias", shape, "replicated", layer)
end

local function add_layer(add, config, layer)
   local prefix = ("encoder.layer.%d."):format(layer)
   local hidden, wide = { config.hidden_size }, { config.intermediate_size }
   local square = { config.hidden_size, config.hidden_size }
   for _, part in ipairs({ "query", "key", "value" }) do
      add(prefix .. "attention.self." .. part .. ".weight", square, "column", layer)
      add(prefix .. "attention.self." .. part .. ".bias", hidden, "column", layer)
   end
   add(prefix .. "attention.output.dense.weight", square, "row", layer)
   add(prefix .. "attention.output.dense.bias", hidden, "replicated", layer)
   add_norm(add, prefix .. "attention.output.", hidden, layer)
   add(prefix .. "intermediate.dense.weight", { config.intermediate_size, config.hidden_size }, "column", layer)
   add(prefix .. "intermediate.dense.bias", wide, "column", layer)
   add(prefix .. "output.dense.weight", { config.hidden_size, config.intermediate_size }, "row", layer)
   add(prefix .. "output.dense.bias", hidden, "replicated", layer)
   add_norm(add, prefix .. "output.", hidden, layer)
end

local function params(config, add)
   local hidden = config.hidden_size
   add("embeddings.word_embeddings.weight", { config.vocab_size, hidden }, "column", "first")
   add("embeddings.position_embeddings.weight", { config.max_position_embeddings, hidden }, "column", "first")
   add("embeddings.token_type_embeddings.weight", { config.type_vocab_size, hidden }, "column", "first")
   if config.has_position_ids then
      add("embeddings.position_ids", { 1, config.max_position_embeddings }, "buffer", "first", "int64")
   end
   add_norm(add, "embeddings.", { hidden }, "first")
   for layer = 0, config.num_hidden_layers - 1 do
      add_layer(add, config, layer)
   end
   add("pooler.dense.weight", { hidden, hidden }, "replicated", "last")
   add("pooler.dense.bias", { hidden }, "replicated", "last")
end

local function live_norm(worker, prefix, shape)
   worker:whole(prefix .. "LayerNorm.weight", shape)
   worker:whole(prefix .. "LayerNorm.bias", shape)
end

local function live_layer(worker, config, layer)
   local prefix = ("encoder.layer.%d."):format(layer)
   local hidden, heads, d = config.hidden_size, config.num_attention_heads, config.head_dim
   for _, suffix in ipairs({ "weight", "bias" }) do
      local sources = {}
      for i, part in ipairs({ "query", "key", "value" }) do
         sources[i] = prefix .. "attention.self." .. part .. "." .. suffix
      end
      worker:qkv(prefix .. "attention.self.qkv_proj." .. suffix, sources, heads, heads, d, suffix == "weight" and { hidden } or {})
   end
   worker:part(prefix .. "attention.output.dense.weight", { hidden, hidden }, 1)
   worker:whole(prefix .. "attention.output.dense.bias", { hidden }, "replicated")
   live_norm(worker, prefix .. "attention.output.", { hidden })
   worker:part(prefix .. "intermediate.dense.weight", { config.intermediate_size, hidden }, 0)
   worker:part(prefix .. "intermediate.dense.bias", { config.intermediate_size }, 0)
   worker:part(prefix .. "output.dense.weight", { hidden, config.intermediate_size }, 1)
   worker:whole(prefix .. "output.dense.bias", { hidden }, "replicated")
   live_norm(worker, prefix .. "output.", { hidden })
end

local function live(config, worker)
   local hidden = config.hidden_size
   if worker.is_first then
      worker:vocabulary("embeddings.word_embeddings.weight", config.vocab_size, hidden)
      worker:vocabulary("embeddings.position_embeddings.weight", config.max_position_embeddings, hidden)
      worker:vocabulary("embeddings.token_type_embeddings.weight", config.type_vocab_size, hidden)
      if config.has_position_ids then
         worker:whole("embeddings.position_ids", { 1, config.max_position_embeddings }, nil, "int64")
      end
      live_norm(worker, "embeddings.", { hidden })
   end
   for layer = worker.first_layer, worker.last_layer do
      live_layer(worker, config, layer)
   end
   if worker.is_last then
      worker:whole("pooler.dense.weight", { hidden, hidden }, "replicated")
      worker:whole("pooler.dense.bias", { hidden }, "replicated")
   end
end

return {
   architecture = "BertModel", dtype = "float32", default_size = "all-MiniLM-L6-v2",
   layer_pattern = "^encoder%.layer%.(%d+)%.",
   keys = {
      "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings",
      "type_vocab_size",
   },
   required = {
      "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings",
      "type_vocab_size",
   },
   complete = complete, check_workers = check_workers,
   settle = function(config, holds)
      config.has_position_ids = holds["embeddings.position_ids"] or false
   end,
   params = params, live = live,
   host = function(config)
      return { max_position_embeddings = config.max_position_embeddings, type_vocab_size = config.type_vocab_size }
   end,
}
