-- As minilm.lua, under rules that leave some parameters to the host's own load_weights: see minilm-full-rules.lua.
return {
   model = { family = "bert", checkpoint = "build/minilm" },
   trainer = { mesh = { { "fsdp", 3 } } },
   worker = { mesh = { { "dp", 2 }, { "tp", 4 } } },
   rules = "minilm-full-rules.lua",
   updates = 3,
   batches = 2,
}
