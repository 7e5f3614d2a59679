--- How input of models and deployments is checked: one failure ends the whole reading, with a sentence that names the path.
-- Owns the wording of found values and the nearest-key suggestion; knows no key of any schema.

local nearest = require "sluice.nearest"

local check = {}

local failure = {}

--- Ends the reading under way: `check.try` returns nil and this text.
function check.fail(text, ...)
   error(setmetatable({ text = select("#", ...) > 0 and text:format(...) or text }, failure), 0)
end

--- Runs f(...). Returns its first result, or nil and the text of a failure; an error of another kind goes on as it came.
function check.try(f, ...)
   local good, result = pcall(f, ...)
   if good then
      return result
   end
   if getmetatable(result) == failure then
      return nil, result.text
   end
   error(result, 0)
end

--- A value as it stands in messages: numbers and booleans plain, short strings quoted, anything else by its kind.
function check.shown(value)
   local kind = type(value)
   if kind == "number" then
      if value % 1 == 0 and value > -1e15 and value < 1e15 then
         return ("%d"):format(value)
      end
      return ("%.17g"):format(value)
   end
   if kind == "string" then
      local text = #value > 40 and value:sub(1, 37) .. "..." or value
      return '"' .. text:gsub('[%c"\\]', function(char) return ("\\%d"):format(char:byte()) end) .. '"'
   end
   if kind == "boolean" or kind == "nil" then
      return tostring(value)
   end
   if kind == "userdata" then -- cjson's null
      return "null"
   end
   return "a " .. kind
end

--- The list in words: "a, b and c".
function check.listed(words)
   if #words < 2 then
      return words[1] or "none"
   end
   return table.concat(words, ", ", 1, #words - 1) .. " and " .. words[#words]
end

-- ": did you mean x?", where something is near.
local function hint(word, known)
   local found = type(word) == "string" and nearest.word(word, known) or nil
   return found and (": did you mean %s?"):format(found)
end

--- Fails unless `value` is one of `known`; suggests the nearest.
function check.one_of(value, path, known)
   for _, word in ipairs(known) do
      if value == word then
         return value
      end
   end
   check.fail("%s (%s) must be one of %s%s", path, check.shown(value), check.listed(known), hint(value, known) or "")
end

--- Fails unless `value` is a table whose keys are all in `known` (a list).
function check.keys(value, path, known)
   if type(value) ~= "table" then
      check.fail("%s (%s) must be a table with some of the keys %s", path, check.shown(value), check.listed(known))
   end
   local is_known = {}
   for _, key in ipairs(known) do
      is_known[key] = true
   end
   local strange = {}
   for key in pairs(value) do
      if not is_known[key] then
         strange[#strange + 1] = key
      end
   end
   if #strange > 0 then
      -- The first in order of text, so that the same table always gives the same message.
      table.sort(strange, function(a, b) return tostring(a) < tostring(b) end)
      local key = strange[1]
      check.fail("%s has the unknown key %s%s", path, check.shown(key),
         hint(key, known) or "; known are " .. check.listed(known))
   end
   return value
end

--- Fails unless `value` is a list: keys 1 to n without holes, n within [low, high].
function check.list(value, path, low, high, what)
   if type(value) ~= "table" then
      check.fail("%s (%s) must be a list of %s", path, check.shown(value), what)
   end
   local count, entries = #value, 0
   for _ in pairs(value) do
      entries = entries + 1
   end
   if entries ~= count then
      check.fail("%s must be a plain list of %s, without holes or named keys", path, what)
   end
   if count < low or count > high then
      check.fail("%s has %d entries; it must have %d to %d", path, count, low, high)
   end
   return value
end

--- Fails unless `value` is an integer within [low, high].
function check.integer(value, path, low, high)
   if type(value) ~= "number" or value % 1 ~= 0 then
      check.fail("%s (%s) must be an integer", path, check.shown(value))
   end
   if value < low then
      check.fail("%s (%s) must be at least %d", path, check.shown(value), low)
   end
   if value > high then
      check.fail("%s (%s) must be at most %d", path, check.shown(value), high)
   end
   return value
end

--- Fails unless `value` is of the Lua type `kind`, or nil.
function check.optional(value, path, kind)
   if value ~= nil and type(value) ~= kind then
      check.fail("%s (%s) must be a %s", path, check.shown(value), kind)
   end
   return value
end

--- Fails unless `value` is a string of 1 to `longest` bytes without control characters.
function check.text(value, path, longest)
   if type(value) ~= "string" or value == "" then
      check.fail("%s (%s) must be a non-empty string", path, check.shown(value))
   end
   if #value > longest then
      check.fail("%s (%d bytes) must be at most %d bytes", path, #value, longest)
   end
   if value:find("%c") then
      check.fail("%s (%s) must hold no control characters", path, check.shown(value))
   end
   return value
end

return check
