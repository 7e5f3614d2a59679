-- ChatGLM 2 and 3, GLM-4 of that line: q, k, v and the two halves of the MLP are stacked on disk, each to be cut on its own, with
-- biases beside the weights.

local tp = axes.tp
local heads, groups, d = required "num_attention_heads", required "multi_query_group_num", required "kv_channels"
local all_q, all_kv, all_gate = heads * d, groups * d, required "ffn_hidden_size"
local q, gate = divide(heads, tp) * d, divide(all_gate, tp)
local count, parts = share(groups, tp)
local kv = count * d
local kv_column = shard("tp", 0, { parts = parts })
local vocabulary = shard("tp", 0, { chunk = divide(round_up(required "padded_vocab_size", 64), tp) })

local L = "transformer.encoder.layers.{l}."

return {
   name = "chatglm",
   rename = { { "transformer.embedding.word_embeddings.**", "transformer.embedding.**" } },
   rules = {
      rule(L .. "self_attention.query_key_value.{w=weight|bias}") {
         { from = span(0, 0, all_q), at = span(0, 0, q), layout = column },
         { from = span(0, all_q, all_kv), at = span(0, q, kv), layout = kv_column },
         { from = span(0, all_q + all_kv, all_kv), at = span(0, q + kv, kv), layout = kv_column },
      },
      rule(L .. "mlp.dense_h_to_4h.weight") { layout = column,
         { from = span(0, 0, all_gate), at = span(0, 0, gate) },
         { from = span(0, all_gate, all_gate), at = span(0, gate, gate) },
      },
      rule(L .. "{m=self_attention.dense|mlp.dense_4h_to_h}.weight") { layout = row },
      rule(L .. "{n=input_layernorm|post_attention_layernorm}.weight") {},
      rule "transformer.encoder.final_layernorm.weight" {},
      rule "transformer.{e=embedding|output_layer}.weight" { layout = vocabulary, pad = "zero" },
      rule "transformer.rotary_pos_emb.inv_freq" { skip = "computed by the host" },
   },
}
