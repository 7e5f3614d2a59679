-- Mistral: as Llama.

return { name = "mistral", extends = "llama" }
