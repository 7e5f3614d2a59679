-- Attention with grouped queries: q, k and v are stacked in one live qkv_proj, each cut over tp by heads. No family by itself:
-- families extend it.

local tp = axes.tp
local heads, kv_heads = required "num_attention_heads", required "num_key_value_heads"
local d = host.head_dim or divide(required "hidden_size", heads)

-- Rows of q, and of k or v, in one worker's qkv_proj. Fewer KV heads than workers are repeated, never split.
local q = divide(heads, tp) * d
local kv_count, kv_parts = share(kv_heads, tp)
local kv = kv_count * d
local kv_column = shard("tp", 0, { parts = kv_parts })

return {
   name = "attention",
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
      -- What scales a KV cache stands beside the projections, or where the host has it.
      rule "model.layers.{l}.self_attn.{p=k|v|qkv}_proj.{s=k|v}_scale" { into = "model.layers.{l}.self_attn.attn.{s}_scale" },
      rule "model.layers.{l}.self_attn.{s=k|v}_scale" { into = "model.layers.{l}.self_attn.attn.{s}_scale" },
      rule "model.layers.{l}.self_attn.attn.{s=k|v}_scale" {},
   },
}
