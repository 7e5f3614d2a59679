--- A multimodal server through real processes: a checkpoint that its own config.json describes, and a trainer that has the
-- language model alone.

local cjson = require "cjson"
local deployment = require "sluice.deployment"
local models = require "sluice.models"
local program = require "spec.cli.program"
local safetensors = require "spec.support.safetensors"

local text = {
   num_hidden_layers = 2, hidden_size = 16, intermediate_size = 32, num_attention_heads = 4, num_key_value_heads = 2,
   head_dim = 8, vocab_size = 70,
}
local vision = {
   hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1, num_attention_heads = 4, image_size = 20, patch_size = 2,
}

local function with_model(model)
   return {
      model = model, trainer = { mesh = { { "fsdp", 3 } } }, worker = { mesh = { { "pp", 2 }, { "tp", 2 } } }, rules = "gemma3",
   }
end

local function run(description, ...)
   return program.run({ "run", program.file(cjson.encode(description), ".json"), "--json", ... })
end

describe("sluice run of Gemma 3, multimodal,", function()
   after_each(program.cleanup)

   it("takes a checkpoint as it is published, with more rows than the vocabulary, by its config.json", function()
      local folder = os.tmpname()
      os.remove(folder)
      assert(require("posix.sys.stat").mkdir(folder))
      finally(function() os.execute("rm -rf " .. folder) end)
      local model = { family = "gemma3", naming = "hub", config = { text_config = text, vision_config = vision } }
      local listed, list = assert(models.describe(assert(deployment.check(with_model(model))))), {}
      for i, param in ipairs(listed.params) do
         local shape = { unpack(param.shape) }
         if param.name == "language_model.model.embed_tokens.weight" then
            shape[1] = 134
         end
         local count = 1
         for _, extent in ipairs(shape) do
            count = count * extent
         end
         local bytes = (string.char(i) .. "\1\2"):rep(count):sub(1, 2 * count)
         list[i] = { name = param.name, dtype = "BF16", shape = shape, bytes = bytes }
      end
      safetensors.write(folder .. "/model.safetensors", list)
      local file = assert(io.open(folder .. "/config.json", "w"))
      file:write(cjson.encode({
         architectures = { "Gemma3ForConditionalGeneration" }, text_config = text, vision_config = vision,
      }))
      file:close()

      local result = run(with_model({ checkpoint = folder }))
      assert.equal(0, result.code, result.err)
      local report = program.json(result)
      assert.equal(#list, report.parameters_direct)
      assert.equal(0, report.parameters_full)
   end)

   local function text_only()
      return with_model({ family = "gemma3", naming = "text", config = { text_config = text, vision_config = vision } })
   end

   it("leaves the tower as it is where the trainer has the language model alone", function()
      local result = run(text_only())
      assert.equal(0, result.code, result.err)
      local report = program.json(result)
      assert.equal(0, report.parameters_full)
      assert.equal("vision_tower.vision_model.embeddings.patch_embedding.weight", report.coverage.uncovered[1].name)
   end)

   it("does not let the trainer lack a tower that it should bring", function()
      local description = text_only()
      description.host = { trainer_is_text_only = false }
      local result = run(description)
      assert.equal(2, result.code, result.err)
      assert.truthy(result.err:find("vision_tower.vision_model.", 1, true), result.err)
   end)

   it("sees what was written where nothing belongs", function()
      local rules = program.file([[
return { extends = "gemma3", rules = { rule "model.norm.weight" {
   {}, { into = "vision_tower.vision_model.post_layernorm.bias" } } } }
]], ".lua")
      local result = run(text_only(), "--rules", rules)
      assert.equal(1, result.code, result.err)
      assert.truthy(result.err:find('"vision_tower.vision_model.post_layernorm.bias" [0] was written, yet no parameter '
         .. "belongs there", 1, true), result.err)
   end)
end)
