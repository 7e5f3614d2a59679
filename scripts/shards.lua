--- The sharded layouts that scripts/bench-shards runs, in the order of its table; and how each is made small, so that it can be
-- verified without a GPU.

local shards = {}

shards.folder = "examples/deployments/shards/"

--- Each row: name (its deployment file), title, trainers, workers, whether experts are in it.
shards.rows = {
   { name = "llama3-8b-fsdp2-tp2", title = "Llama-3-8B, FSDP 2 to TP 2", trainers = 2, workers = 2 },
   { name = "llama3-8b-fsdp4-tp4", title = "Llama-3-8B, FSDP 4 to TP 4", trainers = 4, workers = 4 },
   { name = "llama3-8b-tp2-pp2-tp4", title = "Llama-3-8B, PP 2 x TP 2 to TP 4", trainers = 4, workers = 4 },
   { name = "llama3-8b-fsdp4-tp2-dp2", title = "Llama-3-8B, FSDP 4 to DP 2 x TP 2", trainers = 4, workers = 4 },
   { name = "llama3-8b-fsdp2-tp2-dp3", title = "Llama-3-8B, FSDP 2 to DP 3 x TP 2", trainers = 2, workers = 6 },
   { name = "qwen3-32b-fsdp4-tp4", title = "Qwen3-32B, FSDP 4 to TP 4", trainers = 4, workers = 4 },
   { name = "qwen3-30b-a3b-ep4-tp4", title = "Qwen3-30B-A3B, EP 4 to TP 4", trainers = 4, workers = 4, experts = true },
   { name = "qwen3-30b-a3b-ep4-ep2-tp2", title = "Qwen3-30B-A3B, EP 4 to EP 2 x TP 2", trainers = 4, workers = 4, experts = true },
}

local small = {
   num_hidden_layers = 2, hidden_size = 64, intermediate_size = 128, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 16,
   vocab_size = 1000,
}
local small_experts = { num_experts = 8, moe_intermediate_size = 32 }

--- Options of `sluice` that make a row's model small; its meshes stay.
function shards.reduced(row)
   local list = {}
   for _, config in ipairs({ small, row.experts and small_experts or {} }) do
      for key, value in pairs(config) do
         list[#list + 1] = ("--set model.config.%s=%d"):format(key, value)
      end
   end
   table.sort(list)
   return table.concat(list, " ")
end

return shards
