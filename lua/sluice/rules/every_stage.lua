-- A decoder as Llama, served by a host that keeps the embedding, the last norm and the head on every stage of a pipeline,
-- whether the stage uses them or not: what vLLM does with many families.

local vocab = required "vocab_size"
local padded = host.padded_vocab_size or round_up(vocab, 64)

return {
   name = "every_stage",
   extends = "llama",
   pins = { where "{m=model.embed_tokens|model.norm|lm_head}.**" () },
   rules = {
      rule "model.embed_tokens.weight" {
         layout = shard("tp", 0, { chunk = divide(padded, axes.tp) }), pad = "zero", shape = { vocab, "*" } },
   },
}
