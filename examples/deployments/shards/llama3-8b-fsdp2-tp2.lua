-- Llama-3-8B whole (16 GB), FSDP over 2 to tensor parallelism over 2: on four GPUs, or two ranks each on two.
return {
   model = { size = "Llama-3-8B" },
   trainer = { mesh = { { "fsdp", 2 } } },
   worker = { mesh = { { "tp", 2 } } },
   rules = "llama",
   transport = "nccl",
}
