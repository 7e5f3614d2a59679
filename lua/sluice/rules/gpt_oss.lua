-- GPT-OSS in bfloat16: attention with sinks, experts in every layer. A layer's experts come in one tensor, transposed; gate and
-- up take turns along it as the host has them, too, so that a unit is two rows. Every stage of a pipeline has embedding and head.

-- Over an ep axis whole experts are spread, otherwise, or where the host does both, each is cut over tp: the last ranks may hold
-- fewer units, or none.
local ep = axes.ep
local tp = ep > 1 and (host.moe_tensor_parallel_size or 1) or axes.tp
local whole = ep > 1 and tp == 1
local units = ceil_divide(host.moe_intermediate_size or required "intermediate_size", tp)
local spread_out = shard("ep", 0, { split = "balanced" })
local function cut(dim, count)
   return whole and spread_out or { spread_out, shard("tp", dim, { chunk = count }) }
end

local layer = "model.layers.{l}."
local qkv = live "model.layers.*.attn.qkv.weight" and "qkv" or "qkv_proj"
local deeper = live "**.experts.routed_experts.w13_weight" and "experts.routed_experts"
local stacks = layer .. "mlp." .. (host.live_experts or deeper or "experts") .. "."

-- Where the host has moved experts about, its loader takes them.
local moved = host.expert_map and "the host places experts by a map, which a packed tensor cannot follow"
local function experts(name, stack, say)
   local body = moved and { full = moved } or say
   body.into = stacks .. stack
   return rule(layer .. "mlp.experts." .. name)(body)
end

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
      experts("gate_up_proj", "w13_weight", { permute = { 0, 2, 1 }, layout = cut(2, 2 * units), pad = "zero" }),
      experts("gate_up_proj_bias", "w13_bias", { layout = cut(1, 2 * units), pad = "zero" }),
      experts("down_proj", "w2_weight", { permute = { 0, 2, 1 }, layout = cut(1, units), pad = "zero" }),
      -- Ranks sum what their experts give, so that one of them alone adds the bias.
      experts("down_proj_bias", "w2_bias", { layout = whole and spread_out or { spread_out, first "tp" } }),
   },
}
