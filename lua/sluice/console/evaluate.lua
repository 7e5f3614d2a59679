--- Runs what is typed at the console: in a sandbox of plain values, under a budget, with names that stay from line to line.
-- @module sluice.console.evaluate

local nearest = require "sluice.nearest"
local sandbox = require "sluice.sandbox"
local show = require "sluice.console.show"
local difference = require "sluice.cli.difference"
local words = require "sluice.console.words"

local evaluate = {}
evaluate.__index = evaluate

local CHUNK = "@prompt"
local BUDGET = { instructions = 100000000, bytes = 256 * 1024 * 1024 }
local LONGEST = 1024 * 1024

local function text_of(problem)
   if type(problem) == "table" and problem.text then
      return problem.text
   end
   return tostring(problem)
end

-- What prompt code sees: its own names first, then the words, then plain Lua.
local function environment(session, print)
   local names = sandbox.names()
   for name, f in pairs(words.functions) do
      names[name] = sandbox.word(function(...)
         return f(session, ...)
      end, text_of)
   end
   names.print = sandbox.word(print, text_of)
   local values = {}
   for name, f in pairs(words.values) do
      values[name] = sandbox.word(function()
         return f(session)
      end, text_of)
   end
   local unknown = sandbox.word(function(name)
      local known = nearest.keys(names)
      for other in pairs(values) do
         known[#known + 1] = other
      end
      error({ text = ("unknown name '%s'%s"):format(tostring(name), nearest.hint(tostring(name), known)) }, 0)
   end, text_of)
   local own = {}
   return setmetatable(own, {
      __index = function(_, name)
         local value = values[name]
         if value then
            return value()
         end
         value = names[name]
         return value ~= nil and value or unknown(name)
      end,
   }), own, names, values
end

--- An evaluator of one session.
-- @param session of sluice.console.session
-- @param write function(text) that gets what is printed
function evaluate.new(session, write)
   local self = setmetatable({ session = session }, evaluate)
   session.word = function(f)
      return sandbox.word(f, text_of)
   end
   self.env, self.own, self.names, self.values = environment(session, function(...)
      local items = {}
      for i = 1, select("#", ...) do
         items[i] = show.text((select(i, ...)))
      end
      write(table.concat(items, "  ") .. "\n")
   end)
   function session.word_names()
      return self:word_names()
   end
   function session.value(_, path)
      return self:value(path)
   end
   return self
end

-- ---- reading ----

-- A rule is kept as it was written, so that it can be saved.
local function is_rule(text)
   return text:find("^%s*rule%s*[\"'(%[]") ~= nil
end

local function load_text(text, env)
   return load(text, CHUNK, "t", env)
end

-- A shell's habit: `explain model.norm.weight`.
local function quotes_of(text)
   local word, name = text:match("^%s*(%a[%w_]*)%s+([^%s\"'%[%](){}=,;][^%s\"'%[%]()=,;]*)")
   return (word == "rule" or word and words.functions[word]) and ('; what a word is given stands in quotes: %s "%s"'):format(word, name) or ""
end

--- Compiles a text: an expression if it is one, else statements.
-- @return a function; or nil, the problem, and whether more lines may mend it
function evaluate:compile(text)
   if #text > LONGEST then
      return nil, ("a statement (%d bytes) must have at most %d bytes"):format(#text, LONGEST), false
   end
   local chunk = load_text("return " .. text, self.env)
   if chunk then
      return chunk
   end
   local problem
   chunk, problem = load_text(text, self.env)
   if chunk then
      return chunk
   end
   -- A text in quotes ends on its line, so that no further line mends it.
   local unfinished = problem:find("near '<eof>'", 1, true) ~= nil and not problem:find("unfinished string", 1, true)
   return nil, unfinished and problem or problem .. quotes_of(text), unfinished
end

-- ---- running ----

local function collect(chunk)
   local function pack(...)
      return { n = select("#", ...), ... }
   end
   return pack(chunk())
end

local function run_rule(self, text)
   local comparison
   local good, problem = pcall(function()
      comparison = self.session:add_rule((text:gsub("^%s+", ""):gsub("[%s;]+$", "")))
   end)
   if not good then
      return nil, text_of(problem)
   end
   return comparison.same and "nothing changed" or difference.text(comparison):gsub("\n$", "")
end

--- Runs one whole statement.
-- @return what it prints, "" for nothing; or nil and the error
function evaluate:run(text)
   if text:find("^%s*$") then
      return ""
   end
   local chunk, problem = self:compile(text)
   if not chunk then
      return nil, problem
   elseif is_rule(text) then
      return run_rule(self, text)
   end
   local results, wrong = sandbox.call("prompt", BUDGET, collect, chunk)
   if not results then
      return nil, wrong
   end
   local lines = {}
   for i = 1, results.n do
      if results[i] ~= nil or results.n > 1 then
         lines[#lines + 1] = show.text(results[i])
      end
   end
   -- `help` alone, and any other word that can be called so, is asked what it says.
   if results.n == 1 and results[1] == self.names.help then
      return self:run("help()")
   end
   return table.concat(lines, "\n")
end

-- ---- for completion ----

--- Every name that stands for something.
function evaluate:word_names()
   local list = nearest.keys(self.names)
   for _, set in ipairs({ self.values, self.own }) do
      for name in pairs(set) do
         list[#list + 1] = type(name) == "string" and name or nil
      end
   end
   list[#list + 1], list[#list + 2] = "rule", "quit"
   return list
end

--- What a dotted path of plain keys and numbers stands for, or nil; calls nothing.
function evaluate:value(path)
   local value
   for step in path:gmatch("[^%.%[%]]+") do
      if value == nil then
         local word = rawget(self.own, step)
         value = word ~= nil and word or self.names[step]
         if value == nil and self.values[step] then
            value = select(2, pcall(words.values[step], self.session))
         end
      else
         value = rawget(value, tonumber(step) or step)
      end
      if type(value) ~= "table" then
         return nil
      end
   end
   return value
end

return evaluate
