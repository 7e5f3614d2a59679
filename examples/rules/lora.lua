-- Nothing but a LoRA adapter of a Llama's attention: A and B of each module into one slot of the stacks that the host keeps for
-- adapters, [slots, 1, rank, in] and [slots, 1, out, rank], one stack for each part of a fused module. The rest of a stack's rank is cleared.

local slot = index(0, required "adapter_slot")
local one = index(1, 0)
local kv_column = shard("tp", 0, { parts = select(2, share(required "num_key_value_heads", axes.tp)) })

local A = "model.layers.{l}.self_attn."
local rules = {}

local function adapter(part, into, number, cut_a, cut_b)
   rules[#rules + 1] = rule(A .. part .. ".lora_A.weight") {
      into = A .. into .. ".lora_a_stacked." .. number, at = { slot, one }, layout = cut_a, pad = "zero", companion = A .. part .. ".lora_B.weight" }
   rules[#rules + 1] = rule(A .. part .. ".lora_B.weight") {
      into = A .. into .. ".lora_b_stacked." .. number, at = { slot, one }, layout = cut_b, pad = "zero", companion = A .. part .. ".lora_A.weight" }
end

adapter("q_proj", "qkv_proj", 0, replicate, column)
adapter("k_proj", "qkv_proj", 1, replicate, kv_column)
adapter("v_proj", "qkv_proj", 2, replicate, kv_column)
adapter("o_proj", "o_proj", 0, row, replicate)

return {
   name = "lora",
   strip = { "base_model.model" },
   unsourced = { "**" }, -- the base model, and the other slots
   rules = rules,
}
