-- Llama-3-8B with generated values: FSDP over 2 with tensor parallelism 2 inside feeds four tensor-parallel workers.
-- Two of 32 layers (3 GB); all of them: --layers 32
return {
   model = { size = "Llama-3-8B", layers = 2 },
   trainer = { mesh = { { "fsdp", 2 }, { "tp", 2 } } },
   worker = { mesh = { { "dp", 1 }, { "tp", 4 } } },
   rules = "llama",
   updates = 2,
}
