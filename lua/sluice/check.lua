--- Checks of values that came from outside, and how a broken one is said: "<path> (<found>) <rule>".
-- Paths are joined only when something is wrong, so that a check of a good value costs next to nothing.
-- @module sluice.check

local core = require "sluice.core"

local check = {}

local LARGEST = 2 ^ 53
local LONGEST_SHOWN = 60

--- Raises an error whose text reaches the caller of the library as it stands.
-- @param status a name of SLUICE_STATUS_LIST, such as "INVALID"
-- @param text the message without its stage
function check.raise(status, text)
   error({ status = core.status[status], text = text }, 0)
end

local function is_list(value)
   return type(value) == "table" and (value[1] ~= nil or next(value) == nil)
end

local function is_object(value)
   return type(value) == "table" and type(next(value)) == "string"
end

check.is_list, check.is_object = is_list, is_object

--- A text cut to what a message can show, control characters as escapes.
function check.shorten(text, most)
   most = most or LONGEST_SHOWN
   if #text > most then
      text = text:sub(1, most):gsub("[\128-\191]*$", ""):gsub("[\192-\255]$", "") .. "..."
   end
   return (text:gsub("%c", function(char) return ("\\%d"):format(char:byte()) end))
end

--- A number as it is written in JSON.
function check.number(value)
   return value == math.floor(value) and math.abs(value) <= LARGEST and ("%.0f"):format(value) or ("%.14g"):format(value)
end

--- What was found, for a message.
function check.found(value)
   if value == nil then
      return "missing"
   elseif value == core.null then
      return "null"
   elseif type(value) == "string" then
      return '"' .. check.shorten(value) .. '"'
   elseif type(value) == "number" then
      return check.number(value)
   elseif type(value) == "table" then
      if not is_list(value) then
         return "an object"
      end
      local items = {}
      for i = 1, math.min(#value, 8) do
         items[i] = type(value[i]) == "table" and (is_list(value[i]) and "[...]" or "{...}") or check.found(value[i])
      end
      return "[" .. table.concat(items, ", ") .. (#value > 8 and ", ..." or "") .. "]"
   end
   return tostring(value)
end

--- Reads a text that must be a JSON object.
-- @return the object, and whether any number in it is odd (src/script/json.h); or nil, what was found in its place, and whether the
--    text is no JSON at all
function check.read_object(text)
   local value, problem = core.json(text)
   if value == nil then
      return nil, problem, true
   elseif is_object(value) or (type(value) == "table" and next(value) == nil and text:find("^%s*{")) then
      return value, problem ~= nil
   end
   return nil, check.found(value), false
end

local function path_of_infinite(value)
   if value == math.huge or value == -math.huge then
      return "", value
   end
   for key, item in pairs(type(value) == "table" and value or {}) do
      local path, found = path_of_infinite(item)
      if path then
         return (type(key) == "number" and ("[%d]"):format(key - 1) or "." .. check.shorten(key)) .. path, found
      end
   end
end

--- Raises where a number of a JSON value is larger than a double can hold: 1e999 reads as infinity, and rules would go on with that.
function check.finite(value, what)
   local path, found = path_of_infinite(value)
   if path then
      check.raise("INVALID", ("%s: %s (%s) must be a number that a double can hold"):format(what, (path:gsub("^%.", "")), check.found(found)))
   end
end

--- Reads the attributes of a live tensor, which must be a JSON object.
function check.attributes(live, text)
   local value, found = check.read_object(text)
   if not value then
      check.raise("INVALID", ("live tensor '%s': its attributes (%s) must be a JSON object"):format(check.shorten(live), found))
   end
   if found then
      check.finite(value, ("live tensor '%s': its attributes"):format(check.shorten(live)))
   end
   return value
end

--- Raises "<path> (<found>) <rule>". The path is given in pieces: names are joined by dots, numbers n become [n - 1].
function check.fail(value, rule, ...)
   check.raise("INVALID", ("%s (%s) %s"):format(check.path(...), check.found(value), rule))
end

--- Joins the pieces of a path.
function check.path(...)
   local text = ""
   for i = 1, select("#", ...) do
      local piece = select(i, ...)
      if type(piece) == "number" then
         text = ("%s[%d]"):format(text, piece - 1)
      else
         text = text == "" and piece or text .. "." .. piece
      end
   end
   return text
end

--- Whether the value is an integer in [low, high]. JSON numbers with a fraction are refused before this is asked.
function check.is_integer(value, low, high)
   return type(value) == "number" and value == math.floor(value) and value >= low and value <= (high or LARGEST)
end

--- Whether the value is a text that a C string can hold and that says something.
function check.is_name(value)
   return type(value) == "string" and value ~= "" and not value:find("%z")
end

local function list_names(names)
   return table.concat(names, ", ")
end

--- Checks that a record has every key of `required`, and beyond them only keys of `optional`; the error lists what is
-- missing and what is unknown.
-- @param record an object
-- @param required list of keys
-- @param optional list of keys
-- @param ... the path of the record, in pieces; nothing for the whole text
function check.keys(record, required, optional, ...)
   local known = 0
   for i = 1, #required do
      if record[required[i]] ~= nil then
         known = known + 1
      end
   end
   local complete = known == #required
   for i = 1, #optional do
      if record[optional[i]] ~= nil then
         known = known + 1
      end
   end
   local count = 0
   for _ in pairs(record) do
      count = count + 1
   end
   if complete and count == known then
      return
   end
   local allowed, missing, unknown = {}, {}, {}
   for _, key in ipairs(required) do
      allowed[key] = true
      missing[#missing + 1] = record[key] == nil and key or nil
   end
   for _, key in ipairs(optional) do
      allowed[key] = true
   end
   for key in pairs(record) do
      unknown[#unknown + 1] = not allowed[key] and check.shorten(key) or nil
   end
   table.sort(unknown)
   for i = #unknown, 9, -1 do
      unknown[i] = i == 9 and "..." or nil
   end
   check.raise("INVALID", ("%s (missing: %s; unknown: %s) must have the keys %s%s"):format(
      select("#", ...) == 0 and "the text" or check.path(...), #missing > 0 and list_names(missing) or "none",
      #unknown > 0 and list_names(unknown) or "none", list_names(required),
      #optional > 0 and " and may have " .. list_names(optional) or ""))
end

return check
