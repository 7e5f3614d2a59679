-- Phi-3 and Phi-4: as Llama, but q, k, v and gate, up are stacked in the checkpoint, too. The live tensors have the same names,
-- yet of each part every worker has its own share: a plain cut would be wrong.

local tp = axes.tp
local heads, kv_heads = required "num_attention_heads", required "num_key_value_heads"
local d = host.head_dim or divide(required "hidden_size", heads)
local all_q, all_kv, all_gate = heads * d, kv_heads * d, required "intermediate_size"

local q, gate = divide(heads, tp) * d, divide(all_gate, tp)
local kv_count, kv_parts = share(kv_heads, tp)
local kv = kv_count * d
local kv_column = shard("tp", 0, { parts = kv_parts })

return {
   name = "phi3",
   extends = "llama",
   rules = {
      rule "model.layers.{l}.self_attn.qkv_proj.weight" {
         shape = { all_q + 2 * all_kv, "*" },
         { from = span(0, 0, all_q), at = span(0, 0, q), layout = column },
         { from = span(0, all_q, all_kv), at = span(0, q, kv), layout = kv_column },
         { from = span(0, all_q + all_kv, all_kv), at = span(0, q + kv, kv), layout = kv_column },
      },
      rule "model.layers.{l}.mlp.gate_up_proj.weight" {
         layout = column, shape = { 2 * all_gate, "*" },
         { from = span(0, 0, all_gate), at = span(0, 0, gate) },
         { from = span(0, all_gate, all_gate), at = span(0, gate, gate) },
      },
   },
}
