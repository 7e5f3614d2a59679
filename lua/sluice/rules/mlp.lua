-- The MLP of most decoders: gate and up are stacked in one live gate_up_proj, each cut over tp on its own. No family by itself:
-- families extend it.

local gate = divide(required "intermediate_size", axes.tp)

return {
   name = "mlp",
   rules = {
      rule "model.layers.{l}.mlp.gate_proj.{w=weight|bias}" {
         into = "model.layers.{l}.mlp.gate_up_proj.{w}", at = span(0, 0, gate), layout = column },
      rule "model.layers.{l}.mlp.up_proj.{w=weight|bias}" {
         into = "model.layers.{l}.mlp.gate_up_proj.{w}", at = span(0, gate, gate), layout = column },
      rule "model.layers.{l}.mlp.down_proj.weight" { layout = row },
      rule "model.layers.{l}.mlp.down_proj.bias" { layout = replicate },
   },
}
