--- What to do about an error that Lua itself raised in a rule file: its words are those of Lua, its cause is often one of a rule's.
-- @module sluice.advice

local host_keys = require("sluice.host").keys

local advice = {}

-- What Lua's parser says, and what was most likely meant.
local SYNTAX = {
   { "'}' expected .*near '='", '; a rule is written rule "pattern" { ... }, a key of a table key = value' },
   { "'}' expected .*near '[%w_\"]", "; a comma may be missing before it" },
   { "near '!'", "; Lua writes 'not equal' as ~= and 'not' as not" },
   { "'=' expected near '[-+*/]'", "; Lua writes n = n + 1 in full" },
}

-- The keys of the host that a line asks for and that the host does not say.
local function silent_in(line, environment)
   for key in line:gmatch("%f[%w_]host%.([%a_][%w_]*)") do
      if host_keys[key] and environment.optional(key) == nil then
         return key
      end
   end
end

local function line_at(text, wanted)
   local number = 0
   for line in (text .. "\n"):gmatch("([^\n]*)\n") do
      number = number + 1
      if number == wanted then
         return line
      end
   end
   return ""
end

local VALUES = { column = true, row = true, replicate = true }
local ASKED = { host = 'host.key or required "key"', axes = "axes.tp", meshes = "meshes.expert.ep" }

local function of_call(problem)
   local name = problem:match("attempt to call global '([%w_]+)' %(a table value%)")
   if VALUES[name] then
      return (": %s stands without parentheses"):format(name)
   elseif ASKED[name] then
      return (": it is asked as %s"):format(ASKED[name])
   end
end

local function is_axis(name, environment)
   return (pcall(function() return environment.axes[name] end))
end

local function of_name(problem, environment)
   local name = problem:match("unknown name '([%w_]+)'")
   if not name then
      return nil
   elseif is_axis(name, environment) then
      return ('; the axis is "%s" in quotes, its size axes.%s'):format(name, name)
   elseif environment.optional(name) ~= nil or host_keys[name] then
      return ('; what the host says is host.%s or required "%s"'):format(name, name)
   end
end

local function of_nil(problem, text, environment)
   local line = tonumber(problem:match(":(%d+): "))
   if not line or not (problem:find("nil", 1, true) or problem:find("must be a number", 1, true)) then
      return nil
   end
   local key = silent_in(line_at(text, line), environment)
   return key and ('; the host does not say it: required "%s" asks for it'):format(key)
end

--- What to add to a message of Lua's.
-- @param problem the message, which begins with file and line
-- @param text the file's text
-- @param environment of words.environment
-- @return a text, "" where there is nothing to say
function advice.on(problem, text, environment)
   for _, case in ipairs(SYNTAX) do
      if problem:find(case[1]) then
         return case[2]
      end
   end
   return of_call(problem) or of_name(problem, environment) or of_nil(problem, text, environment) or ""
end

return advice
