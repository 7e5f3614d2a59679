--- The nearest right word, for messages about a wrong one.
-- @module sluice.nearest

local nearest = {}

local LONGEST = 200

-- The two texts without what they begin and end with alike; that changes no distance.
local function differing(a, b)
   local least, head, tail = math.min(#a, #b), 0, 0
   while head < least and a:byte(head + 1) == b:byte(head + 1) do
      head = head + 1
   end
   while tail < least - head and a:byte(-tail - 1) == b:byte(-tail - 1) do
      tail = tail + 1
   end
   return a:sub(head + 1, -tail - 1), b:sub(head + 1, -tail - 1)
end

-- Edits (insert, delete, replace, swap of neighbours) between two texts; stops counting past `limit`.
local function distance(a, b, limit)
   if math.abs(#a - #b) > limit then
      return limit + 1
   end
   a, b = differing(a, b)
   local before, last, row = {}, {}, {}
   for j = 0, #b do
      last[j] = j
   end
   for i = 1, #a do
      row[0] = i
      local least = i
      for j = 1, #b do
         local same = a:byte(i) == b:byte(j)
         local best = math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (same and 0 or 1))
         if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
            best = math.min(best, before[j - 2] + 1)
         end
         row[j] = best
         least = math.min(least, best)
      end
      if least > limit then
         return limit + 1
      end
      before, last, row = last, row, before
   end
   return last[#b]
end

-- The shortest of the words that begin with `word`, if that has letters enough to tell.
local function longer(word, words)
   local best
   for _, other in ipairs(#word >= 4 and words or {}) do
      if other:sub(1, #word):lower() == word:lower() and (not best or #other < #best) then
         best = other
      end
   end
   return best
end

--- The word of the list that is nearest to `word`, if one is near enough to be what was meant.
-- @param word what was written
-- @param words a list; of equally near ones one with the same first letter wins, else the first
-- @param most how many edits may lie between; left out: a third of the word
-- @return the word, or nil
function nearest.word(word, words, most)
   if #word > LONGEST then
      return nil
   end
   local best, least = nil, (most or #word < 4 and 1 or math.max(2, math.floor(#word / 3))) + 1
   local first = word:sub(1, 1):lower()
   for _, other in ipairs(words) do
      if #other <= LONGEST then
         local edits = distance(word:lower(), other:lower(), least)
         local alike = other:sub(1, 1):lower() == first
         if edits < math.max(#word, #other) and (edits < least or edits == least and best and alike
            and best:sub(1, 1):lower() ~= first) then
            best, least = other, edits
         end
      end
   end
   return best or not most and longer(word, words) or nil
end

--- " (did you mean x?)", control characters as escapes, or "" where nothing is near.
function nearest.hint(word, words)
   local found = nearest.word(word, words)
   return found and (" (did you mean %s?)"):format((found:gsub("%c", function(char) return ("\\%d"):format(char:byte()) end))) or ""
end

--- The same, and all words where nothing is near: for lists that are short.
function nearest.among(word, words)
   local hint = nearest.hint(word, words)
   local all = table.concat(words, ", ")
   return hint ~= "" and hint or all ~= "" and "; known: " .. all or ""
end

--- The keys of a table, sorted.
function nearest.keys(set)
   local list = {}
   for key in pairs(set) do
      list[#list + 1] = key
   end
   table.sort(list)
   return list
end

return nearest
