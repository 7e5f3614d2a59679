-- Qwen3-30B-A3B whole (61 GB): four trainers share out the experts and each hold all else; the workers cut everything over tp.
return {
   model = { size = "Qwen3-30B-A3B" },
   trainer = { mesh = { { "dp", 4 } }, expert_mesh = { { "ep", 4 } } },
   worker = { mesh = { { "tp", 4 } } },
   rules = "qwen3_moe",
   transport = "nccl",
}
