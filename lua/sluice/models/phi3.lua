--- Phi-3 and Phi-4: as Llama, but q, k, v and gate, up are fused in the checkpoint, too.

return require("sluice.models.decoder").family({ architecture = "Phi3ForCausalLM", fused = true })
