--- The rule files and rules in lua/README.md, as they stand there.

local files = require "scripts.files"
local resolving = require "spec.support.resolving"

local HOST = { num_attention_heads = 32, num_key_value_heads = 8, head_dim = 4, hidden_size = 128, intermediate_size = 256, num_experts = 8,
               vocab_size = 1000, num_hidden_layers = 4 }
-- Numbers that an example's text speaks of.
local NAMES = "local half, q, kv, tp, V, im, I, heads, d, head = 4, 32, 16, axes.tp, 1000, 8, 8, 8, 4, spread(8, axes.tp) "

local function examples()
   local text = assert(files.read("lua/README.md"))
   local list = {}
   for block in text:gmatch("```lua\n(.-)\n *```") do
      list[#list + 1] = block
   end
   for rule in text:gmatch("`(rule \"[^`]*})`") do
      list[#list + 1] = rule
   end
   return list
end

describe("lua/README.md", function()
   local list = examples()

   it("has its examples", function()
      assert.is_true(#list >= 10)
   end)

   for i, text in ipairs(list) do
      it(("loads example %d"):format(i), function()
         if text:find("^ *rule") then
            text = "return { rules = { " .. text .. " } }"
         end
         local got = resolving.resolve({ tp = 2, params = {}, live = {}, host = HOST, text = (text:find("local tp") and "" or NAMES) .. text })
         assert.equal("", got.text)
      end)
   end
end)
