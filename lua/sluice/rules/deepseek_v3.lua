-- DeepSeek-V3 and R1: attention through latents, a shared MLP beside the experts, the first layers dense.

local tp = axes.tp
local latent = host.q_lora_rank

divide(required "num_attention_heads", tp) -- q and k with v are cut by heads
local shared = divide((host.n_shared_experts or 0) * required "moe_intermediate_size", tp)

local A, M, S = "model.layers.{l}.self_attn.", "model.layers.{l}.mlp.", "model.layers.{l}.mlp.shared_experts."

local rules = {
   rule(A .. "q_a_proj.weight") { into = A .. "fused_qkv_a_proj.weight", at = latent and span(0, 0, latent) },
   rule(A .. "kv_a_proj_with_mqa.weight") { into = latent and A .. "fused_qkv_a_proj.weight", at = latent and span(0, latent) },
   rule(A .. "{n=q_a_layernorm|kv_a_layernorm}.weight") { layout = replicate },
   rule(A .. "{p=q_proj|q_b_proj|kv_b_proj}.weight") { layout = column },
   rule(A .. "o_proj.weight") { layout = row },

   rule(M .. "gate.e_score_correction_bias") { layout = replicate },
   shared > 0 and rule(S .. "gate_proj.weight") {
      into = S .. "gate_up_proj.weight", at = span(0, 0, shared), layout = column },
   shared > 0 and rule(S .. "up_proj.weight") {
      into = S .. "gate_up_proj.weight", at = span(0, shared, shared), layout = column },
   rule(S .. "down_proj.weight") { layout = row },
}

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

-- What a trainer has in bfloat16 or float32 and an fp8 host in fp8.
local FP8 = "float8_e4m3fn"
local convert = host.quantization == "fp8" and host.weight_block_size and {
   { A .. "{p=q_a_proj|kv_a_proj_with_mqa|q_proj|q_b_proj|kv_b_proj|o_proj}.weight", FP8 },
   { M .. "{p=gate|up|down}_proj.weight", FP8 }, { S .. "{p=gate|up|down}_proj.weight", FP8 }, { M .. "experts.**", FP8 },
}

return {
   name = "deepseek_v3",
   extends = { "experts", "mlp", "decoder" },
   pins = { D and where(D .. "**") (pin("pp", axes.pp - 1)) },
   rename_live = served and {
      { D .. "{b=self_attn|mlp|input_layernorm|post_attention_layernorm}.**", "model.layers.{m}.mtp_block.{b}.**" } },
   convert = convert,
   rules = rules,
}
