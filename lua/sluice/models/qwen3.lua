--- Qwen3, dense: as Llama, with norms over each head of q and k.

return require("sluice.models.decoder").family({
   architecture = "Qwen3ForCausalLM", keys = { "attention_bias" }, qk_norm = true,
})
