--- The public sizes, held against the totals that their publishers state.

local deployment = require "sluice.deployment"
local models = require "sluice.models"
local tiny = require "spec.models.tiny"

local describe_model = tiny.describe

describe("published sizes", function()
   -- Tensors in the published checkpoints, and their elements, as the models' cards and indexes state them.
   local cases = {
      { "Llama-3-8B", 291, 8030261248 }, { "Llama-3-70B", 723, 70553706496 }, { "Qwen3-8B", 399, 8190735360 },
      { "Mistral-7B-v0.3", 291, 7248023552 }, { "Qwen2.5-0.5B", 290, 494032768 }, { "Qwen2.5-7B", 339, 7615616512 },
      { "Mixtral-8x7B", 995, 46702792704 }, { "Gemma-2-9B", 464, 9241705984 }, { "Gemma-3-1B", 340, 999885952 },
      { "Gemma-3-12B", 1065, 12187325040 }, { "Phi-3-mini", 195, 3821079552 },
      { "Qwen3-32B", 707, 32762123264 }, { "Qwen3-30B-A3B", 18867, 30532122624 }, { "Qwen3-235B-A22B", 36945, 235093634560 },
      { "GPT-OSS-20B", 411, 20914757184 }, { "GPT-OSS-120B", 615, 116829156672 },
      { "Qwen2.5-VL-3B", 824, 3754622976 }, { "Qwen2.5-VL-7B", 729, 8292166656 }, { "Qwen2.5-VL-72B", 1353, 73410777344 },
      -- With the drafting layer and the scales of every block.
      { "DeepSeek-V3", 91991, 684531386000 }, { "DeepSeek-V3-bf16", 46183, 684489845504 },
   }
   for _, case in ipairs(cases) do
      it(("gives %s its %d parameters"):format(case[1], case[2]), function()
         local description = describe_model({ size = case[1] }, { mesh = { { "tp", 1 } } })
         local elements = 0
         for _, param in ipairs(description.params) do
            local product = 1
            for _, extent in ipairs(param.shape) do
               product = product * extent
            end
            elements = elements + product
         end
         assert.equal(case[2], #description.params)
         assert.equal(case[3], elements)
      end)
   end

   it("lets a packed checkpoint list two tensors a layer for all experts", function()
      assert.equal(1037, #describe_model({ size = "Qwen3-235B-A22B", experts = "packed" }, { mesh = { { "tp", 8 } } }).params)
   end)

   it("refuses a model of more parameters than anyone has", function()
      local _, text = models.describe(assert(deployment.check({
         model = { size = "Qwen3-30B-A3B", config = { num_experts = 65536 } }, trainer = { mesh = { { "dp", 1 } } },
         worker = { mesh = { { "tp", 1 } } },
      })))
      assert.equal("deployment: model has more than 1000000 parameters", text)
   end)
end)
