--- Gemma 2: as Llama, with four norms a layer and a head that is always the embedding.

local decoder = require "sluice.models.decoder"

return decoder.family({
   architecture = "Gemma2ForCausalLM", keys = { "attention_bias" }, tied = true, every_stage = true, norms = decoder.four_norms,
})
