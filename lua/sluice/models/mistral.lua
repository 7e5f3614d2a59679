--- Mistral: built like Llama.

return require("sluice.models.decoder").family({ architecture = "MistralForCausalLM" })
