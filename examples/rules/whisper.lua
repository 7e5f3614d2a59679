-- Whisper: an encoder and a decoder. The decoder attends to the encoder with a q of its own and a fused k and v. No k has a bias; where
-- it is served beside q and v, its rows are cleared.

local tp = axes.tp
local hidden = required "d_model"
local width = divide(hidden, tp)
divide(required "decoder_attention_heads", tp)

local L = "model.{s=encoder|decoder}.layers.{l}."
local A, C = L .. "self_attn.", "model.decoder.layers.{l}.encoder_attn."

return {
   name = "whisper",
   rename_live = { { L .. "{m=fc1|fc2}.**", L .. "mlp.{m}.**" } },
   rules = {
      rule(A .. "q_proj.weight") { into = A .. "qkv_proj.weight", at = span(0, 0, width), layout = column },
      rule(A .. "k_proj.weight") { into = A .. "qkv_proj.weight", at = span(0, width, width), layout = column },
      rule(A .. "v_proj.weight") { into = A .. "qkv_proj.weight", at = span(0, 2 * width, width), layout = column },
      rule(A .. "q_proj.bias") { into = A .. "qkv_proj.bias",
         { at = span(0, 0, width), layout = column },
         { at = span(0, width, width), zero = true },
      },
      rule(A .. "v_proj.bias") { into = A .. "qkv_proj.bias", at = span(0, 2 * width, width), layout = column },

      rule(C .. "q_proj.{w=weight|bias}") { layout = column },
      rule(C .. "k_proj.weight") { into = C .. "kv_proj.weight", at = span(0, 0, width), layout = column },
      rule(C .. "v_proj.weight") { into = C .. "kv_proj.weight", at = span(0, width, width), layout = column },
      rule(C .. "v_proj.bias") { into = C .. "kv_proj.bias",
         { at = span(0, width, width), layout = column },
         { at = span(0, 0, width), zero = true },
      },

      rule(L .. "{a=self_attn|encoder_attn}.out_proj.weight") { layout = row },
      rule(L .. "fc1.{w=weight|bias}") { layout = column },
      rule(L .. "fc2.weight") { layout = row },
      rule(L .. "{m=fc2|self_attn.out_proj|encoder_attn.out_proj}.bias") {},
      rule(L .. "{n=self_attn_layer_norm|encoder_attn_layer_norm|final_layer_norm}.{w=weight|bias}") {},
      rule "model.{s=encoder|decoder}.layer_norm.{w=weight|bias}" {},
      rule "model.encoder.{c=conv1|conv2}.{w=weight|bias}" {},
      rule "model.{s=encoder|decoder}.embed_positions.weight" {},
      rule "model.decoder.embed_tokens.weight" {
         layout = shard("tp", 0, { chunk = divide(round_up(required "vocab_size", 64), tp) }), pad = "zero" },
      rule "proj_out.weight" { alias = "model.decoder.embed_tokens.weight" },
   },
}
