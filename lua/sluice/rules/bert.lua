-- BERT encoders (all-MiniLM and its like): query, key and value are stacked in one live qkv_proj, each cut over tp by heads; each
-- table of embeddings is cut like a vocabulary.

local tp = axes.tp
divide(required "num_attention_heads", tp)
local width = divide(required "hidden_size", tp)
local vocab = required "vocab_size"

-- Rows of a table, padded: what a worker holds of them, zeros behind the last.
local function table_of(rows, padded)
   return { layout = shard("tp", 0, { chunk = divide(padded or round_up(rows, 64), tp) }), pad = "zero", shape = { rows, "*" } }
end

-- A served pipeline: blocks of layers, the embeddings on the first stage, the pooler on the last.
local stages = axes.pp
local layers = stages > 1 and spread(host.pipeline_layers or required "num_hidden_layers", stages).owner

return {
   name = "bert",
   strip = { "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod", "module" },
   full = policy { pipeline = true },
   pins = layers and {
      where "encoder.layer.{l}.**" (pin("pp", pick("l", layers))),
      where "embeddings.**" (pin("pp", 0)),
      where "pooler.**" (pin("pp", stages - 1)),
   },
   rules = {
      rule "encoder.layer.{l}.attention.self.query.{w=weight|bias}" {
         into = "encoder.layer.{l}.attention.self.qkv_proj.{w}", at = span(0, 0, width), layout = column },
      rule "encoder.layer.{l}.attention.self.key.{w=weight|bias}" {
         into = "encoder.layer.{l}.attention.self.qkv_proj.{w}", at = span(0, width, width), layout = column },
      rule "encoder.layer.{l}.attention.self.value.{w=weight|bias}" {
         into = "encoder.layer.{l}.attention.self.qkv_proj.{w}", at = span(0, 2 * width, width), layout = column },
      rule "encoder.layer.{l}.intermediate.dense.{w=weight|bias}" { layout = column },
      rule "encoder.layer.{l}.{o=attention.output|output}.dense.weight" { layout = row },
      rule "encoder.layer.{l}.{o=attention.output|output}.dense.bias" { layout = replicate },
      rule "encoder.layer.{l}.{o=attention.output|output}.LayerNorm.{w=weight|bias}" { layout = replicate },

      rule "embeddings.word_embeddings.weight" (table_of(vocab, host.padded_vocab_size)),
      rule "embeddings.position_embeddings.weight" (table_of(required "max_position_embeddings")),
      rule "embeddings.token_type_embeddings.weight" (table_of(required "type_vocab_size")),
      rule "embeddings.position_ids" { layout = replicate },
      rule "embeddings.LayerNorm.{w=weight|bias}" { layout = replicate },
      rule "pooler.dense.{w=weight|bias}" { layout = replicate },
   },
}
