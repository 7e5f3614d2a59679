-- Qwen3-30B-A3B with generated values: two pipeline stages, in each of them two ranks that share out the experts and hold all
-- else twice, feed four workers: attention under tensor parallelism, experts under expert parallelism.
-- Two of 48 layers (4 GB); all of them: --layers 48
return {
   model = { size = "Qwen3-30B-A3B", layers = 2 },
   trainer = { mesh = { { "pp", 2 }, { "dp", 2 } }, expert_mesh = { { "pp", 2 }, { "ep", 2 } } },
   worker = { mesh = { { "dp", 1 }, { "tp", 4 } }, expert_mesh = { { "ep", 4 } } },
   rules = "qwen3_moe",
   updates = 2,
}
