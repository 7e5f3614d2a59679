--- Mixtral: attention as Llama, experts in every layer. Packed checkpoints (transformers 5) name their block as Qwen3 does.

return require("sluice.models.decoder").family({
   architecture = "MixtralForCausalLM", every_stage = true,
   keys = { "num_local_experts" }, required = { "num_local_experts" },
   experts = {
      count = "num_local_experts", width = "intermediate_size", block = "block_sparse_moe", packed_block = "mlp",
      parts = { gate = "w1.weight", up = "w3.weight", down = "w2.weight" },
   },
})
