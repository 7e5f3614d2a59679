-- Qwen3, dense: Llama with a norm on the heads of q and k.

return {
   name = "qwen3",
   extends = "llama",
   rules = {
      rule "model.layers.{l}.self_attn.{n=q_norm|k_norm}.weight" { layout = replicate },
   },
}
