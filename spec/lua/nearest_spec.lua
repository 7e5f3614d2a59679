local nearest = require "sluice.nearest"

describe("nearest.word", function()
   local words = { "into", "layout", "companion", "at", "from", "full" }
   local cases = {
      { "ino", "into" }, { "intoo", "into" }, { "itno", "into" }, { "INTO", "into" }, { "lay_out", "layout" }, { "compagnon", "companion" },
      { "form", "from" }, { "io", nil }, { "zzzzzz", nil }, { "q", nil }, { "", nil },
   }
   for _, case in ipairs(cases) do
      it(("gives %s for '%s'"):format(tostring(case[2]), case[1]), function()
         assert.equal(case[2], nearest.word(case[1], words))
      end)
   end

   it("prefers the same first letter", function()
      assert.equal("tp", nearest.word("tpp", { "pp", "tp" }))
   end)

   it("gives nothing for a word without end", function()
      assert.is_nil(nearest.word(("a"):rep(10000), words))
   end)

   it("says it as a hint", function()
      assert.equal(" (did you mean into?)", nearest.hint("ino", words))
      assert.equal("", nearest.hint("zzzzzz", words))
      assert.equal(" (did you mean na\\27me?)", nearest.hint("name", { "na\27me" }))
   end)
end)
