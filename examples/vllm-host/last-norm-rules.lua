-- As the family llama, but the last norm goes through the model's load_weights, and with it through vLLM's layerwise reload.
return {
   name = "last-norm",
   extends = "llama",
   rules = { rule "model.norm.weight" { full = "shows the way through load_weights" } },
}
