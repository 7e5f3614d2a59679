--- The description of DeepSeek-V3, held against what latent attention, experts and block scales mean: what a worker's heads
-- read and write must belong together, and each part of a weight must lie beside the scales of the very blocks that it is of.

local deployment = require "sluice.deployment"
local materialise = require "spec.models.materialise"
local models = require "sluice.models"
local tiny = require "spec.models.tiny"

local get = materialise.get

local BLOCK = 4
local base = {
   num_hidden_layers = 2, hidden_size = 18, intermediate_size = 16, moe_intermediate_size = 16, num_attention_heads = 8,
   n_routed_experts = 5, n_shared_experts = 2, first_k_dense_replace = 1, q_lora_rank = 8, kv_lora_rank = 5, qk_nope_head_dim = 4,
   qk_rope_head_dim = 4, v_head_dim = 4, vocab_size = 70, num_nextn_predict_layers = 1,
   quantization_config = { quant_method = "fp8", weight_block_size = { BLOCK, BLOCK } },
}

local function config(changes)
   local copy = {}
   for key, value in pairs(base) do
      copy[key] = value
   end
   for key, value in pairs(changes or {}) do
      copy[key] = value or nil
   end
   return copy
end

local function describe_model(changes, worker, mtp)
   return tiny.describe({ family = "deepseek_v3", config = config(changes), mtp = mtp }, worker)
end

-- Row `row` of a tensor whose rows lie in `from` from column 0 on.
local function check_row(tensor, i, from, row)
   for h = 0, tensor.shape[2] - 1 do
      assert.equal(("%s[%d,%d]"):format(from, row, h), get(tensor, i, h))
   end
end

local function check_attention(tensors, prefix, tp, r)
   local heads, last = 8 / tp, tensors[prefix .. "fused_qkv_a_proj.weight"].shape[1] - 1
   for i = 0, last do
      local source = prefix .. (i < 8 and "q_a_proj" or "kv_a_proj_with_mqa") .. ".weight"
      check_row(tensors[prefix .. "fused_qkv_a_proj.weight"], i, source, i < 8 and i or i - 8)
   end
   assert.equal(8 + 5 + 4 - 1, last)
   for name, rows in pairs({ q_b_proj = 4 + 4, kv_b_proj = 4 + 4 }) do
      local tensor = tensors[prefix .. name .. ".weight"]
      assert.equal(heads * rows, tensor.shape[1])
      for i = 0, heads * rows - 1 do
         check_row(tensor, i, prefix .. name .. ".weight", r * heads * rows + i)
      end
   end
   local o = tensors[prefix .. "o_proj.weight"]
   assert.same({ 18, heads * 4 }, o.shape)
   for i = 0, heads * 4 - 1 do
      assert.equal(("%so_proj.weight[7,%d]"):format(prefix, r * heads * 4 + i), get(o, 7, i))
   end
   for i = 0, 7 do
      assert.equal(("%sq_a_layernorm.weight[%d]"):format(prefix, i), get(tensors[prefix .. "q_a_layernorm.weight"], i))
   end
end

local function check_mlp(tensors, prefix, width, r)
   local gate_up, down = tensors[prefix .. "gate_up_proj.weight"], tensors[prefix .. "down_proj.weight"]
   assert.same({ 2 * width, 18 }, gate_up.shape)
   assert.same({ 18, width }, down.shape)
   for i = 0, width - 1 do
      check_row(gate_up, i, prefix .. "gate_proj.weight", r * width + i)
      check_row(gate_up, width + i, prefix .. "up_proj.weight", r * width + i)
      assert.equal(("%sdown_proj.weight[3,%d]"):format(prefix, r * width + i), get(down, 3, i))
   end
end

local function check_experts(tensors, prefix, first, count, width, r)
   local w13, w2 = tensors[prefix .. "experts.w13_weight"], tensors[prefix .. "experts.w2_weight"]
   assert.same({ count, 2 * width, 18 }, w13.shape)
   assert.same({ count, 18, width }, w2.shape)
   for e = 0, count - 1 do
      local name = ("%sexperts.%d."):format(prefix, first + e)
      for i = 0, width - 1 do
         assert.equal(("%sgate_proj.weight[%d,5]"):format(name, r * width + i), get(w13, e, i, 5))
         assert.equal(("%sup_proj.weight[%d,5]"):format(name, r * width + i), get(w13, e, width + i, 5))
         assert.equal(("%sdown_proj.weight[5,%d]"):format(name, r * width + i), get(w2, e, 5, i))
      end
   end
