--- The interpreted string patterns of rule code against Lua's own. Random cases; replay with SLUICE_SEED=n.

local text_pattern = require "sluice.text_pattern"

local function results(code, ...)
   local list = { pcall(code, ...) }
   if not list[1] then
      return "error"
   end
   for i = 1, table.maxn(list) do
      list[i] = tostring(list[i])
   end
   return table.concat(list, "|")
end

local function matches(code, text, pattern)
   return results(function()
      local list = {}
      for a, b in code(text, pattern) do
         list[#list + 1] = tostring(a) .. "," .. tostring(b)
      end
      return table.concat(list, ";")
   end)
end

local PIECES = {
   "a", "b", "c", ".", "%a", "%d", "%s", "%w", "%A", "%.", "%%", "[ab]", "[^a]", "[a-c]", "[%a_]", "[^%s]", "[]]", "[^]]", "[a-]",
   "a*", "a+", "a-", "a?", ".*", ".-", "b?", "[ab]*", "%a+", "(a)", "(b*)", "(.-)", "()", "(a(b))", "%1", "%bab", "%f[ab]",
   "%f[%W]", "$", "^", "(", ")", "[", "%", "*",
}
local LETTERS = { "a", "b", "c", "1", " ", "_", ".", "-", "^", "]", "a", "b" }

local function text_of(list, count)
   local pieces = {}
   for i = 1, math.random(0, count) do
      pieces[i] = list[math.random(#list)]
   end
   return table.concat(pieces)
end

describe("text_pattern", function()
   local seed = tonumber(os.getenv("SLUICE_SEED")) or os.time()

   it("gives what string.find, match, gmatch and gsub give", function()
      math.randomseed(seed)
      for case = 1, 20000 do
         local pattern, text = (math.random() < 0.2 and "^" or "") .. text_of(PIECES, 5), text_of(LETTERS, 10)
         local init = math.random(-4, 12)
         local place = ("seed %d case %d: pattern %q, text %q, init %d"):format(seed, case, pattern, text, init)
         assert.equal(results(string.find, text, pattern, init), results(text_pattern.find, text, pattern, init), place)
         assert.equal(results(string.find, text, pattern, init, true), results(text_pattern.find, text, pattern, init, true), place)
         assert.equal(results(string.match, text, pattern, init), results(text_pattern.match, text, pattern, init), place)
         assert.equal(results(string.gsub, text, pattern, "<%0>"), results(text_pattern.gsub, text, pattern, "<%0>"), place)
         assert.equal(results(string.gsub, text, pattern, "%1", 2), results(text_pattern.gsub, text, pattern, "%1", 2), place)
         assert.equal(results(string.gsub, text, pattern, { a = "x" }), results(text_pattern.gsub, text, pattern, { a = "x" }), place)
         if pattern:sub(1, 1) ~= "^" then
            assert.equal(matches(string.gmatch, text, pattern), matches(text_pattern.gmatch, text, pattern), place)
         end
      end
   end)

   it("calls functions with the captures", function()
      assert.equal("[a=1] [b=2]", (text_pattern.gsub("a1 b2", "(%a)(%d)", function(a, b) return "[" .. a .. "=" .. b .. "]" end)))
   end)

   it("refuses what is no text", function()
      assert.has_error(function() text_pattern.find({}, "a") end, "bad argument #1 to 'find' (string expected, got table)")
      assert.has_error(function() text_pattern.gsub("a", "a") end, "bad argument #3 to 'gsub' (string/function/table expected, got nil)")
   end)

   it("repeats texts", function()
      assert.equal("ababab", text_pattern.rep("ab", 3))
      assert.equal("ab,ab", text_pattern.rep("ab", 2, ","))
      assert.equal("", text_pattern.rep("ab", -1))
      assert.equal("11", text_pattern.rep(1, 2))
   end)
end)
