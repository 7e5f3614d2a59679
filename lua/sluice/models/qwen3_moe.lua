--- Qwen3 with experts: attention as Qwen3; experts one by one or packed; some layers may be dense.

return require("sluice.models.decoder").family({
   architecture = "Qwen3MoeForCausalLM", qk_norm = true, every_stage = true,
   keys = { "attention_bias", "num_experts", "moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step" },
   required = { "num_experts", "moe_intermediate_size" },
   experts = {
      count = "num_experts", width = "moe_intermediate_size", block = "mlp", packed_block = "mlp",
      parts = { gate = "gate_proj.weight", up = "up_proj.weight", down = "down_proj.weight" },
   },
})
