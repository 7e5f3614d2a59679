-- Llama-3-8B whole (16 GB), FSDP over 4 to tensor parallelism over 4: on eight GPUs.
return {
   model = { size = "Llama-3-8B" },
   trainer = { mesh = { { "fsdp", 4 } } },
   worker = { mesh = { { "tp", 4 } } },
   rules = "llama",
   transport = "nccl",
}
