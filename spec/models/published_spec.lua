--- config.json as it is published: what of it a deployment takes, and what is told where it does not fit.

local cjson = require "cjson"
local deployment = require "sluice.deployment"
local models = require "sluice.models"

local TRAINER, WORKER = { mesh = { { "dp", 1 } } }, { mesh = { { "tp", 1 } } }

-- The model of a deployment whose checkpoint lies with this config.json (a text, or a table to be encoded).
local function read(model, config)
   model.checkpoint = "there"
   local text = type(config) == "table" and cjson.encode(config) or config
   local checked, problem = deployment.read(cjson.encode({ model = model, trainer = TRAINER, worker = WORKER }), "a.json", nil,
      function(checkpoint)
         assert.equal("there", checkpoint)
         return text, "there/config.json"
      end)
   return checked and checked.model, problem
end

local function with(changes)
   local config = {
      architectures = { "LlamaForCausalLM" }, model_type = "llama", rope_theta = 500000.0, torch_dtype = "bfloat16", vocab_size = 70,
      hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
      head_dim = cjson.null, tie_word_embeddings = false,
   }
   for key, value in pairs(changes or {}) do
      config[key] = value
   end
   return config
end

describe("the config.json of a checkpoint", function()
   it("says the family and the keys that decide shapes; null says nothing", function()
      assert.same({
         family = "llama", checkpoint = "there",
         config = { vocab_size = 70, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
                    num_key_value_heads = 2, tie_word_embeddings = false },
      }, read({}, with()))
   end)

   it("is overruled by the deployment, key by key", function()
      local model = assert(read({ config = { tie_word_embeddings = true, hidden_size = 32 } }, with()))
      assert.is_true(model.config.tie_word_embeddings)
      assert.equal(32, model.config.hidden_size)
      assert.equal(70, model.config.vocab_size)
   end)

   it("is passed over where the deployment names a public size", function()
      assert.same({ family = "qwen3", size = "Qwen3-8B", checkpoint = "there" }, read({ size = "Qwen3-8B" }, with()))
   end)

   it("has a multimodal model's keys one level deeper", function()
      local text = with()
      local model = assert(read({}, { architectures = { "Gemma3ForConditionalGeneration" }, text_config = {
         vocab_size = text.vocab_size, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
         num_key_value_heads = 2, rope_theta = 1,
      }, vision_config = { hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, image_size = 4,
         patch_size = 2, model_type = "siglip_vision_model", vision_use_head = false } }))
      assert.equal("gemma3", model.family)
      assert.equal(16, model.config.hidden_size)
      assert.same({ hidden_size = 8, intermediate_size = 8, num_hidden_layers = 1, num_attention_heads = 2, image_size = 4, patch_size = 2 },
         model.config.vision_config)
   end)

   it("finds every family by its architecture", function()
      for name, family in pairs(models.families) do
         for _, architecture in ipairs(family.architectures or { family.architecture }) do
            local model, text = read({}, { architectures = { architecture } })
            assert.is_nil(model)
            assert.truthy(text:find(("is missing: the family %s needs it"):format(name), 1, true), text)
         end
      end
   end)

   local cases = {
      { "an architecture that nobody knows", with({ architectures = { "T5Model" } }),
         'model.family is missing, and the checkpoint\'s config.json names the architecture "T5Model", which is none of ' },
      { "no architecture", with({ architectures = cjson.null }),
         "model.family is missing, and the checkpoint's config.json names the architecture nil, which is none of " },
      { "a key of another type", with({ hidden_size = "16" }), 'model.config.hidden_size ("16") must be an integer' },
      { "a text that is no JSON", "{", "there/config.json is not JSON: " },
      { "JSON that is no object", "3", "there/config.json holds 3, not a JSON object" },
   }
   for _, case in ipairs(cases) do
      it("refuses " .. case[1], function()
         local model, text = read({}, case[2])
         assert.is_nil(model)
         assert.equal("deployment: " .. case[3], text:sub(1, #case[3] + 12))
      end)
   end

   it("names the public size that it is", function()
      local model = { family = "bert", config = { num_hidden_layers = 6, hidden_size = 384, intermediate_size = 1536,
         num_attention_heads = 12, vocab_size = 30522, max_position_embeddings = 512, type_vocab_size = 2 } }
      assert.equal("all-MiniLM-L6-v2", models.config(model).title)
      model.config.vocab_size = 30523
      assert.equal("bert", models.config(model).title)
   end)
end)
