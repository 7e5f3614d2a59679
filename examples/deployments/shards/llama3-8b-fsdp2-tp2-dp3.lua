-- Llama-3-8B whole (16 GB), FSDP over 2 to three replicas of tensor parallelism 2: what two trainers' links carry is three times
-- the model, so that they are what an update waits for.
return {
   model = { size = "Llama-3-8B" },
   trainer = { mesh = { { "fsdp", 2 } } },
   worker = { mesh = { { "dp", 3 }, { "tp", 2 } } },
   rules = "llama",
   transport = "nccl",
}
