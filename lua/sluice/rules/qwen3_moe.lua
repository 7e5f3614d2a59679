-- Qwen3 with experts: a norm on the heads of q and k, as Qwen3.

return {
   name = "qwen3_moe",
   extends = "moe",
   rules = {
      rule "model.layers.{l}.self_attn.{n=q_norm|k_norm}.weight" { layout = replicate },
   },
}
