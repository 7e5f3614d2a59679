-- Llama-3-8B whole (16 GB), FSDP over 4 to two replicas of tensor parallelism 2: every byte goes to two workers.
return {
   model = { size = "Llama-3-8B" },
   trainer = { mesh = { { "fsdp", 4 } } },
   worker = { mesh = { { "dp", 2 }, { "tp", 2 } } },
   rules = "llama",
   transport = "nccl",
}
