-- Qwen3-32B whole (66 GB), FSDP over 4 to tensor parallelism over 4: on eight GPUs.
return {
   model = { size = "Qwen3-32B" },
   trainer = { mesh = { { "fsdp", 4 } } },
   worker = { mesh = { { "tp", 4 } } },
   rules = "qwen3",
   transport = "nccl",
}
