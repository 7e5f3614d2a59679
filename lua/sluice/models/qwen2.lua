--- Qwen2 and Qwen2.5: as Llama, with a bias on q, k and v.

return require("sluice.models.decoder").family({ architecture = "Qwen2ForCausalLM", qkv_bias = true })
