--- The models that scripts/families runs: small, and awkward wherever a loader can go wrong. KV heads fewer than tp; vocabularies that
-- no tp divides, with workers that hold nothing but padding; sizes that are no powers of two; layers that pp does not divide;
-- 10 experts, uneven over ep 4 and 8.
--
-- name; family: of the loader, the rules and the description; config: the published keys; dtype (default bf16); files of the
-- checkpoint; experts: whether ep is run; loader, model: what beside the config the loader and the deployment must be told.

local with = require "spec.support.with"

local dense = {
   num_hidden_layers = 3, hidden_size = 72, intermediate_size = 152, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 12,
   vocab_size = 331, tie_word_embeddings = false,
}

local qwen3_moe = with(dense, {
   num_experts = 10, moe_intermediate_size = 40, mlp_only_layers = { 1 }, decoder_sparse_step = 1, num_hidden_layers = 3,
})

local mixtral = with(dense, { num_local_experts = 10, intermediate_size = 56 })

local gemma = with(dense, { tie_word_embeddings = true, vocab_size = 521, num_key_value_heads = 4 })

local vision = { hidden_size = 40, intermediate_size = 56, num_hidden_layers = 2, num_attention_heads = 8, image_size = 70, patch_size = 14 }

local deepseek = {
   num_hidden_layers = 3, hidden_size = 72, intermediate_size = 256, moe_intermediate_size = 128, num_attention_heads = 8,
   num_key_value_heads = 8, n_routed_experts = 10, n_shared_experts = 2, first_k_dense_replace = 1, moe_layer_freq = 1, q_lora_rank = 48,
   kv_lora_rank = 40, qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 16, vocab_size = 331, num_nextn_predict_layers = 1,
}
local fp8 = with(deepseek, { quantization_config = { quant_method = "fp8", weight_block_size = { 16, 16 } } })

local gpt_oss = {
   num_hidden_layers = 3, hidden_size = 72, intermediate_size = 40, num_attention_heads = 16, num_key_value_heads = 2, head_dim = 8,
   num_local_experts = 10, vocab_size = 331,
}

local qwen_vl = with(dense, { vision_config = {
   depth = 2, hidden_size = 40, intermediate_size = 56, num_heads = 8, out_hidden_size = 72, patch_size = 7, temporal_patch_size = 2,
   spatial_merge_size = 2,
} })

-- Whether a tensor of a multimodal host is one that a trainer of the text model alone does not have.
local function is_vision(name)
   return name:find("^vision_tower%.") ~= nil or name:find("^multi_modal_projector%.") ~= nil or name:find("^visual%.") ~= nil
end

return {
   { name = "Llama-3", family = "llama", config = dense },
   { name = "Llama-3, tied", family = "llama", config = with(dense, { tie_word_embeddings = true, vocab_size = 1000 }), files = 2 },
   { name = "Mistral", family = "mistral", config = with(dense, { head_dim = 20, num_key_value_heads = 4, vocab_size = 64 }) },
   { name = "Qwen2.5", family = "qwen2", config = with(dense, { vocab_size = 1027 }), files = 2 },
   { name = "Qwen2.5, tied", family = "qwen2", config = with(dense, { tie_word_embeddings = true, num_key_value_heads = 1,
      announce_tied = true }) },
   { name = "Qwen3", family = "qwen3", config = with(dense, { num_key_value_heads = 1, vocab_size = 449 }), files = 3 },
   { name = "Qwen3-MoE", family = "qwen3_moe", config = qwen3_moe, experts = true, files = 2 },
   { name = "Qwen3-MoE, packed", family = "qwen3_moe", config = qwen3_moe, experts = true, loader = { packed = true },
      model = { experts = "packed" } },
   { name = "Mixtral", family = "mixtral", config = mixtral, experts = true },
   { name = "Mixtral, packed", family = "mixtral", config = mixtral, experts = true, files = 2,
      loader = { packed = true, live_experts = "experts.routed_experts" },
      model = { experts = "packed", live_experts = "experts.routed_experts" } },
   { name = "Gemma-2", family = "gemma2", config = gemma },
   { name = "Gemma-3, text", family = "gemma3", config = gemma },
   { name = "Gemma-3, multimodal", family = "gemma3", config = with(gemma, { vision_config = vision }), files = 2 },
   { name = "Gemma-3, from the hub", family = "gemma3", config = with(gemma, { vision_config = vision, checkpoint_vocab_size = 585 }),
      loader = { naming = "hub" }, model = { naming = "hub" } },
   { name = "Gemma-3, text only sent", family = "gemma3", config = with(gemma, { vision_config = vision }), model = { naming = "text" },
      loader = { naming = "text", unsourced = is_vision } },
   { name = "Phi-3", family = "phi3", config = dense, files = 2 },
   { name = "DeepSeek-V3", family = "deepseek_v3", config = deepseek, experts = true, files = 2, loader = { serves_mtp = true },
      model = { mtp = "served" } },
   { name = "DeepSeek-V3, fp8", family = "deepseek_v3", config = fp8, experts = true },
   { name = "GPT-OSS", family = "gpt_oss", config = gpt_oss, experts = true, files = 2 },
   { name = "GPT-OSS, uneven units", family = "gpt_oss", config = with(gpt_oss, { intermediate_size = 37 }), experts = true,
      loader = { live_qkv = "qkv" }, model = { live_qkv = "qkv" } },
   { name = "Qwen2.5-VL", family = "qwen2_5_vl", config = qwen_vl, loader = { naming = "module" }, files = 2 },
   { name = "Qwen2.5-VL, whole tower", family = "qwen2_5_vl", config = with(qwen_vl, { tie_word_embeddings = true }),
      loader = { naming = "hub", whole_tower = true }, model = { naming = "hub", mm_encoder_tp_mode = "data" } },
   { name = "Qwen2.5-VL, text only", family = "qwen2_5_vl", config = qwen_vl, model = { naming = "text" },
      loader = { naming = "text", unsourced = is_vision } },
   { name = "BERT", family = "bert", dtype = "F32", config = { num_hidden_layers = 3, hidden_size = 96, intermediate_size = 136,
      num_attention_heads = 12, vocab_size = 331, max_position_embeddings = 35, type_vocab_size = 2 } },
}
