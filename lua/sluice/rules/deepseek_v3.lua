-- DeepSeek-V3 and R1: attention through latents, a shared MLP beside the experts, the first layers dense.

local tp, ep = axes.tp, axes.ep
local latent = host.q_lora_rank

-- What one worker holds: rows of q and of k with v, columns of the output, units of an MLP.
local heads = divide(required "num_attention_heads", tp)
local nope, v = required "qk_nope_head_dim", required "v_head_dim"
local q, kv, out = heads * (nope + required "qk_rope_head_dim"), heads * (nope + v), heads * v
local dense = divide(required "intermediate_size", tp)
local im = required "moe_intermediate_size"
local shared = divide((host.n_shared_experts or 0) * im, tp)

-- Over an ep axis whole experts are spread, otherwise each is cut over tp.
local moe_tp = ep > 1 and 1 or tp
local expert = divide(im, moe_tp)
local where_is = spread(host.expert_map or required "num_experts", ep)
local owner, slab = pin("ep", pick("e", where_is.owner)), index(0, pick("e", where_is.position))
local expert_column, expert_row = ep > 1 and owner or { owner, column }, ep > 1 and owner or { owner, row }

local A, M, S = "model.layers.{l}.self_attn.", "model.layers.{l}.mlp.", "model.layers.{l}.mlp.shared_experts."
local deeper = live "**.experts.routed_experts.w13_weight" and "experts.routed_experts"
local E, stacks = M .. "experts.{e}.", M .. (host.live_experts or deeper or "experts")

-- A linear layer is its weight and, in fp8, the scales of the weight's blocks. Scales lie as their weight does, counted in
-- blocks, and neither goes without the other.
local block = host.quantization == "fp8" and required "weight_block_size"
local forms = { { "weight", "weight_scale_inv", 1, 1 } }
if block then
   forms[2] = { "weight_scale_inv", "weight", block[1], block[2] }
end

local rules = {}
for _, form in ipairs(forms) do
   local w, other, rows, columns = unpack(form)
   local function with(name)
      return block and name .. "." .. other
   end
   -- Whole blocks, here and wherever something is cut: half a block has no scale of its own.
   local gate, shared_gate, expert_gate = divide(dense, rows), divide(shared, rows), divide(expert, rows)
   for _, size in ipairs(tp > 1 and { q, kv } or {}) do
      divide(size, rows)
   end
   for _, size in ipairs(tp > 1 and { out, dense, shared, moe_tp > 1 and expert or 0 } or {}) do
      divide(size, columns)
   end

   for _, made in ipairs {
      rule(A .. "q_a_proj." .. w) { into = A .. "fused_qkv_a_proj." .. w, at = latent and span(0, 0, divide(latent, rows)),
         companion = with(A .. "q_a_proj") },
      rule(A .. "kv_a_proj_with_mqa." .. w) { into = latent and A .. "fused_qkv_a_proj." .. w,
         at = latent and span(0, divide(latent, rows)), companion = with(A .. "kv_a_proj_with_mqa") },
      rule(A .. "{p=q_proj|q_b_proj|kv_b_proj}." .. w) { layout = column, companion = with(A .. "{p}") },
      rule(A .. "o_proj." .. w) { layout = row, companion = with(A .. "o_proj") },

      rule(M .. "gate_proj." .. w) { into = M .. "gate_up_proj." .. w, at = span(0, 0, gate), layout = column,
         companion = with(M .. "gate_proj") },
      rule(M .. "up_proj." .. w) { into = M .. "gate_up_proj." .. w, at = span(0, gate, gate), layout = column,
         companion = with(M .. "up_proj") },
      rule(M .. "{d=down_proj|shared_experts.down_proj}." .. w) { layout = row, companion = with(M .. "{d}") },
      shared > 0 and rule(S .. "gate_proj." .. w) { into = S .. "gate_up_proj." .. w, at = span(0, 0, shared_gate),
         layout = column, companion = with(S .. "gate_proj") },
      shared > 0 and rule(S .. "up_proj." .. w) { into = S .. "gate_up_proj." .. w, at = span(0, shared_gate, shared_gate),
         layout = column, companion = with(S .. "up_proj") },

      rule(E .. "gate_proj." .. w) { into = stacks .. ".w13_" .. w, at = { slab, span(1, 0, expert_gate) },
         layout = expert_column, companion = with(E .. "gate_proj") },
      rule(E .. "up_proj." .. w) { into = stacks .. ".w13_" .. w, at = { slab, span(1, expert_gate, expert_gate) },
         layout = expert_column, companion = with(E .. "up_proj") },
      rule(E .. "down_proj." .. w) { into = stacks .. ".w2_" .. w, at = slab,
         layout = expert_row, companion = with(E .. "down_proj") },
   } do
      rules[#rules + 1] = made
   end
end

rules[#rules + 1] = rule(A .. "{n=q_a_layernorm|kv_a_layernorm}.weight") { layout = replicate }
rules[#rules + 1] = rule(M .. "gate.{b=weight|e_score_correction_bias}") { layout = replicate }

-- Layers behind the last one draft (MTP). A host that serves them has each as a block of its own; another one lacks them.
local layers, drafting = required "num_hidden_layers", {}
for i = 1, host.num_nextn_predict_layers or 1 do
   drafting[i] = layers + i - 1
end
local D = drafting[1] and "model.layers.{m=" .. table.concat(drafting, "|") .. "}."
local served = D and optional "serves_mtp"
if served then
   local padded = host.padded_vocab_size or round_up(required "vocab_size", 64)
   rules[#rules + 1] = rule(D .. "{n=enorm|hnorm|eh_proj|shared_head.norm}.weight") { layout = replicate }
   rules[#rules + 1] = rule(D .. "{n=embed_tokens|shared_head.head}.weight") {
      layout = shard("tp", 0, { chunk = divide(padded, tp) }), pad = "zero" }
elseif D then
   table.insert(rules, 1, rule(D .. "**") { skip = "this host serves no drafting layers" })
end

return {
   name = "deepseek_v3",
   extends = "decoder",
   full = policy { pipeline = true, quantization = "fp8" },
   pins = { D and where(D .. "**") (pin("pp", axes.pp - 1)) },
   rename_live = served and {
      { D .. "{b=self_attn|mlp|input_layernorm|post_attention_layernorm}.**", "model.layers.{m}.mtp_block.{b}.**" } },
   rules = rules,
}
