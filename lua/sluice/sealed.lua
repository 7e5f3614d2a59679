--- Values that the words of rule files make: small tables that rule code holds and cannot look into or change, and what
-- messages say of them and of any other value.
-- @module sluice.sealed

jit.off(true, true)

local check = require "sluice.check"
local sandbox = require "sluice.sandbox"

local sealed = {}

local LARGEST = 2 ^ 53

-- What kind of value a table made by a word is. Rule code cannot reach this, and so cannot make such values by hand. It
-- holds an empty table for each: what was checked when it was made cannot be changed afterwards.
local kinds = setmetatable({}, { __mode = "k" })
local opened = setmetatable({}, { __mode = "k" })
local SEALED = {}

--- A value for rule code to hold.
function sealed.make(kind, value)
   local handle = setmetatable({}, SEALED)
   kinds[value], kinds[handle], opened[handle] = kind, kind, value
   return handle
end

--- Gives a kind to something that is no such value, so that messages can tell what it is.
function sealed.mark(value, kind)
   kinds[value] = kind
end

--- The value behind what a word gave to rule code.
function sealed.open(handle)
   return opened[handle]
end

--- The kind of a value that a word made ("rule", "span", "shard", ...), nil for any other value.
function sealed.kind(value)
   return (type(value) == "table" or type(value) == "function") and kinds[value] or nil
end

-- Whether a chunk is Sluice's own, which no rule's author wrote.
local function is_own(source)
   return source:find("^@sluice/") and not source:find("^@sluice/rules/")
end

--- "file:line" of the rule code that called the word that asks.
function sealed.place()
   for level = 3, 60 do
      local frame = debug.getinfo(level, "Sl")
      if not frame then
         break
      elseif frame.currentline > 0 and not is_own(frame.source) then
         return frame.source:sub(2) .. ":" .. frame.currentline
      end
   end
   return "a rule file"
end

--- Raises a mistake in the rule code that is running.
function sealed.raise(text, ...)
   sandbox.raise(sealed.place() .. ": " .. text:format(...))
end

local function with_article(kind)
   return (kind:find("^[aeiou]") and "an " or "a ") .. kind
end

function SEALED.__newindex(handle)
   sealed.raise("%s cannot be changed; make another one", with_article(kinds[handle]))
end

--- A value as messages show it.
function sealed.shown(value)
   if type(value) == "string" then
      return '"' .. check.shorten(value) .. '"'
   elseif type(value) == "number" and value == math.floor(value) and math.abs(value) <= LARGEST then
      return ("%.0f"):format(value)
   elseif kinds[value] then
      return with_article(kinds[value])
   end
   return type(value) == "number" and ("%.14g"):format(value) or type(value) == "boolean" and tostring(value) or type(value)
end

--- The value, which must be an integer in [low, high].
function sealed.integer(value, what, low, high)
   if type(value) ~= "number" or value ~= math.floor(value) or value < low or value > (high or LARGEST) then
      local bounded = high and high < LARGEST or type(value) == "number" and value > LARGEST and value < math.huge
      sealed.raise("%s (%s) must be an integer%s", what, sealed.shown(value),
         bounded and (" from %.0f to %.0f"):format(low, high or LARGEST) or (" of at least %.0f"):format(low))
   end
   return value
end

sealed.largest = LARGEST

return sealed
