--- Rule code in its sandbox: what it sees, what it cannot reach, how it ends when it goes too far.

local script = require "spec.support.script"

local RUN = [[
local sandbox = require "sluice.sandbox"
local value, problem = sandbox.run(%q, %q, %s, %s)
if problem then
   return "error: " .. problem
end
return "value: " .. tostring(value)
]]

describe("the sandbox (#5.3)", function()
   local state = script.new()

   local function run(code, extras, budget)
      local text, problem = state:evaluate(RUN:format(code, "file.lua", extras or "nil", budget or "nil"))
      return text or problem
   end

   local function after()
      assert.equal("value: 2", run("return 1 + 1"))
      assert.equal("ok", (state:evaluate("return (('ok'):gsub('x', 'y'))")))
   end

   it("runs a chunk and gives its first result", function()
      assert.equal("value: 42", run("return 6 * 7, 8"))
      assert.equal("value: nil", run("local x = 1"))
      assert.equal("value: 5", run("return given", "{ given = 5 }"))
   end)

   it("says file and line of an error", function()
      assert.equal("error: file.lua:2: attempt to index local 'x' (a nil value)", run("local x\nreturn x.y"))
      assert.equal("error: file.lua:1: no", run("error('no')"))
      assert.equal("error: file.lua:1: unexpected symbol near '='", run("= 1"))
   end)

   it("says that an error is no text", function()
      assert.equal("error: file.lua:1: it raised an error that is a table", run("error({})"))
      assert.equal("error: file.lua:1: it raised an error that is no text (nil)", run("error(nil)"))
      assert.equal("error: file.lua:1: it raised an error that is no text (function)", run("error(error)"))
      assert.equal("error: file.lua:1: it raised an error that is a table", run("error({text = 'x', status = 1})"))
   end)

   it("refuses bytecode", function()
      assert.equal("error: file.lua:1: bytecode is not run, only Lua text", run("\27LJ\2"))
      local text = state:evaluate([[
         local value, problem = require("sluice.sandbox").run(string.dump(function() return 1 end), "file.lua")
         return problem
      ]])
      assert.equal("file.lua:1: bytecode is not run, only Lua text", text)
   end)

   it("refuses a file of more than a megabyte", function()
      local text = state:evaluate([[
         local _, problem = require("sluice.sandbox").run((" "):rep(1048577), "file.lua")
         return problem
      ]])
      assert.equal("file.lua: the file (1048577 bytes) must be at most 1048576 bytes", text)
   end)

   for _, name in ipairs({
      "io", "os", "debug", "ffi", "jit", "package", "require", "load", "loadstring", "loadfile", "dofile", "getfenv", "setfenv",
      "getmetatable", "setmetatable", "rawget", "rawset", "rawequal", "collectgarbage", "print", "newproxy", "coroutine",
      "next", "_G", "module", "xpcall", "bit", "gcinfo",
   }) do
      it("does not show " .. name, function()
         local text = run("return " .. name)
         assert.equal("error: file.lua:1: unknown name '" .. name .. "'", (text:gsub(" %(did you mean [%w_]+%?%)$", "")))
      end)
   end

   for _, name in ipairs({ "math.random", "math.randomseed", "math.sin", "string.dump", "table.foreach" }) do
      it("does not show " .. name, function()
         assert.equal("value: nil", run("return " .. name))
      end)
   end

   it("suggests the nearest name for an unknown one", function()
      assert.equal("error: file.lua:1: unknown name 'tonumbr' (did you mean tonumber?)", run("return tonumbr('1')"))
   end)

   it("has no globals to set", function()
      assert.equal("error: file.lua:1: 'x' must be local: this file cannot set globals", run("x = 1"))
   end)

   it("does not let one file change what the next sees", function()
      run("string.format = nil; math.floor = nil; table.insert = nil")
      assert.equal("value: 1", run("return string.format('%d', math.floor(1.5))"))
      assert.equal("1", (state:evaluate("return string.format('%d', math.floor(1.5))")))
   end)

   describe("keeps results equal on every rank:", function()
      it("pairs goes through keys in order", function()
         assert.equal("value: 123abctrue", run([[
            local text = ""
            for key in pairs({ c = 1, [3] = 1, a = 1, [1] = 1, b = 1, [2] = 1, [true] = 1 }) do text = text .. tostring(key) end
            return text
         ]]))
      end)

      it("pairs refuses keys that have no order", function()
         assert.equal("error: file.lua:1: pairs: a key that is a table has no order", run("for _ in pairs({[{}] = 1}) do end"))
      end)

      it("no address has a text", function()
         assert.equal("value: table function", run("return tostring({}) .. ' ' .. tostring(error)"))
         assert.equal("error: file.lua:1: bad argument #2 to 'format' (a table has no text)", run("local s = string.format('%s', {})"))
         assert.equal("error: file.lua:1: string.format: %p is not offered", run("local s = string.format('%p', 'x')"))
         assert.equal("error: file.lua:1: string.format: %p is not offered", run("local s = ('%5p'):format('x')"))
         assert.equal("value: %p", run("return string.format('%%p')"))
      end)
   end)

   describe("reaches strings only through its own functions:", function()
      it("methods of a text are the sandbox's", function()
         assert.equal("value: nil", run("return ('x').dump"))
         assert.equal("value: 3", run("return (('abc'):find('c'))"))
         assert.equal("error: file.lua:1: string.rep (2000000 bytes) must make at most 1048576 bytes", run("local s = ('x'):rep(2e6)"))
         assert.equal("error: file.lua:1: string.rep (2000000 bytes) must make at most 1048576 bytes",
            run("local s = string.rep('', 2e6, 'x')"))
         assert.equal("value: 0", run("return #('').rep('', 1e300)"))
      end)

      it("the library's own methods are back afterwards, also after an error", function()
         run("error('no')")
         assert.equal("function", (state:evaluate("return type(('x').dump)")))
         assert.equal("3000000", (state:evaluate("return #('x'):rep(3000000)")))
      end)
   end)

   describe("ends", function()
      local SMALL = "{ instructions = 1000000, bytes = 4194304 }"

      local function ends(what, code, expected)
         it(what, function()
            local text = run(code, nil, SMALL)
            assert.truthy(text:find(expected, 1, true), text)
            after()
         end)
      end

      local INSTRUCTIONS, BYTES = "it ran too many instructions", "it used too much memory"
      ends("a loop", "while true do end", "error: file.lua:1: " .. INSTRUCTIONS)
      ends("a loop on its third line", "local x = 1\n\nwhile true do x = x + 1 end", "error: file.lua:3: " .. INSTRUCTIONS)
      ends("a counted loop", "for i = 1, 1e15 do end", INSTRUCTIONS)
      ends("a goto", "::a:: goto a", INSTRUCTIONS)
      ends("a loop that catches its end", "while true do pcall(function() while true do end end) end", INSTRUCTIONS)
      ends("a recursion that catches its end", "local function f() pcall(f) f() end f()", "error: file.lua:1: it ")
      ends("a loop after a caught end", "pcall(function() while true do end end) local n = 0 while true do n = n + 1 end", INSTRUCTIONS)
      ends("a file that returns after a caught end", "pcall(function() while true do end end) return 5", INSTRUCTIONS)
      ends("a recursion", "local function f() return 1 + f() end f()", "error: file.lua:1: stack overflow")
      ends("a tail call for ever", "local function f() return f() end return f()", INSTRUCTIONS)
      ends("a table that grows", "local t = {} for i = 1, 1e9 do t[i] = i end", BYTES)
      ends("a text that doubles", "local s = 'x' while true do s = s .. s end", BYTES)
      ends("a text that doubles and is caught", "local s = 'x' while true do pcall(function() s = s .. s end) end", "error: file.lua")
      ends("many texts that are dropped", "for i = 1, 1e9 do local s = ('x'):rep(1000) .. i end", "error: file.lua")
      ends("a long concat", "local t = {} for i = 1, 100 do t[i] = ('x'):rep(1e6) end return #table.concat(t)", BYTES)
      ends("closures that pile up", "local t = {} while true do t[#t + 1] = function() return t end end", "error: file.lua")
      ends("a pattern that backtracks", "return (('a'):rep(200)):find(('a-'):rep(30) .. 'b')", INSTRUCTIONS)
      ends("a pattern as method", "return (('a'):rep(200)):match(('.*'):rep(30) .. 'b')", INSTRUCTIONS)
      ends("a gsub that backtracks", "return (('a'):rep(200)):gsub(('.-'):rep(20) .. 'b', '')", INSTRUCTIONS)
      ends("a gmatch that backtracks", "for _ in (('a'):rep(200)):gmatch(('.-'):rep(20) .. 'b') do end", INSTRUCTIONS)
      ends("a plain find over and over", "local s = ('a'):rep(1e5) while true do s:find('b', 1, true) end", INSTRUCTIONS)
      ends("a sort with a lying comparison", [[
         local t = {} for i = 1, 5000 do t[i] = i end
         while true do table.sort(t, function() return true end) end
      ]], INSTRUCTIONS)
      ends("inserts at the front", "local t = {} while true do table.insert(t, 1, 0) end", INSTRUCTIONS)
      ends("an unpack of everything", "local a = unpack({}, 1, 1e8)", "error: file.lua:1: too many results to unpack")
      ends("pairs over and over", "local t = {} for i = 1, 100 do t[i] = i end while true do for _ in pairs(t) do end end", INSTRUCTIONS)
      ends("a deep nesting of tables", "return " .. ("{"):rep(300) .. ("}"):rep(300), "error: file.lua:1: chunk has too many syntax levels")
      ends("an error in a loop", "while true do pcall(error, {}) end", "error: file.lua:1: it used too much memory")
      ends("pcall of pcall of pcall", "local f = pcall while true do f(f, f, f, f, error) end", INSTRUCTIONS)
   end)

   it("sorts as table.sort does, and keeps the order of equals", function()
      assert.equal("value: 1 2 3 5 8 9", run("local t = {5, 3, 9, 1, 8, 2} table.sort(t) return table.concat(t, ' ')"))
      assert.equal("value: 9 8 5 3 2 1", run([[
         local t = {5, 3, 9, 1, 8, 2} table.sort(t, function(a, b) return a > b end) return table.concat(t, ' ')]]))
      assert.equal("value: a1 a2 a3 b1 b2", run([[
         local t = {"b1", "a1", "b2", "a2", "a3"}
         table.sort(t, function(a, b) return a:sub(1, 1) < b:sub(1, 1) end)
         return table.concat(t, ' ')]]))
      assert.equal("error: file.lua:1: attempt to compare string with number", run("table.sort({1, 'x'})"))
   end)

   it("inserts and removes as table.insert and table.remove do", function()
      assert.equal("value: 0 1 9 2 3", run([[
         local t = {1, 2} table.insert(t, 3) table.insert(t, 1, 0) table.insert(t, 3, 9) return table.concat(t, ' ')]]))
      assert.equal("value: 1 3 4 2 nil", run([[
         local t = {1, 2, 3, 4} local a = table.remove(t, 2) local rest = table.concat(t, ' ')
         return rest .. ' ' .. a .. ' ' .. tostring(table.remove({}))]]))
      assert.equal("error: file.lua:1: bad argument #2 to 'insert' (position out of bounds)", run("table.insert({}, 5, 1)"))
   end)
end)
