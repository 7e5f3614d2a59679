-- Qwen2 and Qwen2.5: as Llama; q, k and v have biases, which go the way of their weights.

return { name = "qwen2", extends = "llama" }
