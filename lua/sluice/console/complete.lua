--- What Tab does at the console: words and keys outside quotes, names of parameters and live tensors inside them, up to the next
-- dot at a time.
-- @module sluice.console.complete

local units = require "sluice.cli.units"

local complete = {}

local MOST_LISTED = 60

-- What candidates begin with alike.
local function common(list)
   local head = list[1] or ""
   for i = 2, #list do
      local length = math.min(#head, #list[i])
      while head:sub(1, length) ~= list[i]:sub(1, length) do
         length = length - 1
      end
      head = head:sub(1, length)
   end
   return head
end

-- Names that begin with `head`, cut behind the next dot, each once.
local function steps(names, head)
   local seen, list = {}, {}
   for _, name in ipairs(names) do
      if name:sub(1, #head) == head and not name:find("%c") then
         local dot = name:find(".", #head + 1, true)
         local step = dot and name:sub(1, dot) or name
         if not seen[step] then
            seen[step], list[#list + 1] = true, step
         end
      end
   end
   return list
end

-- The text behind the last quote that is open, or nil.
local function open_quote(line)
   local quote, from
   for i = 1, #line do
      local char = line:sub(i, i)
      if quote then
         if char == quote and line:sub(i - 1, i - 1) ~= "\\" then
            quote = nil
         end
      elseif char == '"' or char == "'" then
         quote, from = char, i + 1
      end
   end
   return quote and line:sub(from), quote
end

local function keys(session, path, head)
   local value = session:value(path)
   local list = {}
   for key in next, type(value) == "table" and value or {} do
      if type(key) == "string" and key:sub(1, #head) == head then
         list[#list + 1] = key
      end
   end
   return list
end

local function words(session, head)
   local list = {}
   for _, word in ipairs(session:word_names()) do
      list[#list + 1] = word:sub(1, #head) == head and word or nil
   end
   return list
end

-- The candidates for what stands before the cursor, and of that the part that each of them repeats.
local function candidates(session, line)
   local quoted, quote = open_quote(line)
   if quoted then
      local list = steps(session:names(), quoted)
      return list, quoted, quote
   end
   local path, mark, head = line:match("([%a_][%w_%.%[%]]*)([%.:])([%w_]*)$")
   if path then
      return keys(session, path, head, mark), head
   end
   head = line:match("([%a_][%w_]*)$") or ""
   return words(session, head), head
end

local function listing(list, head)
   local cut = head:match("^.*%.()") or 1
   local rows, row = {}, {}
   for i = 1, math.min(#list, MOST_LISTED) do
      row[#row + 1] = list[i]:sub(cut)
      if #row == 3 then
         rows[#rows + 1], row = row, {}
      end
   end
   rows[#rows + 1] = row[1] and row or nil
   return units.rows(rows, #list - MOST_LISTED)
end

--- Completes a line.
-- @param session of sluice.console.session
-- @param line what stands before the cursor
-- @return what to insert, and what to list where several fit
function complete.at(session, line)
   local list, head, quote = candidates(session, line)
   if not list[1] then
      return nil, nil
   end
   table.sort(list)
   if list[2] then
      local more = common(list):sub(#head + 1)
      return more, more == "" and listing(list, head) or nil
   end
   local ends = quote and list[1]:sub(-1) ~= "." and quote or ""
   return list[1]:sub(#head + 1) .. ends
end

return complete
