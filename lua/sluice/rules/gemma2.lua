-- Gemma 2: as Llama, with two norms more a layer. Norms are copied raw: the host adds the 1 itself. The head is always the
-- embedding.

return {
   name = "gemma2",
   extends = "every_stage",
   rules = {
      rule "model.layers.{l}.{n=pre_feedforward_layernorm|post_feedforward_layernorm}.weight" { layout = replicate },
      rule "lm_head.weight" { alias = "model.embed_tokens.weight" },
      rule "**.normalizer" { skip = "computed by the host" },
   },
}
