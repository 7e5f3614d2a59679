-- DeepSeek-V3 whole, in fp8 as published, 128 trainers to 128 workers: to be planned (sluice plan), not run, on one machine.
return {
   model = { size = "DeepSeek-V3" },
   trainer = {
      mesh = { { "pp", 4 }, { "dp", 32 } },
      expert_mesh = { { "pp", 4 }, { "dp", 2 }, { "ep", 16 } },
   },
   worker = { mesh = { { "dp", 16 }, { "tp", 8 } } },
   rules = "deepseek_v3",
}
