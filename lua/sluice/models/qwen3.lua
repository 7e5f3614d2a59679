--- Qwen3, dense: as Llama, with norms over each head of q and k.

return require("sluice.models.decoder").family({ architecture = "Qwen3ForCausalLM", qk_norm = true })
