--- The description of GPT-OSS, held against what its experts compute: unit u of an expert is columns 2u and 2u + 1 of
-- gate_up_proj and row u of down_proj, and each unit is on one rank, with what belongs to it.

local materialise = require "spec.models.materialise"
local tiny = require "spec.models.tiny"

local get = materialise.get

local function describe_model(units, worker, live_qkv)
   return tiny.describe({ family = "gpt_oss", live_qkv = live_qkv, config = {
      num_hidden_layers = 2, hidden_size = 6, intermediate_size = units, num_attention_heads = 8, num_key_value_heads = 2,
      head_dim = 2, num_local_experts = 5, vocab_size = 70,
   } }, worker)
end

-- The element of the checkpoint that lies in a stack, or "0" behind the last unit.
local function expect(found, is_real, source, ...)
   assert.equal(is_real and ("%s[%s]"):format(source, table.concat({ ... }, ",")) or "0", found)
end

local function check_experts(tensors, layer, units, first_expert, count, room, first_unit)
   local stacks, source = layer .. "mlp.experts.", layer .. "mlp.experts."
   local w13, w13_bias, w2 = tensors[stacks .. "w13_weight"], tensors[stacks .. "w13_bias"], tensors[stacks .. "w2_weight"]
   assert.same({ count, 2 * room, 6 }, w13.shape)
   assert.same({ count, 2 * room }, w13_bias.shape)
   assert.same({ count, 6, room }, w2.shape)
   for e = 0, count - 1 do
      for i = 0, room - 1 do
         local expert, unit = first_expert + e, first_unit + i
         local is_real = unit < units
         for turn = 0, 1 do
            expect(get(w13_bias, e, 2 * i + turn), is_real, source .. "gate_up_proj_bias", expert, 2 * unit + turn)
            for h = 0, 5 do
               expect(get(w13, e, 2 * i + turn, h), is_real, source .. "gate_up_proj", expert, h, 2 * unit + turn)
            end
         end
         for h = 0, 5 do
            expect(get(w2, e, h, i), is_real, source .. "down_proj", expert, unit, h)
         end
      end
   end
end

local function check_down_bias(tensors, layer, first_expert, count, is_held)
   local bias = tensors[layer .. "mlp.experts.w2_bias"]
   assert.same({ count, 6 }, bias.shape)
   for e = 0, count - 1 do
      expect(get(bias, e, 3), is_held, layer .. "mlp.experts.down_proj_bias", first_expert + e, 3)
   end
end

describe("the description of GPT-OSS", function()
   for _, tp in ipairs({ 1, 2, 4, 8 }) do
      for _, units in ipairs({ 8, 9 }) do
         it(("cuts %d units of every expert by tp %d"):format(units, tp), function()
            local description, room = describe_model(units, { mesh = { { "tp", tp } } }), math.ceil(units / tp)
            for r = 0, tp - 1 do
               local tensors = materialise.worker(description, r, true)
               check_experts(tensors, "model.layers.1.", units, 0, 5, room, r * room)
               check_down_bias(tensors, "model.layers.1.", 0, 5, r == 0)
               assert.same({ 5, 6 }, tensors["model.layers.1.mlp.router.weight"].shape)
               assert.equal("model.layers.1.mlp.router.bias[4]", get(tensors["model.layers.1.mlp.router.bias"], 4))
            end
         end)
      end

      it(("gives every rank under tp %d a sink a head, and the heads under attn"):format(tp), function()
         local description, heads = describe_model(8, { mesh = { { "tp", tp } } }, tp == 4 and "qkv" or nil), 8 / tp
         for r = 0, tp - 1 do
            local tensors, source = materialise.worker(description, r, true), "model.layers.0.self_attn."
            local live = "model.layers.0.attn." .. (tp == 4 and "qkv" or "qkv_proj") .. "."
            local kv_heads = math.max(1, 2 / tp)
            assert.same({ heads }, tensors["model.layers.0.attn.sinks"].shape)
            assert.same({ (heads + 2 * kv_heads) * 2, 6 }, tensors[live .. "weight"].shape)
            for j = 0, heads - 1 do
               local head = r * heads + j
               local group = math.floor(head / 4)
               expect(get(tensors["model.layers.0.attn.sinks"], j), true, source .. "sinks", head)
               expect(get(tensors[live .. "weight"], 2 * j + 1, 5), true, source .. "q_proj.weight", 2 * head + 1, 5)
               expect(get(tensors[live .. "bias"], 2 * j + 1), true, source .. "q_proj.bias", 2 * head + 1)
               local k = 2 * (heads + math.floor(j / (heads / kv_heads)))
               expect(get(tensors[live .. "weight"], k, 0), true, source .. "k_proj.weight", 2 * group, 0)
               expect(get(tensors[live .. "bias"], k + 2 * kv_heads), true, source .. "v_proj.bias", 2 * group)
               expect(get(tensors["model.layers.0.attn.o_proj.weight"], 4, 2 * j), true, source .. "o_proj.weight", 4, 2 * head)
               expect(get(tensors["model.layers.0.attn.o_proj.bias"], 4), true, source .. "o_proj.bias", 4)
            end
         end
      end)
   end

   it("gives whole experts to ranks under ep, the first ones one more, each with its bias", function()
      local description = describe_model(9, { mesh = { { "tp", 2 } }, expert_mesh = { { "ep", 2 } } })
      for r = 0, 1 do
         local tensors = materialise.worker(description, r, true)
         check_experts(tensors, "model.layers.0.", 9, r * 3, 3 - r, 9, 0)
         check_down_bias(tensors, "model.layers.0.", r * 3, 3 - r, true)
      end
   end)

   it("has the embedding, the last norm and the head on every stage of a pipeline", function()
      local description = describe_model(8, { mesh = { { "pp", 2 } } })
      for r = 0, 1 do
         local tensors = materialise.worker(description, r, true)
         assert.equal("model.embed_tokens.weight[69,5]", get(tensors["model.embedding.weight"], 69, 5))
         assert.equal("0", get(tensors["lm_head.weight"], 70, 0))
         assert.truthy(tensors["model.norm.weight"])
         assert.truthy(tensors[("model.layers.%d.attn.sinks"):format(r)])
         assert.is_nil(tensors[("model.layers.%d.attn.sinks"):format(1 - r)])
      end
   end)
end)
