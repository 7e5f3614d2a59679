--- What a serving host says of itself: the keys that Sluice and its families know, and what each must be. A text where a number is
-- meant, or a 0 for false, would choose other rules without a word. Any other key may hold anything.
-- @module sluice.host

local check = require "sluice.check"
local core = require "sluice.core"

local host = {}

-- Sizes; some configurations have a list of them, one a layer.
local SIZES = [[pipeline_parallel_size tensor_parallel_size num_attention_heads num_key_value_heads head_dim hidden_size intermediate_size
   moe_intermediate_size num_experts vocab_size padded_vocab_size num_hidden_layers expert_parallel_size moe_tensor_parallel_size
   n_routed_experts n_shared_experts num_local_experts num_experts_per_tok first_k_dense_replace num_nextn_predict_layers
   decoder_sparse_step shared_expert_intermediate_size q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim]]

local function is_size(value)
   return type(value) == "table" or check.is_integer(value, 0)
end

local function is_boolean(value)
   return type(value) == "boolean"
end

-- Of a list, each entry.
local function list_of(holds, count)
   return function(value)
      local good = check.is_list(value) and (not count or #value == count)
      for i = 1, good and #value or 0 do
         good = good and holds(value[i])
      end
      return good
   end
end

local function is_integer(low)
   return function(value)
      return check.is_integer(value, low)
   end
end

local KINDS = {
   { keys = SIZES, holds = is_size, text = "an integer of at least 0" },
   { keys = "tie_word_embeddings finalizes_modules serves_mtp attention_bias use_sliding_window", holds = is_boolean, text = "true or false" },
   { keys = "expert_map", text = "a list", holds = check.is_list },
   { keys = "weight_block_size", text = "a list of two integers of at least 1", holds = list_of(is_integer(1), 2) },
   { keys = "pipeline_layers mlp_only_layers", text = "a list of integers of at least 0", holds = list_of(is_integer(0)) },
   { keys = "lora_modules", text = "a list of texts", holds = list_of(check.is_name) },
   { keys = "architecture live_experts", holds = check.is_name, text = "a text" },
   { keys = "quantization", text = "a text, or false", holds = function(value) return value == false or type(value) == "string" end },
   { keys = "repacks", text = "true, false or a reason", holds = function(value) return is_boolean(value) or type(value) == "string" end },
   { keys = "vision_config", text = "an object", holds = function(value) return type(value) == "table" end },
}

--- The set of known keys.
host.keys = {}

for _, kind in ipairs(KINDS) do
   for key in kind.keys:gmatch("%S+") do
      host.keys[key] = kind
   end
end

--- Checks a description's known keys. Raises what is wrong with the first, in the order of their names.
-- @param description the decoded object
-- @param odd whether any number in it is odd (check.read_object)
function host.check(description, odd)
   if odd then
      check.finite(description, "the host's description")
   end
   local wrong
   for key, value in pairs(description) do
      local kind = host.keys[key]
      if kind and value ~= core.null and not kind.holds(value) and (wrong == nil or key < wrong) then
         wrong = key
      end
   end
   if wrong then
      check.fail(description[wrong], "must be " .. host.keys[wrong].text, "the host's description: " .. wrong)
   end
end

return host
