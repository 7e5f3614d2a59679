--- Qwen3 with experts: attention as Qwen3; experts one by one or packed; some layers may be dense.

return require("sluice.models.decoder").family({ architecture = "Qwen3MoeForCausalLM", qk_norm = true, experts = true })
