--- Llama 2 and 3.

return require("sluice.models.decoder").family({
   architecture = "LlamaForCausalLM", keys = { "attention_bias", "mlp_bias" },
})
