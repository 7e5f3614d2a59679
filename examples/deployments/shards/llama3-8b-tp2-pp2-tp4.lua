-- Llama-3-8B whole (16 GB), two pipeline stages of tensor parallelism 2 to tensor parallelism over 4.
return {
   model = { size = "Llama-3-8B" },
   trainer = { mesh = { { "pp", 2 }, { "tp", 2 } } },
   worker = { mesh = { { "tp", 4 } } },
   rules = "llama",
   transport = "nccl",
}
