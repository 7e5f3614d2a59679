-- DeepSeek-V3 whole, in bfloat16, 256 trainers to 256 workers: to be planned (sluice plan), not run, on one machine. Parts for so
-- many workers are no whole blocks of fp8.
return {
   model = { size = "DeepSeek-V3-bf16" },
   trainer = {
      mesh = { { "pp", 16 }, { "dp", 16 } },
      expert_mesh = { { "pp", 16 }, { "ep", 16 } },
   },
   worker = { mesh = { { "dp", 8 }, { "tp", 32 } } },
   rules = "deepseek_v3",
}
