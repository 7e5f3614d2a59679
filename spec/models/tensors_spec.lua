--- Descriptions made from a checkpoint's list of tensors: what the list decides, and what is said of one that does not fit.

local deployment = require "sluice.deployment"
local models = require "sluice.models"
local tiny = require "spec.models.tiny"

local config, live_of = tiny.config, tiny.live

describe("models.describe() with a checkpoint's list of tensors", function()
   local function deployment_of(model)
      return assert(deployment.check({ model = model, trainer = { mesh = { { "dp", 1 } } }, worker = { mesh = { { "tp", 2 } } } }))
   end

   local function list_of(model, dtype)
      local list = {}
      for _, param in ipairs(assert(models.describe(deployment_of(model))).params) do
         list[#list + 1] = { name = param.name, shape = { unpack(param.shape) }, dtype = param.dtype == "int64" and "int64" or dtype }
      end
      return list
   end

   local function without(list, name)
      local left = {}
      for _, tensor in ipairs(list) do
         left[#left + 1] = tensor.name ~= name and tensor or nil
      end
      return left
   end

   it("takes the dtype of the weights from it", function()
      local description = assert(models.describe(deployment_of({ family = "bert" }), list_of({ family = "bert" }, "float16")))
      assert.equal("float16", description.params[1].dtype)
      assert.equal("float16", live_of(description, 0, "pooler.dense.weight").dtype)
      assert.equal("int64", live_of(description, 0, "embeddings.position_ids").dtype)
   end)

   it("has position ids only where the checkpoint has", function()
      local list = without(list_of({ family = "bert" }, "float32"), "embeddings.position_ids")
      local description = assert(models.describe(deployment_of({ family = "bert" }), list))
      assert.equal(103, #description.params)
      assert.is_nil(live_of(description, 0, "embeddings.position_ids"))
   end)

   it("announces a tied head only where the checkpoint has one", function()
      local model = { family = "llama", config = config({ tie_word_embeddings = true, announce_tied = true }) }
      local list = list_of(model, "float32")
      assert.equal(#list, #assert(models.describe(deployment_of(model), list)).params)
      assert.equal(#list - 1, #assert(models.describe(deployment_of(model), without(list, "lm_head.weight"))).params)
   end)

   it("passes over the layers that a scaled-down model leaves out", function()
      local list = list_of({ family = "bert" }, "float32")
      local description = assert(models.describe(deployment_of({ family = "bert", layers = 2 }), list))
      assert.equal(40, #description.params)
   end)

   local function refuses(text, change)
      local list = list_of({ family = "bert" }, "float32")
      list = change(list) or list
      local description, message = models.describe(deployment_of({ family = "bert" }), list)
      assert.is_nil(description)
      assert.equal(text, message)
   end

   it("names a tensor that is missing", function()
      refuses('checkpoint: tensor "encoder.layer.3.output.dense.bias" is missing: all-MiniLM-L6-v2 wants float32 [384]',
         function(list) return without(list, "encoder.layer.3.output.dense.bias") end)
   end)

   it("names a tensor of another shape", function()
      refuses('checkpoint: tensor "pooler.dense.weight" has the shape [384, 383]: all-MiniLM-L6-v2 wants [384, 384]',
         function(list) list[#list - 1].shape[2] = 383 end)
   end)

   it("names a tensor of another dtype", function()
      refuses('checkpoint: tensor "pooler.dense.weight" has the dtype bfloat16: all-MiniLM-L6-v2 wants float32',
         function(list) list[#list - 1].dtype = "bfloat16" end)
   end)

   it("names a tensor that the model does not have", function()
      refuses('checkpoint: tensor "encoder.layer.6.output.dense.bias" [384] is no part of all-MiniLM-L6-v2',
         function(list) list[#list + 1] = { name = "encoder.layer.6.output.dense.bias", shape = { 384 }, dtype = "float32" } end)
   end)

   it("names a tensor that is listed twice", function()
      refuses('checkpoint: tensor "pooler.dense.bias" is listed twice', function(list) list[#list + 1] = list[#list] end)
   end)
end)
