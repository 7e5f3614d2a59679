local ffi = require "ffi"
local control = require "spec.support.control"

describe("text", function()
   local C = control.open()

   local function with_line(room, fill)
      local text = ffi.new("char[?]", room)
      local line = ffi.new("slc_line[1]")
      line[0] = C.slc_line_in(text, room)
      fill(line)
      assert.equal(tonumber(line[0].length), #ffi.string(text))
      return ffi.string(text)
   end

   local function ranks(list, longest)
      return with_line(4096, function(line)
         C.slc_line_add_ranks(line, ffi.new("int32_t[?]", #list, list), #list, longest or 200)
      end)
   end

   it("lists ranks with runs of three or more folded", function()
      assert.equal("rank 3", ranks({3}))
      assert.equal("ranks 2, 3", ranks({2, 3}))
      assert.equal("ranks 2-5, 7", ranks({2, 3, 4, 5, 7}))
      assert.equal("ranks 0, 2-4, 8, 9", ranks({0, 2, 3, 4, 8, 9}))
   end)

   it("cuts a list of ranks and counts the rest", function()
      local odd = {}
      for i = 1, 2000 do
         odd[i] = 2 * i - 1
      end
      assert.equal("ranks 1, 3, 5, 7, 9, 11, 13, 15 and 1992 more", ranks(odd, 64))
   end)

   -- says: {{rank, text}, ...}
   local function sayings(says, room, show)
      local held = {}
      local all = ffi.new("slc_saying[?]", #says)
      for i, one in ipairs(says) do
         held[i] = ffi.new("char[?]", #one[2] + 1, one[2])
         all[i - 1] = {one[1], held[i], #one[2]}
      end
      return with_line(room or 4096, function(line)
         C.slc_line_add_sayings(line, all, #says, show or C.slc_show_text)
      end)
   end

   it("says equal things once, in the order of each group's lowest rank", function()
      assert.equal("rank 0: b; ranks 2-5, 7: a; ranks 8, 9: c",
                   sayings({{2, "a"}, {3, "a"}, {4, "a"}, {5, "a"}, {7, "a"}, {9, "c"}, {8, "c"}, {0, "b"}}))
   end)

   it("fits what it can and counts the ranks that it leaves out", function()
      local says = {}
      for rank = 0, 99 do
         says[rank + 1] = {rank, ("cause %d "):format(rank) .. ("x"):rep(300)}
      end
      local text = sayings(says, 1000)
      assert.is_true(#text < 1000)
      assert.matches("^rank 0: cause 0 x+%.%.%.; rank 1: cause 1 x+%.%.%.; ", text)
      local said = select(2, text:gsub("cause", ""))
      assert.matches(("; and %d more of 100 ranks$"):format(100 - said), text)
   end)

   it("counts what is left out of a long list of ranks that say one thing", function()
      local says = {}
      for i = 1, 500 do
         says[i] = {2 * i, "same"}
      end
      local text = sayings(says)
      local named = select(2, text:match("^ranks ([%d, ]+) and"):gsub("%d+", ""))
      assert.matches((" and %d more: same$"):format(500 - named), text)
   end)

   it("gives the room that short texts leave to long ones", function()
      local long = ("y"):rep(700)
      assert.equal("rank 0: a; rank 1: " .. long, sayings({{0, "a"}, {1, long}}, 1000))
   end)

   it("shows bodies that are no text by their size and digest", function()
      assert.equal('rank 0: "abc"; rank 1: 2 bytes with SHA-256 96a296d224f285c6', sayings({{0, "abc"}, {1, "\0\0"}}, 4096, C.slc_show_quoted))
   end)

   it("cuts at whole characters", function()
      local function cut(text, longest)
         return with_line(100, function(line)
            C.slc_line_add_cut(line, text, #text, longest)
         end)
      end
      assert.equal("abcdef", cut("abcdef", 6))
      assert.equal("ab...", cut("abcdef", 5))
      assert.equal("a...", cut("a\195\169\195\169\195\169", 5))
      assert.equal("abc", with_line(4, function(line) C.slc_line_add(line, "%s", "abc\195\169") end))
      assert.equal("abc", with_line(5, function(line) C.slc_line_add(line, "%s", "abc\195\169") end))
   end)
end)
