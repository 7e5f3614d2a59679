--- Values as the console prints them: records as tables with aligned columns, keys sorted, everything bounded.
-- @module sluice.console.show

local units = require "sluice.cli.units"

local show = {}

local MOST_ROWS = 1000
local MOST_CELL = 96
local MOST_INLINE = 8
local MOST_COLUMNS = 12

-- How a value of the library's own is printed: function(value) -> text. By value, since prompt code sees plain tables.
local printers = setmetatable({}, { __mode = "k" })

--- Marks a table as one that prints in its own way.
-- @param value a table
-- @param print function(value) -> a text; errors in it are the library's
function show.as(value, print)
   printers[value] = print
   return value
end

local function cut(text)
   text = text:gsub("%c", function(char)
      return ("\\%d"):format(char:byte())
   end)
   return #text > MOST_CELL and text:sub(1, MOST_CELL - 3) .. "..." or text
end

local function number(value)
   return value % 1 == 0 and math.abs(value) < 1e15 and ("%.0f"):format(value) or ("%.6g"):format(value)
end

-- Keys in order: numbers, then texts, then the rest by kind.
local function keys_of(t)
   local keys = {}
   for key in next, t do
      keys[#keys + 1] = key
   end
   table.sort(keys, function(a, b)
      local kind_a, kind_b = type(a), type(b)
      if kind_a ~= kind_b then
         return kind_a < kind_b
      elseif kind_a == "number" or kind_a == "string" then
         return a < b
      end
      return tostring(a) < tostring(b)
   end)
   return keys
end

-- A value on one line.
local function inline(value, depth)
   if type(value) == "number" then
      return number(value)
   elseif type(value) == "string" then
      return depth > 0 and '"' .. cut(value) .. '"' or cut(value)
   elseif type(value) ~= "table" then
      return type(value) == "function" and "function" or tostring(value)
   elseif depth > 2 then
      return "{...}"
   end
   local items, keys = {}, keys_of(value)
   for i = 1, math.min(#keys, MOST_INLINE) do
      local key = keys[i]
      local text = inline(value[key], depth + 1)
      items[i] = type(key) == "number" and text or tostring(key) .. " = " .. text
   end
   items[#items + 1] = #keys > MOST_INLINE and "..." or nil
   return "{ " .. table.concat(items, ", ") .. " }"
end

local function is_list_of_records(value)
   for i = 1, math.min(#value, MOST_ROWS) do
      if type(value[i]) ~= "table" or type(next(value[i])) ~= "string" then
         return false
      end
   end
   return #value > 0
end

-- Columns of records: those that are asked for, or all keys sorted, `name` first.
local function columns_of(list)
   local seen = {}
   for i = 1, math.min(#list, MOST_ROWS) do
      for key in next, list[i] do
         if type(key) == "string" then
            seen[key] = true
         end
      end
   end
   local keys = keys_of(seen)
   table.sort(keys, function(a, b)
      if (a == "name") ~= (b == "name") then
         return a == "name"
      end
      return a < b
   end)
   for i = #keys, MOST_COLUMNS + 1, -1 do
      keys[i] = nil
   end
   return keys
end

local function cell(key, value)
   if value == nil then
      return ""
   elseif type(value) == "number" and key:find("bytes", 1, true) then
      return units.bytes(value)
   elseif key == "shape" and type(value) == "table" then
      return cut(units.shape(value))
   elseif type(value) == "table" and type(value[1]) == "string" and #value <= 2 then
      return cut(table.concat(value, ", "))
   end
   return inline(value, 0)
end

--- A list of records as a table.
-- @param list of tables
-- @param[opt] columns a list of keys, or of { key, heading }
-- @param[opt] most how many rows
function show.table(list, columns, most)
   local rows, heading = {}, {}
   columns = columns or columns_of(list)
   most = math.min(#list, most or MOST_ROWS)
   for c, column in ipairs(columns) do
      heading[c] = type(column) == "table" and column[2] or column
   end
   rows[1] = heading
   for i = 1, most do
      local row = {}
      for c, column in ipairs(columns) do
         local key = type(column) == "table" and column[1] or column
         row[c] = cell(key, list[i][key])
      end
      rows[i + 1] = row
   end
   return units.rows(rows, #list - most)
end

local function map_text(value)
   local rows, keys = {}, keys_of(value)
   for i = 1, math.min(#keys, MOST_ROWS) do
      rows[i] = { tostring(keys[i]), inline(value[keys[i]], 0) }
   end
   return units.rows(rows, #keys - MOST_ROWS)
end

--- A value as text, without a newline at its end.
function show.text(value)
   local print = type(value) == "table" and printers[value]
   if print then
      return print(value)
   elseif type(value) == "string" then
      return value
   elseif type(value) ~= "table" then
      return inline(value, 0)
   elseif is_list_of_records(value) then
      return show.table(value)
   elseif next(value) == nil then
      return "{}"
   end
   return map_text(value)
end

return show
