-- Mixtral-8x7B with generated values: four ranks that shard all but the experts among them (FSDP) and share those out feed four
-- workers, attention under tensor parallelism, experts under expert parallelism.
-- One of 32 layers (7 GB); all of them: --layers 32
return {
   model = { size = "Mixtral-8x7B", layers = 1 },
   trainer = { mesh = { { "fsdp", 4 } }, expert_mesh = { { "ep", 4 } } },
   worker = { mesh = { { "dp", 1 }, { "tp", 4 } }, expert_mesh = { { "ep", 4 } } },
   rules = "mixtral",
   updates = 2,
}
