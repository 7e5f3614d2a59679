local ffi = require "ffi"
local inside = require "spec.support.inside"

describe("text from outside", function()
   local C = inside.declare("base/text.h")

   local function tame(text)
      local bytes = ffi.new("char[?]", #text + 1, text)
      C.slc_text_tame(bytes)
      return ffi.string(bytes)
   end

   it("loses control characters save line ends and tabs", function()
      assert.equal("a?[31m\tb\nc?", tame("a\27[31m\tb\nc\127"))
   end)

   it("keeps UTF-8 and loses every byte that is none", function()
      local cases = {
         {"", ""}, {"\195\169\226\130\172\240\159\152\128", "\195\169\226\130\172\240\159\152\128"},
         {"\255a\128", "?a?"}, -- bytes that begin nothing
         {"a\195", "a?"}, {"\226\130", "??"}, {"\240\159\152", "???"}, -- cut
         {"\192\175", "??"}, {"\224\128\175", "???"}, {"\240\128\128\175", "????"}, -- longer than need be
         {"\237\160\128", "???"}, {"\244\144\128\128", "????"}, -- surrogates, beyond Unicode
      }
      for _, case in ipairs(cases) do
         assert.equal(case[2], tame(case[1]))
         assert.equal(case[1] == case[2], C.slc_text_is_utf8(case[1]))
      end
   end)
end)
