--- Writes JSON with sorted keys, so that output compares; a list made with json.list stays a list when it is empty.

local cjson = require "cjson"

local json = {}

local list_mark = {}

--- Marks a table as a list.
function json.list(items)
   return setmetatable(items or {}, list_mark)
end

local encode

local function encode_list(items)
   local parts = {}
   for i, item in ipairs(items) do
      parts[i] = encode(item)
   end
   return "[" .. table.concat(parts, ", ") .. "]"
end

local function encode_object(object)
   local keys, parts = {}, {}
   for key in pairs(object) do
      keys[#keys + 1] = key
   end
   table.sort(keys)
   for i, key in ipairs(keys) do
      parts[i] = cjson.encode(key) .. ": " .. encode(object[key])
   end
   return "{" .. table.concat(parts, ", ") .. "}"
end

function encode(value)
   if type(value) == "table" then
      if getmetatable(value) == list_mark or #value > 0 then
         return encode_list(value)
      end
      return encode_object(value)
   elseif type(value) == "number" then
      if value ~= value or value == math.huge or value == -math.huge then
         return "null"
      end
      return value % 1 == 0 and ("%.0f"):format(value) or ("%.9g"):format(value)
   end
   return cjson.encode(value)
end

--- @return the text of a value made of tables, strings, numbers and booleans
function json.encode(value)
   return encode(value)
end

--- Prints what a command found: as one line with --json, else as `write` does.
function json.answer(args, result, write)
   if args.json then
      io.stdout:write(json.encode(result), "\n")
   else
      write(result)
   end
end

return json
