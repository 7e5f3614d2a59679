--- Where rule and deployment files run: an allow-list of names, text chunks only, a budget of instructions and bytes that
-- the file cannot escape (core.guard), and nothing whose result differs between two ranks: no clock, no random numbers, no
-- addresses, no unordered pairs.
-- @module sluice.sandbox

jit.off(true, true)

local core = require "sluice.core"
local nearest = require "sluice.nearest"
local text_pattern = require "sluice.text_pattern"

local sandbox = {}

local LONGEST_TEXT = 1048576
local BUDGET = { instructions = 50000000, bytes = 268435456 }

local type, error, select, tostring = type, error, select, tostring

-- ---- base functions that are safe to hand out only in another form ----

local function ordered_keys(t)
   local numbers, strings, booleans = {}, {}, {}
   for key in next, t do
      local kind = type(key)
      local list = kind == "number" and numbers or kind == "string" and strings or kind == "boolean" and booleans
      if not list then
         error("pairs: a key that is a " .. kind .. " has no order", 3)
      end
      list[#list + 1] = key
   end
   return numbers, strings, booleans
end

-- Merge sort: a known number of steps, all of them counted, whatever the comparison says.
local function sort(list, before)
   local size, from, to = #list, list, {}
   local width = 1
   while width < size do
      for low = 1, size, 2 * width do
         local middle, high = math.min(low + width, size + 1), math.min(low + 2 * width, size + 1)
         local a, b = low, middle
         for i = low, high - 1 do
            local take_b = a >= middle
            if not take_b and b < high then
               if before then
                  take_b = before(from[b], from[a])
               else
                  take_b = from[b] < from[a]
               end
            end
            if take_b then
               to[i], b = from[b], b + 1
            else
               to[i], a = from[a], a + 1
            end
         end
      end
      from, to = to, from
      width = 2 * width
   end
   for i = 1, size do
      list[i] = from[i]
   end
end

local function ordered_pairs(t)
   if type(t) ~= "table" then
      error("bad argument #1 to 'pairs' (table expected, got " .. type(t) .. ")", 2)
   end
   local shown = getmetatable(t)
   t = shown and shown.__values or t -- host, axes, meshes: what they are asked for
   local keys, strings, booleans = ordered_keys(t)
   sort(keys)
   sort(strings)
   for _, list in ipairs({ strings, booleans }) do
      for i = 1, #list do
         keys[#keys + 1] = list[i]
      end
   end
   local i = 0
   return function()
      i = i + 1
      local key = keys[i]
      if key ~= nil then
         return key, t[key]
      end
   end
end

-- Addresses differ between ranks.
local function plain_text(value)
   local kind = type(value)
   if kind == "string" or kind == "number" or kind == "boolean" or kind == "nil" then
      return tostring(value)
   end
   return kind
end

local function format(text, ...)
   if type(text) == "string" and text:gsub("%%%%", ""):find("%%[%-%+ #%d%.]*p") then
      error("string.format: %p is not offered", 2)
   end
   for i = 1, select("#", ...) do
      local kind = type((select(i, ...)))
      if kind ~= "string" and kind ~= "number" and kind ~= "boolean" and kind ~= "nil" then
         error(("bad argument #%d to 'format' (a %s has no text)"):format(i + 1, kind), 2)
      end
   end
   return string.format(text, ...)
end

-- table.insert and table.remove as loops, for the same reason as sort.
local function insert(list, ...)
   local size, count = #list, select("#", ...)
   if count == 1 then
      list[size + 1] = (...)
      return
   elseif count ~= 2 then
      error("wrong number of arguments to 'insert'", 2)
   end
   local position, value = ...
   if type(position) ~= "number" or position < 1 or position > size + 1 or position % 1 ~= 0 then
      error("bad argument #2 to 'insert' (position out of bounds)", 2)
   end
   for i = size, position, -1 do
      list[i + 1] = list[i]
   end
   list[position] = value
end

local function remove(list, position)
   local size = #list
   position = position or size
   if size == 0 then
      return nil
   elseif type(position) ~= "number" or position < 1 or position > size or position % 1 ~= 0 then
      error("bad argument #2 to 'remove' (position out of bounds)", 2)
   end
   local value = list[position]
   for i = position, size do
      list[i] = list[i + 1]
   end
   return value
end

local function copy(from, names)
   local to = {}
   for name in names:gmatch("%S+") do
      to[name] = from[name]
   end
   return to
end

-- ---- the environment ----

local function string_library()
   local library = copy(string, "byte char len lower reverse sub upper")
   for _, name in ipairs({ "find", "match", "gmatch", "gsub", "rep" }) do
      library[name] = text_pattern[name]
   end
   library.format = format
   return library
end

-- What "text":method() finds while rule code runs; rule code cannot reach this table, only copies of it.
local METHODS = string_library()

local function base()
   local env = copy(_G, "assert error ipairs pcall select tonumber type unpack")
   env.pairs, env.tostring = ordered_pairs, plain_text
   env.math = copy(math, "abs ceil floor fmod huge max min modf")
   env.string = string_library()
   env.table = copy(table, "concat maxn")
   env.table.insert, env.table.remove, env.table.sort, env.table.unpack = insert, remove, sort, unpack
   return env
end

local function environment(extras)
   local names = base()
   for name, value in pairs(extras or {}) do
      names[name] = value
   end
   return setmetatable({}, {
      __index = function(_, name)
         local value = names[name]
         if value == nil then
            error(("unknown name '%s'%s"):format(plain_text(name), nearest.hint(plain_text(name), nearest.keys(names))), 2)
         end
         return value
      end,
      __newindex = function(_, name)
         error(("'%s' must be local: this file cannot set globals"):format(plain_text(name)), 2)
      end,
   })
end

--- The names that every file sees: a fresh table.
sandbox.names = base

-- ---- running ----

local raised = setmetatable({}, { __mode = "k" })

--- Raises, from a word that rule code calls, an error of the library's own: its text is not touched on the way.
-- @param text the whole message
function sandbox.raise(text)
   local object = { text = text }
   raised[object] = text -- not the object's own, which rule code may catch and change
   error(object, 0)
end

local function pack(...)
   return { n = select("#", ...), ... }
end

--- A function of the library's own as guarded code may call it: what it does counts against no budget.
-- @param f the function
-- @param text_of function(error) -> the text that its caller gets for an error that it raised
function sandbox.word(f, text_of)
   return function(...)
      local methods = getmetatable("")
      local before = methods.__index
      methods.__index = string
      local results = pack(pcall(core.unguarded, f, ...))
      methods.__index = before
      if not results[1] then
         sandbox.raise(text_of(results[2]))
      end
      return unpack(results, 2, results.n)
   end
end

--- Calls a function that came from rule code, under a budget.
-- @param place what the message starts with when there is no line to tell
-- @return the function's first result; or nil and a text
function sandbox.call(place, budget, code, ...)
   budget = budget or BUDGET
   local methods = getmetatable("")
   local normal = methods.__index
   methods.__index = METHODS
   local outcome, result, where = core.guard(code, budget.instructions or BUDGET.instructions, budget.bytes or BUDGET.bytes, ...)
   methods.__index = normal
   if outcome == "ok" then
      return result
   elseif type(result) == "table" then
      return nil, raised[result] or (where ~= "" and where or place .. ": ") .. "it raised an error that is a table"
   elseif result:find(":%d+: ") then
      return nil, result
   end
   return nil, place .. ": " .. result
end

--- Runs a file.
-- @param text Lua text; bytecode is refused
-- @param chunkname its name in messages
-- @param extras names that the file sees beside the base ones
-- @param budget {instructions =, bytes =}; either may be left out
-- @return the file's first result; or nil and a text with file and line
function sandbox.run(text, chunkname, extras, budget)
   local name = chunkname:gsub("^[@=]", "")
   if #text > LONGEST_TEXT then
      return nil, ("%s: the file (%d bytes) must be at most %d bytes"):format(name, #text, LONGEST_TEXT)
   elseif text:byte(1) == 27 then
      return nil, name .. ":1: bytecode is not run, only Lua text"
   end
   text = text:gsub("^\239\187\191", "") -- what some editors put in front of UTF-8
   local chunk, problem = load(text, "@" .. name, "t", environment(extras))
   if not chunk then
      if problem == "not enough memory" then
         error({ status = core.status.NO_MEMORY, text = "out of memory for " .. name }, 0)
      end
      return nil, problem
   end
   return sandbox.call(name, budget, chunk)
end

return sandbox
