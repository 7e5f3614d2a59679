-- Falcon 40B and 180B, as InternLM2's wqkv: q, k and v are fused on disk group by group, the query heads of one KV head, then its k
-- and its v. Served, all q come first, then all k, then all v; fewer groups than workers are repeated.

local tp = axes.tp
local heads, groups = required "num_attention_heads", required "num_kv_heads"
local d = divide(required "hidden_size", heads)
local in_group = divide(heads, groups)
local wide = (in_group + 2) * d -- rows of a group on disk

local head = spread(heads, tp) -- each query head's worker, and which of the worker's it is
local member = spread(heads, groups) -- each query head's group, and which of the group's it is
local count = share(groups, tp) -- KV heads of a worker
local slot = spread(count * tp, tp) -- each worker's KV heads, in order, ...
local group = spread(count * tp, groups).owner -- ... and the group that each is of

local q, kv = divide(heads, tp) * d, count * d
local vocabulary = shard("tp", 0, { chunk = divide(round_up(required "vocab_size", 64), tp) })

local H = "transformer.h.{l}."

return {
   name = "falcon",
   rules = {
      rule(H .. "self_attention.query_key_value.weight") {
         { from = span(0, each(member.owner, wide, each(member.position, d)), d), at = span(0, each(head.position, d), d),
           layout = pin("tp", each(head.owner)) },
         { from = span(0, each(group, wide, in_group * d), d), at = span(0, each(slot.position, d, q), d),
           layout = pin("tp", each(slot.owner)) },
         { from = span(0, each(group, wide, (in_group + 1) * d), d), at = span(0, each(slot.position, d, q + kv), d),
           layout = pin("tp", each(slot.owner)) },
      },
      rule(H .. "self_attention.dense.weight") { layout = row },
      rule(H .. "mlp.dense_h_to_4h.weight") { layout = column },
      rule(H .. "mlp.dense_4h_to_h.weight") { layout = row },
      rule(H .. "{n=ln_attn|ln_mlp}.{w=weight|bias}") {},
      rule "transformer.ln_f.{w=weight|bias}" {},
      rule "{e=transformer.word_embeddings|lm_head}.weight" { layout = vocabulary, pad = "zero" },
   },
}
