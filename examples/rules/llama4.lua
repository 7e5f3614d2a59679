-- Llama 4's text model: the experts of a layer come in one tensor, [E, in, out], gate before up along the last dim, and are served
-- [out, in]; beside them stands a shared expert. Some layers have a dense MLP instead.

local ep = axes.ep
local tp = ep > 1 and 1 or axes.tp -- how experts are cut
local im = required "intermediate_size"
local gate, shared, dense = divide(im, tp), divide(im, axes.tp), divide(required "intermediate_size_mlp", axes.tp)

local experts = shard("ep", 0, { split = "balanced" })
local function cut(dim)
   return ep > 1 and experts or shard("tp", dim)
end

local F = "model.layers.{l}.feed_forward."
local S = F .. "shared_expert."

return {
   name = "llama4",
   extends = "attention",
   rename = { { "language_model.**", "**" } },
   rules = {
      rule(F .. "router.weight") {},
      rule(F .. "experts.gate_up_proj") { into = F .. "experts.w13_weight", permute = { 0, 2, 1 }, layout = cut(2),
         { from = span(2, 0, im), at = span(1, 0, gate) },
         { from = span(2, im, im), at = span(1, gate, gate) },
      },
      rule(F .. "experts.down_proj") { into = F .. "experts.w2_weight", permute = { 0, 2, 1 }, layout = cut(1) },

      rule(S .. "gate_proj.weight") { into = S .. "gate_up_proj.weight", at = span(0, 0, shared), layout = column },
      rule(S .. "up_proj.weight") { into = S .. "gate_up_proj.weight", at = span(0, shared, shared), layout = column },
      rule(F .. "gate_proj.weight") { into = F .. "gate_up_proj.weight", at = span(0, 0, dense), layout = column },
      rule(F .. "up_proj.weight") { into = F .. "gate_up_proj.weight", at = span(0, dense, dense), layout = column },
      rule(F .. "{s=shared_expert.down_proj|down_proj}.weight") { layout = row },
   },
}
