-- A Llama of AWQ weights, served as they are: eight 4-bit numbers in each int32 along the output dim of qweight and qzeros, which stand
-- [in, out], as do the scales, one for each group of inputs.

local tp = axes.tp
local d = required "head_dim"
local q = divide(required "num_attention_heads", tp) * d
local count, parts = share(required "num_key_value_heads", tp)
local kv, gate = count * d, divide(required "intermediate_size", tp)

local A, M = "model.layers.{l}.self_attn.", "model.layers.{l}.mlp."
local rules = {}

local function fused(from, into, kind, packed, start, rows, layout)
   rules[#rules + 1] = rule(from .. "." .. kind) {
      into = into .. "." .. kind, at = span(1, divide(start, packed), divide(rows, packed)), layout = layout }
end

for _, tensor in ipairs { { "qweight", 8 }, { "qzeros", 8 }, { "scales", 1 } } do
   local kind, packed = tensor[1], tensor[2]
   local kv_row = shard("tp", 1, { parts = parts })
   fused(A .. "q_proj", A .. "qkv_proj", kind, packed, 0, q, row)
   fused(A .. "k_proj", A .. "qkv_proj", kind, packed, q, kv, kv_row)
   fused(A .. "v_proj", A .. "qkv_proj", kind, packed, q + kv, kv, kv_row)
   fused(M .. "gate_proj", M .. "gate_up_proj", kind, packed, 0, gate, row)
   fused(M .. "up_proj", M .. "gate_up_proj", kind, packed, gate, gate, row)
   rules[#rules + 1] = rule("model.layers.{l}.{m=self_attn.o_proj|mlp.down_proj}." .. kind) { layout = column }
end

return {
   name = "awq",
   extends = "llama",
   full = policy { quantization = "awq", pipeline = true },
   rules = rules,
}
