--- Llama-3 and what is built like it.

return require("sluice.models.decoder").family({ architecture = "LlamaForCausalLM" })
