-- Llama 2 and 3, and what most decoders share.

return { name = "llama", extends = { "mlp", "attention" } }
