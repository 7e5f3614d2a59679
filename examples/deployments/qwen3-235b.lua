-- Qwen3-235B-A22B whole, 64 trainers to 64 workers: to be planned (sluice plan), not run, on one machine.
return {
   model = { size = "Qwen3-235B-A22B" },
   trainer = {
      mesh = { { "pp", 4 }, { "dp", 4 }, { "cp", 2 }, { "tp", 2 } },
      expert_mesh = { { "pp", 4 }, { "ep", 16 } },
   },
   worker = { mesh = { { "dp", 8 }, { "tp", 8 } } },
   rules = "qwen3_moe",
}
