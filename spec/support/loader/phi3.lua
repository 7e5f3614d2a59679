--- Phi-3 and Phi-4: a decoder whose checkpoints stack q, k, v and gate, up already. The host cuts each of the stacked layers on its
-- own, so that a worker's part is several strips, although name and shape are those of a plain layer.

local llama = require "spec.support.loader.llama"

local phi3 = {}

local parts = llama.parts({
   tensors_of_attention = function(add, prefix, config)
      local d, hidden = config.head_dim, config.hidden_size
      add(prefix .. "qkv_proj.weight", { (config.num_attention_heads + 2 * config.num_key_value_heads) * d, hidden })
      add(prefix .. "o_proj.weight", { hidden, config.num_attention_heads * d })
   end,
   tensors_of_mlp = function(add, prefix, config)
      add(prefix .. "mlp.gate_up_proj.weight", { 2 * config.intermediate_size, config.hidden_size })
      add(prefix .. "mlp.down_proj.weight", { config.hidden_size, config.intermediate_size })
   end,
})

phi3.phi3 = llama.family(parts)

return phi3
