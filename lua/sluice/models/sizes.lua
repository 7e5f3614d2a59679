--- Public sizes of models, by name: the family and the configuration keys of the published config.json that decide shapes.

return {
   ["Llama-3-8B"] = {
      family = "llama", num_hidden_layers = 32, hidden_size = 4096, intermediate_size = 14336,
      num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128, vocab_size = 128256,
   },
   ["Llama-3-70B"] = {
      family = "llama", num_hidden_layers = 80, hidden_size = 8192, intermediate_size = 28672,
      num_attention_heads = 64, num_key_value_heads = 8, head_dim = 128, vocab_size = 128256,
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
   ["all-MiniLM-L6-v2"] = {
      family = "bert", num_hidden_layers = 6, hidden_size = 384, intermediate_size = 1536,
      num_attention_heads = 12, vocab_size = 30522, max_position_embeddings = 512, type_vocab_size = 2,
   },
}