end

-- Every element of a quantized weight finds, at its place counted in blocks, the scale of its own block.
local function check_scales(tensors)
   local checked = 0
   for name, weight in pairs(tensors) do
      local scales = tensors[name .. "_scale_inv"]
      if weight.dtype == "float8_e4m3fn" then
         assert.equal("float32", scales.dtype)
         materialise.each(weight.shape, function(index)
            local at = { unpack(index) }
            at[#at - 1], at[#at] = math.floor(at[#at - 1] / BLOCK), math.floor(at[#at] / BLOCK)
            local source, row, column = get(weight, unpack(index)):match("^(.*)%[(%d+),(%d+)%]$")
            assert.equal(("%s_scale_inv[%d,%d]"):format(source, math.floor(row / BLOCK), math.floor(column / BLOCK)),
               get(scales, unpack(at)))
         end)
         checked = checked + 1
      end
   end
   return checked
end

describe("the description of DeepSeek-V3", function()
   for _, tp in ipairs({ 1, 2, 4 }) do
      it(("gives every rank under tp %d its heads, units and blocks"):format(tp), function()
         local description = describe_model(nil, { mesh = { { "tp", tp } } })
         for r = 0, tp - 1 do
            local tensors = materialise.worker(description, r)
            check_attention(tensors, "model.layers.0.self_attn.", tp, r)
            check_attention(tensors, "model.layers.1.self_attn.", tp, r)
            check_mlp(tensors, "model.layers.0.mlp.", 16 / tp, r)
            check_mlp(tensors, "model.layers.1.mlp.shared_experts.", 32 / tp, r)
            check_experts(tensors, "model.layers.1.mlp.", 0, 5, 16 / tp, r)
            assert.equal("float32", tensors["model.layers.1.mlp.gate.e_score_correction_bias"].dtype)
            assert.equal("bfloat16", tensors["model.layers.1.mlp.gate.weight"].dtype)
            assert.is_nil(tensors["model.layers.0.mlp.gate.weight"])
            assert.is_nil(tensors["model.layers.2.enorm.weight"])
            assert.equal(6 + 8, check_scales(tensors))
         end
      end)
   end

   it("gives whole experts to ranks under ep, the first ones one more", function()
      local description = describe_model(nil, { mesh = { { "tp", 2 } }, expert_mesh = { { "ep", 2 } } })
      for r = 0, 1 do
         local tensors = materialise.worker(description, r)
         check_experts(tensors, "model.layers.1.mlp.", r * 3, 3 - r, 16, 0)
         check_mlp(tensors, "model.layers.1.mlp.shared_experts.", 16, r)
         check_scales(tensors)
      end
   end)

   it("has no scales in bfloat16, and then parts of any size", function()
      local description = describe_model({ quantization_config = false }, { mesh = { { "tp", 8 } } })
      local tensors = materialise.worker(description, 3)
      check_attention(tensors, "model.layers.1.self_attn.", 8, 3)
      check_mlp(tensors, "model.layers.0.mlp.", 2, 3)
      check_experts(tensors, "model.layers.1.mlp.", 0, 5, 2, 3)
      for name, tensor in pairs(tensors) do
         assert.is_nil(name:find("scale_inv"))
         assert.equal(name:find("e_score") and "float32" or "bfloat16", tensor.dtype)
      end
      assert.is_nil(description.host.quantization)
   end)

   it("queries without a latent where q_lora_rank is not given", function()
      local description = describe_model({ q_lora_rank = false }, { mesh = { { "tp", 2 } } })
      local tensors, prefix = materialise.worker(description, 1), "model.layers.0.self_attn."
      check_row(tensors[prefix .. "q_proj.weight"], 2, prefix .. "q_proj.weight", 34)
      check_row(tensors[prefix .. "kv_a_proj_with_mqa.weight"], 8, prefix .. "kv_a_proj_with_mqa.weight", 8)
      assert.is_nil(tensors[prefix .. "fused_qkv_a_proj.weight"])
      check_scales(tensors)
   end)

   it("holds what drafts on the last stage where that is served, its layer as a block of its own", function()
      local description = describe_model(nil, { mesh = { { "pp", 2 }, { "tp", 2 } } }, "served")
      assert.is_nil(materialise.worker(description, 1)["model.layers.2.enorm.weight"])
      local tensors = materialise.worker(description, 3)
      for _, name in ipairs({ "embed_tokens", "enorm", "hnorm", "eh_proj", "shared_head.norm", "shared_head.head" }) do
         assert.truthy(tensors["model.layers.2." .. name .. ".weight"])
      end
      assert.same({ 18, 36 }, tensors["model.layers.2.eh_proj.weight"].shape)
      local block = "model.layers.2.mtp_block."
      assert.equal("model.layers.2.mlp.experts.4.up_proj.weight[8,0]", get(tensors[block .. "mlp.experts.w13_weight"], 4, 8, 0))
      assert.equal("model.layers.2.self_attn.o_proj.weight[0,16]", get(tensors[block .. "self_attn.o_proj.weight"], 0, 0))
      assert.truthy(tensors[block .. "input_layernorm.weight"])
      check_scales(tensors)
   end)

   it("drafts nothing when it is cut short", function()
      local description = tiny.describe({ size = "DeepSeek-V3", layers = 4, mtp = "served" }, { mesh = { { "tp", 8 } } })
      assert.equal("DeepSeek-V3 (4 of 61 layers)", description.title)
      assert.equal(0, description.host.num_nextn_predict_layers)
      assert.equal("lm_head.weight", description.params[#description.params].name)
   end)

   describe("refuses workers whose parts are no whole blocks:", function()
      local cases = {
         { { { "tp", 8 } }, nil, {}, "the MLP of a worker (2) must be a whole number of blocks of 4" },
         { { { "tp", 1 } }, nil, { q_lora_rank = 6 }, "q_lora_rank of a worker (6) must be a whole number of blocks of 4" },
         { { { "tp", 8 } }, nil,
            { intermediate_size = 32, n_shared_experts = false, moe_intermediate_size = 32, qk_rope_head_dim = 2 },
            "the queries of a worker (6) must be a whole number of blocks of 4" },
         { { { "tp", 2 } }, { { "ep", 2 } }, { moe_intermediate_size = 18, n_shared_experts = false },
            "an expert of a worker (18) must be a whole number of blocks of 4" },
         { { { "tp", 2 } }, nil, { quantization_config = { quant_method = "fp8", weight_block_size = { 4, 32 } } },
            "the attention's output of a worker (16) must be a whole number of blocks of 32" },
         { { { "tp", 3 } }, nil, {}, "model.config.num_attention_heads (8) must divide by the workers' tp (3)" },
      }
      for _, case in ipairs(cases) do
         it(case[4], function()
            local description, text = models.describe(assert(deployment.check({
               model = { family = "deepseek_v3", config = config(case[3]) }, trainer = { mesh = { { "dp", 1 } } },
               worker = { mesh = case[1], expert_mesh = case[2] },
            })))
            assert.is_nil(description)
            assert.equal("deployment: " .. case[4], text)
         end)
      end
   end)

   it("takes the published quantization_config, and no other", function()
      for _, case in ipairs({
         { { quant_method = "awq" }, 'quant_method ("awq") must be one of fp8' },
         { { quant_method = "fp8", fmt = "e5m2", weight_block_size = { 128, 128 } },
            'fmt ("e5m2") must be one of e4m3: did you mean e4m3?' },
         { { quant_method = "fp8", weight_block_size = { 128 } }, "weight_block_size has 1 entries; it must have 2 to 2" },
         { { quant_method = "fp8", weight_block_size = { 128, 0 } }, "weight_block_size[2] (0) must be at least 1" },
      }) do
         local _, text = models.config({ family = "deepseek_v3", config = config({ quantization_config = case[1] }) })
         assert.equal("model.config.quantization_config." .. case[2], text)
      end
      local resolved = models.config({ family = "deepseek_v3", config = config({ quantization_config = { quant_method = "fp8",
         weight_block_size = { 128, 128 }, activation_scheme = "dynamic", fmt = "e4m3" } }) })
      assert.same({ 128, 128 }, resolved.quantization_config.weight_block_size)
   end)
end)
