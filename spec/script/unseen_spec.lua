--- Models that ship with no family file: what an operator writes for them, byte by byte against the slow loader. The files are
-- examples/rules; where a few rules do, they stand here.

local files = require "scripts.files"
local moving = require "spec.support.moving"
local decoders = require "spec.support.loader.unseen_decoders"
local unseen = require "spec.support.loader.unseen"
local with = require "spec.support.with"

local dense = {
   num_hidden_layers = 2, hidden_size = 64, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 8, vocab_size = 130,
   intermediate_size = 128, dtype = "BF16",
}
local moe = with(dense, { num_experts = 6, moe_intermediate_size = 16 })

local function file(name)
   return ("examples/rules/%s.lua"):format(name)
end

local function is_base(name)
   return name:find("base_layer", 1, true) ~= nil
end

-- name; family, config: of the loader; rules or text; host: where it is not the config; experts, stages: also run with ep 4, with pp 2.
local cases = {
   { "Falcon, groups fewer than workers", unseen.falcon, { layers = 2, heads = 16, groups = 2, d = 4, hidden = 64, vocab = 130, dtype = "BF16" },
      rules = file "falcon", host = { hidden_size = 64, num_attention_heads = 16, num_kv_heads = 2, vocab_size = 130 } },
   { "Falcon, groups as many as workers and more", unseen.falcon,
      { layers = 1, heads = 16, groups = 8, d = 4, hidden = 64, vocab = 130, dtype = "BF16" },
      rules = file "falcon", host = { hidden_size = 64, num_attention_heads = 16, num_kv_heads = 8, vocab_size = 130 } },
   { "GPT-NeoX", unseen.gpt_neox, { layers = 2, heads = 16, d = 4, hidden = 24, dtype = "F16" }, host = { heads = 16 }, text = [[
      local tp, heads, d = axes.tp, required "heads", 4
      local q, head = divide(heads, tp) * d, spread(heads, tp)
      local function part(n)
         return { from = span(0, each(heads, 3 * d, n * d), d), at = span(0, each(head.position, d, n * q), d) }
      end
      return { rules = {
         rule "**.query_key_value.{w=weight|bias}" { layout = pin("tp", each(head.owner)), part(0), part(1), part(2) },
      } }]] },
   { "ChatGLM", unseen.chatglm, { layers = 2, heads = 16, groups = 2, d = 4, hidden = 24, wide = 40, vocab = 128, dtype = "BF16" },
      rules = file "chatglm", host = { num_attention_heads = 16, multi_query_group_num = 2, kv_channels = 4, ffn_hidden_size = 40,
         padded_vocab_size = 128 } },
   { "GPT-2", unseen.gpt2, { layers = 2, heads = 8, hidden = 32, vocab = 70, dtype = "F32" }, rules = file "gpt2",
      host = { n_head = 8, n_embd = 32, vocab_size = 70 } },
   { "Mamba-2, groups fewer than workers", unseen.mamba2, { layers = 2, heads = 16, groups = 2, d = 4, hidden = 24, state = 3, vocab = 70,
      dtype = "BF16", unsourced = function(name) return name:find("%.A$") ~= nil end }, rules = file "mamba2", full = "A_log$",
      host = { num_heads = 16, n_groups = 2, head_dim = 4, state_size = 3, vocab_size = 70 } },
   { "Whisper", unseen.whisper, { layers = 2, heads = 8, hidden = 32, vocab = 70, dtype = "F16" }, rules = file "whisper",
      host = { d_model = 32, decoder_attention_heads = 8, vocab_size = 70 } },
   { "Qwen3-Next", decoders.qwen3_next, with(moe, { shared_expert_intermediate_size = 32, linear_num_key_heads = 8,
      linear_num_value_heads = 16, linear_key_head_dim = 4, linear_value_head_dim = 2 }), rules = file "qwen3_next", experts = true,
      stages = true },
   { "Llama 4", decoders.llama4, with(dense, { num_local_experts = 6, intermediate_size = 32, intermediate_size_mlp = 48 }),
      rules = file "llama4", experts = true, stages = true },
   { "AWQ", decoders.awq, with(dense, { dtype = "F16", quantization = "awq" }), rules = file "awq", stages = true },
   { "fp8, a scale a row", decoders.fp8_rows, with(dense, { quantized = "F8_E4M3", quantization = "compressed-tensors" }),
      rules = file "fp8_rows", stages = true },
   { "int8, scales without the second dim", decoders.fp8_rows, with(dense, { quantized = "I8", quantization = "compressed-tensors",
      flat_scales = true }), rules = file "fp8_rows" },
   { "a LoRA adapter alone", decoders.lora, with(dense, { rank = 4, slot = 1, adapter_slot = 1, unsourced = is_base }), rules = file "lora" },
   { "GLM-4", decoders.glm4, dense, stages = true, text = [[
      local all = required "intermediate_size"
      local gate = divide(all, axes.tp)
      return { extends = "llama", rules = {
         rule "**.mlp.gate_up_proj.weight" { layout = column,
            { from = span(0, 0, all), at = span(0, 0, gate) },
            { from = span(0, all, all), at = span(0, gate, gate) },
         },
         rule "model.layers.{l}.{n=post_self_attn_layernorm|post_mlp_layernorm}.weight" {},
      } }]] },
   { "Command-R+", decoders.command_r, with(dense, { tie_word_embeddings = true }), stages = true, text = [[
      local _, parts = share(required "num_key_value_heads", axes.tp)
      return { extends = "llama", rules = {
         rule "**.q_norm.weight" { layout = column }, rule "**.k_norm.weight" { layout = shard("tp", 0, { parts = parts }) },
      } }]] },
   { "Phi-3.5-MoE", decoders.phimoe, with(moe, { attention_bias = true }), experts = true, text = [[
      local V = required "vocab_size"
      return { extends = "mixtral", rules = {
         rule "**.{n=input_layernorm|post_attention_layernorm|norm}.bias" {},
         rule "lm_head.bias" { layout = shard("tp", 0, { chunk = divide(round_up(V, 64), axes.tp) }), pad = "zero" },
      } }]] },
   { "DBRX", decoders.dbrx, with(moe, {}), experts = true, text = [[
      local E, im = required "num_experts", required "moe_intermediate_size"
      local ep = axes.ep
      local map, gate = spread(E, ep), divide(im, ep > 1 and 1 or axes.tp)
      local owner, cut = pin("ep", each(map.owner)), ep == 1 and column or nil
      local function half(n)
         return { into = "{x}.ffn.experts.w13_weight", from = span(0, each(E, im), im), layout = { owner, cut },
            at = { index(0, each(map.position)), span(1, n * gate, gate) } }
      end
      return { rename = { { "blocks.{x}.**", "{x}.**" } }, rename_live = { { "{x}.ffn.**", "blocks.{x}.ffn.**" } }, rules = {
         rule "{x}.ffn.experts.mlp.w1" (half(0)), rule "{x}.ffn.experts.mlp.v1" (half(1)),
         rule "{x}.ffn.experts.mlp.w2" { into = "{x}.ffn.experts.w2_weight", from = span(0, each(E, im), im), permute = { 1, 0 },
            at = index(0, each(map.position)), layout = { owner, cut } },
      } }]] },
}

