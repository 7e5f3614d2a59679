--- JSON in the one form that is hashed: keys sorted, no spaces, ASCII only, as Python's
-- json.dumps(value, sort_keys=True, separators=(",", ":")) writes it. Holds integers, strings, booleans, null, lists and
-- objects; an empty table is an empty list.
-- @module sluice.canonical

local core = require "sluice.core"

local canonical = {}

local format, byte = string.format, string.byte

local SHORT = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\f"] = "\\f", ["\b"] = "\\b" }

local function escape_one(char)
   return SHORT[char] or format("\\u%04x", byte(char))
end

local function escape_wide(char)
   local a, b, c, d = byte(char, 1, 4)
   local code
   if a < 0xE0 then
      code = (a - 0xC0) * 0x40 + b - 0x80
   elseif a < 0xF0 then
      code = ((a - 0xE0) * 0x40 + b - 0x80) * 0x40 + c - 0x80
   else
      code = (((a - 0xF0) * 0x40 + b - 0x80) * 0x40 + c - 0x80) * 0x40 + d - 0x80
   end
   if code < 0x10000 then
      return format("\\u%04x", code)
   end
   code = code - 0x10000
   return format("\\u%04x\\u%04x", 0xD800 + math.floor(code / 0x400), 0xDC00 + code % 0x400)
end

--- A string in quotes. The text must be valid UTF-8.
function canonical.string(text)
   if text:find('[^ !#-%[%]-~]') then
      text = text:gsub('[%c"\\]', escape_one):gsub("[\194-\244][\128-\191]+", escape_wide)
   end
   return '"' .. text .. '"'
end

local encode

local function encode_list(list)
   local items = {}
   for i = 1, #list do
      local value = list[i]
      items[i] = type(value) == "number" and format("%.0f", value) or encode(value)
   end
   return "[" .. table.concat(items, ",") .. "]"
end

local function encode_object(object)
   local keys = {}
   for key in pairs(object) do
      keys[#keys + 1] = key
   end
   table.sort(keys)
   for i, key in ipairs(keys) do
      keys[i] = canonical.string(key) .. ":" .. encode(object[key])
   end
   return "{" .. table.concat(keys, ",") .. "}"
end

function encode(value)
   local kind = type(value)
   if kind == "string" then
      return canonical.string(value)
   elseif kind == "number" then
      return format("%.0f", value)
   elseif kind == "boolean" then
      return value and "true" or "false"
   elseif kind == "table" then
      return type(next(value)) == "string" and encode_object(value) or encode_list(value)
   end
   assert(value == core.null, "a value that JSON does not have")
   return "null"
end

--- Any value.
canonical.encode = encode

return canonical
