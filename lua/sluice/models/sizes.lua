--- Public sizes of models, by name: the family and the configuration keys of the published config.json that decide shapes.

local function deepseek_v3(keys)
   local size = {
      family = "deepseek_v3", num_hidden_layers = 61, hidden_size = 7168, intermediate_size = 18432,
      num_attention_heads = 128, num_key_value_heads = 128, vocab_size = 129280,
      q_lora_rank = 1536, kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
      n_routed_experts = 256, n_shared_experts = 1, moe_intermediate_size = 2048, first_k_dense_replace = 3, moe_layer_freq = 1,
      num_nextn_predict_layers = 1,
   }
   for key, value in pairs(keys) do
      size[key] = value
   end
   return size
end

return {
   ["Llama-3-8B"] = {
      family = "llama", num_hidden_layers = 32, hidden_size = 4096, intermediate_size = 14336,
      num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128, vocab_size = 128256,
   },
   ["Llama-3-70B"] = {
      family = "llama", num_hidden_layers = 80, hidden_size = 8192, intermediate_size = 28672,
      num_attention_heads = 64, num_key_value_heads = 8, head_dim = 128, vocab_size = 128256,
   },
   ["Mistral-7B-v0.3"] = {
      family = "mistral", num_hidden_layers = 32, hidden_size = 4096, intermediate_size = 14336,
      num_attention_heads = 32, num_key_value_heads = 8, vocab_size = 32768,
   },
   ["Qwen2.5-0.5B"] = {
      family = "qwen2", num_hidden_layers = 24, hidden_size = 896, intermediate_size = 4864,
      num_attention_heads = 14, num_key_value_heads = 2, vocab_size = 151936, tie_word_embeddings = true,
   },
   ["Qwen2.5-7B"] = {
      family = "qwen2", num_hidden_layers = 28, hidden_size = 3584, intermediate_size = 18944,
      num_attention_heads = 28, num_key_value_heads = 4, vocab_size = 152064,
   },
   ["Qwen3-8B"] = {
      family = "qwen3", num_hidden_layers = 36, hidden_size = 4096, intermediate_size = 12288,
      num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128, vocab_size = 151936,
   },
   ["Qwen3-32B"] = {
      family = "qwen3", num_hidden_layers = 64, hidden_size = 5120, intermediate_size = 25600,
      num_attention_heads = 64, num_key_value_heads = 8, head_dim = 128, vocab_size = 151936,
   },
   ["Qwen3-30B-A3B"] = {
      family = "qwen3_moe", num_hidden_layers = 48, hidden_size = 2048, intermediate_size = 6144,
      num_attention_heads = 32, num_key_value_heads = 4, head_dim = 128, vocab_size = 151936,
      num_experts = 128, moe_intermediate_size = 768,
   },
   ["Qwen3-235B-A22B"] = {
      family = "qwen3_moe", num_hidden_layers = 94, hidden_size = 4096, intermediate_size = 12288,
      num_attention_heads = 64, num_key_value_heads = 4, head_dim = 128, vocab_size = 151936,
      num_experts = 128, moe_intermediate_size = 1536,
   },
   ["Mixtral-8x7B"] = {
      family = "mixtral", num_hidden_layers = 32, hidden_size = 4096, intermediate_size = 14336,
      num_attention_heads = 32, num_key_value_heads = 8, vocab_size = 32000, num_local_experts = 8,
   },
   ["Gemma-2-9B"] = {
      family = "gemma2", num_hidden_layers = 42, hidden_size = 3584, intermediate_size = 14336,
      num_attention_heads = 16, num_key_value_heads = 8, head_dim = 256, vocab_size = 256000,
   },
   ["Gemma-3-1B"] = {
      family = "gemma3", num_hidden_layers = 26, hidden_size = 1152, intermediate_size = 6912,
      num_attention_heads = 4, num_key_value_heads = 1, head_dim = 256, vocab_size = 262144,
   },
   ["Gemma-3-12B"] = {
      family = "gemma3", num_hidden_layers = 48, hidden_size = 3840, intermediate_size = 15360,
      num_attention_heads = 16, num_key_value_heads = 8, head_dim = 256, vocab_size = 262208,
      vision_config = {
         hidden_size = 1152, intermediate_size = 4304, num_hidden_layers = 27, num_attention_heads = 16,
         image_size = 896, patch_size = 14,
      },
   },
   ["Phi-3-mini"] = {
      family = "phi3", num_hidden_layers = 32, hidden_size = 3072, intermediate_size = 8192,
      num_attention_heads = 32, num_key_value_heads = 32, vocab_size = 32064,
   },
   ["DeepSeek-V3"] = deepseek_v3 { quantization_config = { quant_method = "fp8", weight_block_size = { 128, 128 } } },
   ["DeepSeek-V3-bf16"] = deepseek_v3 {}, -- as trainers hold it
   ["GPT-OSS-20B"] = {
      family = "gpt_oss", num_hidden_layers = 24, hidden_size = 2880, intermediate_size = 2880,
      num_attention_heads = 64, num_key_value_heads = 8, head_dim = 64, vocab_size = 201088, num_local_experts = 32,
   },
   ["GPT-OSS-120B"] = {
      family = "gpt_oss", num_hidden_layers = 36, hidden_size = 2880, intermediate_size = 2880,
      num_attention_heads = 64, num_key_value_heads = 8, head_dim = 64, vocab_size = 201088, num_local_experts = 128,
   },
   ["Qwen2.5-VL-3B"] = {
      family = "qwen2_5_vl", num_hidden_layers = 36, hidden_size = 2048, intermediate_size = 11008,
      num_attention_heads = 16, num_key_value_heads = 2, vocab_size = 151936, tie_word_embeddings = true,
      vision_config = {
         depth = 32, hidden_size = 1280, intermediate_size = 3420, num_heads = 16, out_hidden_size = 2048, patch_size = 14,
         temporal_patch_size = 2, spatial_merge_size = 2,
      },
   },
   ["Qwen2.5-VL-7B"] = {
      family = "qwen2_5_vl", num_hidden_layers = 28, hidden_size = 3584, intermediate_size = 18944,
      num_attention_heads = 28, num_key_value_heads = 4, vocab_size = 152064,
      vision_config = {
         depth = 32, hidden_size = 1280, intermediate_size = 3420, num_heads = 16, out_hidden_size = 3584, patch_size = 14,
         temporal_patch_size = 2, spatial_merge_size = 2,
      },
   },
   ["Qwen2.5-VL-72B"] = {
      family = "qwen2_5_vl", num_hidden_layers = 80, hidden_size = 8192, intermediate_size = 29568,
      num_attention_heads = 64, num_key_value_heads = 8, vocab_size = 152064,
      vision_config = {
         depth = 32, hidden_size = 1280, intermediate_size = 3456, num_heads = 16, out_hidden_size = 8192, patch_size = 14,
         temporal_patch_size = 2, spatial_merge_size = 2,
      },
   },
   ["all-MiniLM-L6-v2"] = {
      family = "bert", num_hidden_layers = 6, hidden_size = 384, intermediate_size = 1536,
      num_attention_heads = 12, vocab_size = 30522, max_position_embeddings = 512, type_vocab_size = 2,
   },
}
