-- GPT-OSS in bfloat16: attention with sinks, experts in every layer. A layer's experts come in one tensor, transposed; gate and
-- up take turns along it as the host has them, too, so that a unit is two rows. Every stage of a pipeline has embedding and head.

local tp, ep = axes.tp, axes.ep

-- Over an ep axis whole experts are spread, otherwise each is cut over tp: the last ranks may hold fewer units, or none.
local units = ceil_divide(host.moe_intermediate_size or required "intermediate_size", ep > 1 and 1 or tp)
local spread_out = shard("ep", 0, { split = "balanced" })
local function cut(dim, count)
   return ep > 1 and spread_out or { spread_out, shard("tp", dim, { chunk = count }) }
end

local layer = "model.layers.{l}."
local experts, stacks = layer .. "mlp.experts.", layer .. "mlp." .. (host.live_experts or "experts")
local qkv = live "model.layers.*.attn.qkv.weight" and "qkv" or "qkv_proj"

return {
   name = "gpt_oss",
   extends = "attention",
   pins = { where "{m=model.embed_tokens|model.norm|lm_head}.**" () },
   rename_live = {
      { "model.embed_tokens.**", "model.embedding.**" },
      { layer .. "self_attn.qkv_proj.**", layer .. "attn." .. qkv .. ".**" },
      { layer .. "self_attn.**", layer .. "attn.**" },
   },
   rules = {
      rule(layer .. "self_attn.sinks") { layout = column },
      rule(layer .. "mlp.router.{w=weight|bias}") { layout = replicate },
      rule(experts .. "gate_up_proj") {
         into = stacks .. ".w13_weight", permute = { 0, 2, 1 }, layout = cut(2, 2 * units), pad = "zero" },
      rule(experts .. "gate_up_proj_bias") { into = stacks .. ".w13_bias", layout = cut(1, 2 * units), pad = "zero" },
      rule(experts .. "down_proj") { into = stacks .. ".w2_weight", permute = { 0, 2, 1 }, layout = cut(1, units), pad = "zero" },
      -- Ranks sum what their experts give, so that one of them alone adds the bias.
      rule(experts .. "down_proj_bias") { into = stacks .. ".w2_bias", layout = ep > 1 and spread_out or { spread_out, first "tp" } },
   },
}
