-- Qwen3-8B with generated values: two pipeline stages of two tensor-parallel trainers feed two tensor-parallel workers.
-- Two of 36 layers (3 GB); all of them: --layers 36
return {
   model = { size = "Qwen3-8B", layers = 2 },
   trainer = { mesh = { { "pp", 2 }, { "tp", 2 } } },
   worker = { mesh = { { "dp", 1 }, { "tp", 2 } } },
   rules = "qwen3",
   updates = 2,
}
