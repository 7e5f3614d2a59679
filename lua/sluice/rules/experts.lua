-- Experts in the place of a layer's MLP: they are stacked in one live w13_weight (gate over up) and one w2_weight. Over an ep
-- axis whole experts are spread, otherwise each expert is cut over tp; a host that does both says how many ranks share one, as
-- moe_tensor_parallel_size. No family by itself: families extend it.

-- Their number has another name in Mixtral's config.json, and another one in DeepSeek's.
local experts = host.num_experts or host.num_local_experts or host.n_routed_experts or required "num_experts"
local ep = axes.ep
local where_is = spread(host.expert_map or experts, ep)
local owner = pin("ep", pick("e", where_is.owner))
local slab = index(0, pick("e", where_is.position))

local tp = ep > 1 and (host.moe_tensor_parallel_size or 1) or axes.tp
local whole = ep > 1 and tp == 1
local im = host.moe_intermediate_size or required "intermediate_size"
local gate = divide(im, tp)
local expert_column = whole and owner or { owner, column }
local expert_row = whole and owner or { owner, row }

-- The packed form brings all experts of a layer in one tensor; where the host has moved experts about, its loader takes it.
local moved = host.expert_map and "the host places experts by a map, which a packed tensor cannot follow"
local packed = shard("ep", 0, { split = "balanced" })
local packed_column = whole and packed or { packed, shard("tp", 1) }
local packed_row = whole and packed or { packed, shard("tp", 2) }

-- Newer hosts keep the stacks one level deeper.
local deeper = live "**.experts.routed_experts.w13_weight" and "experts.routed_experts"
local stacks = "model.layers.{l}.mlp." .. (host.live_experts or deeper or "experts")

return {
   name = "experts",
   rules = {
      rule "model.layers.{l}.mlp.gate.weight" { layout = replicate },
      rule "model.layers.{l}.mlp.experts.{e}.gate_proj.weight" {
         into = stacks .. ".w13_weight", at = { slab, span(1, 0, gate) }, layout = expert_column },
      rule "model.layers.{l}.mlp.experts.{e}.up_proj.weight" {
         into = stacks .. ".w13_weight", at = { slab, span(1, gate, gate) }, layout = expert_column },
      rule "model.layers.{l}.mlp.experts.{e}.down_proj.weight" {
         into = stacks .. ".w2_weight", at = slab, layout = expert_row },

      moved and rule "model.layers.{l}.mlp.experts.gate_up_proj" { full = moved, into = stacks .. ".w13_weight" },
      moved and rule "model.layers.{l}.mlp.experts.down_proj" { full = moved, into = stacks .. ".w2_weight" },
      not moved and rule "model.layers.{l}.mlp.experts.gate_up_proj" {
         into = stacks .. ".w13_weight", layout = packed_column,
         { from = span(1, 0, im), at = span(1, 0, gate) },
         { from = span(1, im, im), at = span(1, gate, gate) },
      },
      not moved and rule "model.layers.{l}.mlp.experts.down_proj" {
         into = stacks .. ".w2_weight", layout = packed_row },
   },
}
