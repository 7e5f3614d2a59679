-- Llama 2 and 3, and what most decoders share: q, k and v are stacked in one live qkv_proj, gate and up in one gate_up_proj;
-- each is cut over tp on its own.

local tp = axes.tp
local heads, kv_heads = required "num_attention_heads", required "num_key_value_heads"
local d = host.head_dim or divide(required "hidden_size", heads)

-- Rows of q, and of k or v, in one worker's qkv_proj. Fewer KV heads than workers are repeated, never split.
local q = divide(heads, tp) * d
local kv_count, kv_parts = share(kv_heads, tp)
local kv = kv_count * d
local kv_column = shard("tp", 0, { parts = kv_parts })

local gate = divide(required "intermediate_size", tp)

return {
   name = "llama",
   extends = "decoder",
   rules = {
      rule "model.layers.{l}.self_attn.q_proj.{w=weight|bias}" {
         into = "model.layers.{l}.self_attn.qkv_proj.{w}", at = span(0, 0, q), layout = column },
      rule "model.layers.{l}.self_attn.k_proj.{w=weight|bias}" {
         into = "model.layers.{l}.self_attn.qkv_proj.{w}", at = span(0, q, kv), layout = kv_column },
      rule "model.layers.{l}.self_attn.v_proj.{w=weight|bias}" {
         into = "model.layers.{l}.self_attn.qkv_proj.{w}", at = span(0, q + kv, kv), layout = kv_column },
      rule "model.layers.{l}.self_attn.o_proj.weight" { layout = row },
      rule "model.layers.{l}.self_attn.o_proj.bias" { layout = replicate },
      rule "model.layers.{l}.self_attn.{p=k|v}_proj.{s=k|v}_scale" { into = "model.layers.{l}.self_attn.attn.{s}_scale" },

      rule "model.layers.{l}.mlp.gate_proj.{w=weight|bias}" {
         into = "model.layers.{l}.mlp.gate_up_proj.{w}", at = span(0, 0, gate), layout = column },
      rule "model.layers.{l}.mlp.up_proj.{w=weight|bias}" {
         into = "model.layers.{l}.mlp.gate_up_proj.{w}", at = span(0, gate, gate), layout = column },
      rule "model.layers.{l}.mlp.down_proj.weight" { layout = row },
      rule "model.layers.{l}.mlp.down_proj.bias" { layout = replicate },
   },
}
