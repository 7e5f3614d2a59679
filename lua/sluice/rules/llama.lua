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

local vocab = required "vocab_size"
local padded = host.padded_vocab_size or round_up(vocab, 64)
local vocabulary = shard("tp", 0, { chunk = divide(padded, tp) })

-- A served pipeline: blocks of layers, the embedding on the first stage, the final norm and the head on the last. A tied head
-- is the embedding, which the last stage then holds, too.
local tied, stages = host.tie_word_embeddings, axes.pp
local layers = stages > 1 and spread(host.pipeline_layers or required "num_hidden_layers", stages).owner
local on_first, on_last = pin("pp", 0), pin("pp", stages - 1)

-- A host that serves LoRA adapters wraps its modules, and names the weights inside base_layer.
local wrapped = {}
for _, module in ipairs { "qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens" } do
   if live("**." .. module .. ".base_layer.weight") then
      wrapped[#wrapped + 1] = { "**." .. module .. ".{w=weight|bias}", "**." .. module .. ".base_layer.{w}" }
   end
end

return {
   name = "llama",
   -- What FSDP, torch.compile and PEFT leave in a trainer's names.
   strip = { "_fsdp_wrapped_module", "_orig_mod", "base_model.model", "base_layer" },
   rename_live = wrapped,
   full = policy { pipeline = true },
   pins = layers and {
      where "model.layers.{l}.**" (pin("pp", pick("l", layers))),
      not tied and where "model.embed_tokens.**" (on_first),
      where "{m=model.norm|lm_head}.**" (on_last),
   },
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

      rule "model.layers.{l}.{n=input_layernorm|post_attention_layernorm}.weight" { layout = replicate },
      rule "model.norm.weight" { layout = replicate },
      tied and stages > 1 and rule "model.embed_tokens.weight" { pad = "zero", shape = { vocab, "*" },
            { layout = { on_first, vocabulary } },
            { layout = { on_last, vocabulary } },
         }
         or rule "model.embed_tokens.weight" { layout = vocabulary, pad = "zero", shape = { vocab, "*" } },
      tied and rule "lm_head.weight" { alias = "model.embed_tokens.weight" }
         or rule "lm_head.weight" { layout = vocabulary, pad = "zero", shape = { vocab, "*" } },
      rule "**.{b=inv_freq|cos_cached|sin_cached}" { skip = "computed by the host" },
   },
}
