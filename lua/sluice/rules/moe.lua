-- A decoder with experts: all but the experts as Llama.

return { name = "moe", extends = { "experts", "every_stage" } }
