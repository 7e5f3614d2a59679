--- Every line of the contract has a spec, and no spec speaks of a line that is not there.

local contract = require "spec.contract"

describe("the contract", function()
   local proofs, strays = contract.proofs()

   it("has a spec for every line", function()
      local bare = {}
      for _, line in ipairs(contract.lines) do
         if #proofs[line[1]] == 0 then
            bare[#bare + 1] = table.concat(line, " ")
         end
      end
      assert.same({}, bare)
   end)

   it("has a line for every tag of a spec", function()
      assert.same({}, strays)
   end)

   it("gives each line a number of its own", function()
      local seen = {}
      for _, line in ipairs(contract.lines) do
         assert.is_nil(seen[line[1]])
         seen[line[1]] = true
      end
   end)
end)
