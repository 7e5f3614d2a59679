--- The description of Qwen2.5-VL, held against what its tower computes: a head's rows of q, k and v and its columns of proj are
-- on one rank, and so are a hidden unit's rows of gate and up and its column of down.

local deployment = require "sluice.deployment"
local materialise = require "spec.models.materialise"
local models = require "sluice.models"
local tiny = require "spec.models.tiny"
local with = require "spec.support.with"

local get = materialise.get

local HEADS, D, WIDE = 4, 2, 8
local H = HEADS * D
local tower = { depth = 1, hidden_size = H, intermediate_size = WIDE, num_heads = HEADS, out_hidden_size = 6, patch_size = 2,
                temporal_patch_size = 2, spatial_merge_size = 2 }

local function model_of(changes, vision_changes)
   return with({ family = "qwen2_5_vl", config = tiny.config({ vision_config = with(tower, vision_changes) }) }, changes)
end

-- The tower that rank r of tp holds, as named by a trainer with `prefix` in front of its names.
local function check_tower(tensors, prefix, tp, r)
   local block, source = "visual.blocks.0.", prefix .. "visual.blocks.0."
   local heads, wide = HEADS / tp, WIDE / tp
   local qkv, bias, gate_up = tensors[block .. "attn.qkv.weight"], tensors[block .. "attn.qkv.bias"], block .. "mlp.gate_up_proj."
   assert.same({ 3 * heads * D, H }, qkv.shape)
   for part = 0, 2 do
      for i = 0, heads * D - 1 do
         local row = part * H + r * heads * D + i
         assert.equal(("%sattn.qkv.weight[%d,5]"):format(source, row), get(qkv, part * heads * D + i, 5))
         assert.equal(("%sattn.qkv.bias[%d]"):format(source, row), get(bias, part * heads * D + i))
         assert.equal(("%sattn.proj.weight[5,%d]"):format(source, r * heads * D + i),
            get(tensors[block .. "attn.proj.weight"], 5, i))
      end
   end
   for i = 0, wide - 1 do
      local unit = r * wide + i
      for place, part in pairs({ [i] = "gate_proj", [wide + i] = "up_proj" }) do
         assert.equal(("%smlp.%s.weight[%d,3]"):format(source, part, unit), get(tensors[gate_up .. "weight"], place, 3))
         assert.equal(("%smlp.%s.bias[%d]"):format(source, part, unit), get(tensors[gate_up .. "bias"], place))
      end
      assert.equal(("%smlp.down_proj.weight[3,%d]"):format(source, unit), get(tensors[block .. "mlp.down_proj.weight"], 3, i))
   end
   for i = 0, 4 * H / tp - 1 do
      local unit = r * 4 * H / tp + i
      assert.equal(("%svisual.merger.mlp.0.weight[%d,9]"):format(prefix, unit), get(tensors["visual.merger.mlp.0.weight"], i, 9))
      assert.equal(("%svisual.merger.mlp.0.bias[%d]"):format(prefix, unit), get(tensors["visual.merger.mlp.0.bias"], i))
      assert.equal(("%svisual.merger.mlp.2.weight[5,%d]"):format(prefix, unit), get(tensors["visual.merger.mlp.2.weight"], 5, i))
   end
   for name, extent in pairs({
      [block .. "attn.proj.bias"] = H, [block .. "mlp.down_proj.bias"] = H, [block .. "norm1.weight"] = H, [block .. "norm2.weight"] = H,
      ["visual.merger.ln_q.weight"] = H, ["visual.merger.mlp.2.bias"] = 6 }) do
      assert.same({ extent }, tensors[name].shape)
      assert.equal(("%s%s[1]"):format(prefix, name), get(tensors[name], 1))
   end
   assert.same({ H, 3, 2, 2, 2 }, tensors["visual.patch_embed.proj.weight"].shape)
   assert.equal(prefix .. "visual.patch_embed.proj.weight[7,2,1,1,0]",
      get(tensors["visual.patch_embed.proj.weight"], 7, 2, 1, 1, 0))
end

describe("the description of Qwen2.5-VL", function()
   for naming, prefixes in pairs({ module = { "model.", "model.language_model." }, hub = { "", "model." } }) do
      for _, tp in ipairs({ 1, 2, 4 }) do
         it(("cuts the tower by tp %d, on every stage, for names of the %s"):format(tp, naming), function()
            local description = tiny.describe(model_of({ naming = naming }), { mesh = { { "pp", 2 }, { "tp", tp } } })
            for r = 0, 2 * tp - 1 do
               local tensors = materialise.worker(description, r)
               check_tower(tensors, prefixes[1], tp, r % tp)
               local layer = ("layers.%d.self_attn."):format(math.floor(r / tp))
               assert.equal(("%s%sq_proj.bias[%d]"):format(prefixes[2], layer, r % tp * 16 / tp),
                  get(tensors["language_model.model." .. layer .. "qkv_proj.bias"], 0))
               assert.is_nil(tensors["language_model.model." .. layer .. "o_proj.bias"])
            end
            local rows = 128 / tp
            local last = materialise.worker(description, tp + math.floor(69 / rows))
            assert.equal("lm_head.weight[69,1]", get(last["language_model.lm_head.weight"], 69 % rows, 1))
         end)
      end
   end

   it("keeps the tower whole where the host does, of any width", function()
      local description = tiny.describe(model_of({ mm_encoder_tp_mode = "data" }), { mesh = { { "tp", 8 } } })
      check_tower(materialise.worker(description, 5), "model.", 1, 0)
   end)

   it("lets a text-only trainer leave the tower as it is", function()
      local description = tiny.describe(model_of({ naming = "text" }), { mesh = { { "tp", 2 } } })
      for _, param in ipairs(description.params) do
         assert.is_nil(param.name:find("visual", 1, true))
      end
      assert.is_true(description.host.trainer_is_text_only)
      for _, live in ipairs(description.live(1)) do
         assert.equal(live.name:find("^visual%.") and true or nil, live.unsourced)
      end
   end)

   it("knows a trainer by the names of its checkpoint", function()
      for _, naming in ipairs({ "module", "hub", "text" }) do
         local list = {}
         for i, param in ipairs(tiny.describe(model_of({ naming = naming }), { mesh = { { "tp", 2 } } }).params) do
            list[i] = { name = param.name, dtype = param.dtype, shape = param.shape }
         end
         local checked = assert(deployment.check({
            model = model_of(), trainer = { mesh = { { "dp", 1 } } }, worker = { mesh = { { "tp", 2 } } },
         }))
         assert.equal(naming, assert(models.describe(checked, list)).config.naming)
      end
   end)

   it("refuses what no host could serve", function()
      for _, case in ipairs({
         { {}, {}, 8, 'vision_config.num_heads (4) must divide by the workers\' tp (8), or model.mm_encoder_tp_mode be "data"' },
         { {}, { intermediate_size = 7 }, 2,
            'vision_config.intermediate_size (7) must divide by the workers\' tp (2), or model.mm_encoder_tp_mode be "data"' },
         { {}, { num_heads = 3 }, 1, "vision_config.hidden_size (8) must divide by its num_heads (3)" },
         { {}, { out_hidden_size = 8 }, 1, "vision_config.out_hidden_size (8) must be hidden_size (6)" },
      }) do
         local checked, text = deployment.check({ model = model_of(case[1], case[2]), trainer = { mesh = { { "dp", 1 } } },
            worker = { mesh = { { "tp", case[3] } } } })
         if checked then
            checked, text = models.describe(checked)
         end
         assert.is_nil(checked)
         assert.equal("deployment: model.config." .. case[4], text)
      end
   end)
end)
