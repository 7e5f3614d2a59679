-- Qwen3-Next, and of it Qwen2-MoE's shared expert with a gate: most layers have linear attention, whose in_proj is fused key head by
-- key head and served so, and a convolution over q, k and v, each cut on its own; q of the others brings a gate as large as itself.

local tp = axes.tp
local keys, values = required "linear_num_key_heads", required "linear_num_value_heads"
local all_k, all_v = keys * required "linear_key_head_dim", values * required "linear_value_head_dim"
local k, v = divide(keys, tp) * required "linear_key_head_dim", divide(values, tp) * required "linear_value_head_dim"

local d = required "head_dim"
local q = 2 * divide(required "num_attention_heads", tp) * d
local count, parts = share(required "num_key_value_heads", tp)
local kv, kv_column = count * d, shard("tp", 0, { parts = parts })
local wide = divide(required "shared_expert_intermediate_size", tp)

local A, N = "model.layers.{l}.self_attn.", "model.layers.{l}.linear_attn."
local S = "model.layers.{l}.mlp.shared_expert."

return {
   name = "qwen3_next",
   extends = "qwen3_moe",
   rules = {
      rule(A .. "q_proj.weight") { into = A .. "qkv_proj.weight", at = span(0, 0, q), layout = column },
      rule(A .. "k_proj.weight") { into = A .. "qkv_proj.weight", at = span(0, q, kv), layout = kv_column },
      rule(A .. "v_proj.weight") { into = A .. "qkv_proj.weight", at = span(0, q + kv, kv), layout = kv_column },

      rule(N .. "{p=in_proj_qkvz|in_proj_ba}.weight") { layout = column },
      rule(N .. "conv1d.weight") { layout = column,
         { from = span(0, 0, all_k), at = span(0, 0, k) },
         { from = span(0, all_k, all_k), at = span(0, k, k) },
         { from = span(0, 2 * all_k, all_v), at = span(0, 2 * k, v) },
      },
      rule(N .. "{p=A_log|dt_bias}") { layout = column },
      rule(N .. "norm.weight") {},
      rule(N .. "out_proj.weight") { layout = row },

      rule(S .. "gate_proj.weight") { into = S .. "gate_up_proj.weight", at = span(0, 0, wide), layout = column },
      rule(S .. "up_proj.weight") { into = S .. "gate_up_proj.weight", at = span(0, wide, wide), layout = column },
      rule(S .. "down_proj.weight") { layout = row },
      rule "model.layers.{l}.mlp.shared_expert_gate.weight" {},
      rule "mtp.**" { skip = "this host serves no drafting layers" },
   },
}
