-- Qwen3-30B-A3B whole (61 GB): the same trainers; two workers share each half of the experts and cut every one of them over tp 2,
-- all else is cut over tp 4.
return {
   model = { size = "Qwen3-30B-A3B" },
   trainer = { mesh = { { "dp", 4 } }, expert_mesh = { { "ep", 4 } } },
   worker = { mesh = { { "tp", 4 } }, expert_mesh = { { "ep", 2 }, { "tp", 2 } } },
   rules = "qwen3_moe",
   transport = "nccl",
}