local function sizes_of(case)
   local list = {}
   for _, tp in ipairs({ 1, 2, 4, 8 }) do
      list[#list + 1] = { tp = tp, ep = 1, pp = 1, dp = 1 }
   end
   list[#list + 1] = case.stages and { tp = 2, ep = 1, pp = 2, dp = 1 } or nil
   list[#list + 1] = case.experts and { tp = 4, ep = 4, pp = 1, dp = 1 } or nil
   return list
end

local function run(case, size, text)
   local host = {}
   for key, value in pairs(case.host or case[3]) do
      host[key] = type(value) ~= "function" and value or nil
   end
   return moving.run({ family = case[2], config = case[3], host = host, rules = case.rules, text = text or case.text, full = case.full }, size)
end

describe("rules for a model without a family file give the bytes that its loader does:", function()
   for _, case in ipairs(cases) do
      it(case[1], function()
         for _, size in ipairs(sizes_of(case)) do
            assert.is_nil(run(case, size), ("tp %d, ep %d, pp %d"):format(size.tp, size.ep, size.pp))
         end
      end)
   end

   it("and a wrong byte is seen", function()
      local text = assert(files.read(file "falcon"))
      local exchanged = text:gsub("d, q%), d%)", "@"):gsub("d, q %+ kv%), d%)", "d, q), d)"):gsub("@", "d, q + kv), d)")
      assert.equal("worker 0: transformer.h.0.self_attention.query_key_value.weight differs at byte 2048 of 3072",
         run(with(cases[1], { rules = false }), { tp = 4, ep = 1, pp = 1, dp = 1 }, exchanged))
   end)
end)
