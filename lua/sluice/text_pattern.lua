--- Lua's string patterns, interpreted, for rule code: string.find and its kin are C functions that no budget can stop, and
-- a pattern of a dozen characters can keep one busy for years. Here each step counts as the instructions that it takes.
-- @module sluice.text_pattern

jit.off(true, true)

local byte, sub, rep = string.byte, string.sub, string.rep
local lower = string.lower

local text_pattern = {}

local CAPTURES = 32
local UNCLOSED, POSITION = -1, -2
local ESCAPE, ANCHOR, OPEN, CLOSE, NOT = byte("%"), byte("^"), byte("["), byte("]"), byte("^")

local CLASSES = {}
for letter in ("acdlpsuwxz"):gmatch(".") do
   local set = {}
   for code = 0, 255 do
      set[code] = string.char(code):find("%" .. letter) ~= nil
   end
   CLASSES[byte(letter)] = set
end

local SPECIAL = {}
for char in ("^$*+?.([%-"):gmatch(".") do
   SPECIAL[byte(char)] = true
end

local function fail(text)
   error("malformed pattern (" .. text .. ")", 0)
end

-- Whether byte c belongs to the class that %x names; %X is its complement.
local function in_class(c, x)
   local set = CLASSES[byte(lower(string.char(x)))]
   if not set then
      return c == x
   end
   local is_lower = CLASSES[x] ~= nil
   return set[c] == is_lower
end

-- p is on "["; gives the position behind the set.
local function set_end(pattern, p)
   p = p + 1
   if byte(pattern, p) == NOT then
      p = p + 1
   end
   repeat
      local c = byte(pattern, p)
      if not c then
         fail("missing ']'")
      end
      p = p + (c == ESCAPE and 2 or 1)
   until byte(pattern, p) == CLOSE
   return p + 1
end

local function item_end(pattern, p)
   local c = byte(pattern, p)
   if c == ESCAPE then
      if p == #pattern then
         fail("ends with '%'")
      end
      return p + 2
   end
   return c == OPEN and set_end(pattern, p) or p + 1
end

-- [p, last] is a set with its brackets.
local function in_set(c, pattern, p, last)
   p = p + 1
   local wanted = true
   if byte(pattern, p) == NOT then
      wanted, p = false, p + 1
   end
   while p < last do
      local x = byte(pattern, p)
      if x == ESCAPE then
         if in_class(c, byte(pattern, p + 1)) then
            return wanted
         end
         p = p + 2
      elseif byte(pattern, p + 1) == 45 and p + 2 < last then
         if x <= c and c <= byte(pattern, p + 2) then
            return wanted
         end
         p = p + 3
      else
         if x == c then
            return wanted
         end
         p = p + 1
      end
   end
   return not wanted
end

local function single(m, s, p, behind)
   local c = byte(m.text, s)
   if not c then
      return false
   end
   local x = byte(m.pattern, p)
   if x == 46 then
      return true
   elseif x == ESCAPE then
      return in_class(c, byte(m.pattern, p + 1))
   elseif x == OPEN then
      return in_set(c, m.pattern, p, behind - 1)
   end
   return x == c
end

local match

local function match_balance(m, s, p)
   local open, close = byte(m.pattern, p, p + 1)
   if not close then
      fail("missing arguments to '%b'")
   end
   if byte(m.text, s) ~= open then
      return nil
   end
   local depth = 1
   for i = s + 1, #m.text do
      local c = byte(m.text, i)
      if c == close then
         depth = depth - 1
         if depth == 0 then
            return i + 1
         end
      elseif c == open then
         depth = depth + 1
      end
   end
   return nil
end

local function match_frontier(m, s, p)
   if byte(m.pattern, p) ~= OPEN then
      fail("missing '[' after '%f'")
   end
   local behind = set_end(m.pattern, p)
   local before = s > 1 and byte(m.text, s - 1) or 0
   local here = byte(m.text, s) or 0
   if not in_set(before, m.pattern, p, behind - 1) and in_set(here, m.pattern, p, behind - 1) then
      return match(m, s, behind)
   end
   return nil
end

local function match_back(m, s, p)
   local number = byte(m.pattern, p) - 48
   local start, length = m.start[number], m.length[number]
   if not start or length == UNCLOSED then
      fail("invalid capture index %" .. number)
   elseif length == POSITION then
      return nil
   end
   if sub(m.text, s, s + length - 1) == sub(m.text, start, start + length - 1) then
      return match(m, s + length, p + 1)
   end
   return nil
end

local function open_capture(m, s, p, length)
   if m.level == CAPTURES then
      fail("too many captures")
   end
   m.level = m.level + 1
   m.start[m.level], m.length[m.level] = s, length
   local finish = match(m, s, p)
   if not finish then
      m.start[m.level], m.length[m.level] = nil, nil
      m.level = m.level - 1
   end
   return finish
end

local function close_capture(m, s, p)
   local level = m.level
   while level > 0 and m.length[level] ~= UNCLOSED do
      level = level - 1
   end
   if level == 0 then
      fail("invalid pattern capture")
   end
   m.length[level] = s - m.start[level]
   local finish = match(m, s, p)
   if not finish then
      m.length[level] = UNCLOSED
   end
   return finish
end

local function most(m, s, p, behind)
   local count = 0
   while single(m, s + count, p, behind) do
      count = count + 1
   end
   for i = count, 0, -1 do
      local finish = match(m, s + i, behind + 1)
      if finish then
         return finish
      end
   end
   return nil
end

local function least(m, s, p, behind)
   while true do
      local finish = match(m, s, behind + 1)
      if finish then
         return finish
      elseif not single(m, s, p, behind) then
         return nil
      end
      s = s + 1
   end
end

-- Matches pattern from p at s; gives the position behind the match.
function match(m, s, p)
   local pattern = m.pattern
   while p <= #pattern do
      local c, following = byte(pattern, p, p + 1)
      if c == 40 then -- (
         if following == 41 then
            return open_capture(m, s, p + 2, POSITION)
         end
         return open_capture(m, s, p + 1, UNCLOSED)
      elseif c == 41 then -- )
         return close_capture(m, s, p + 1)
      elseif c == 36 and p == #pattern then -- $
         return s == #m.text + 1 and s or nil
      elseif c == ESCAPE and following == 98 then -- %b
         s = match_balance(m, s, p + 2)
         if not s then
            return nil
         end
         p = p + 4
      elseif c == ESCAPE and following == 102 then -- %f
         return match_frontier(m, s, p + 2)
      elseif c == ESCAPE and following and following >= 48 and following <= 57 then
         return match_back(m, s, p + 1)
      else
         local behind = item_end(pattern, p)
         local suffix = byte(pattern, behind)
         if suffix == 63 then -- ?
            local finish = single(m, s, p, behind) and match(m, s + 1, behind + 1)
            if finish then
               return finish
            end
            p = behind + 1
         elseif suffix == 43 then -- +
            return single(m, s, p, behind) and most(m, s + 1, p, behind) or nil
         elseif suffix == 42 then -- *
            return most(m, s, p, behind)
         elseif suffix == 45 then -- -
            return least(m, s, p, behind)
         elseif not single(m, s, p, behind) then
            return nil
         else
            s, p = s + 1, behind
         end
      end
   end
   return s
end

local function capture(m, i)
   if m.length[i] == UNCLOSED then
      fail("unfinished capture")
   end
   return m.length[i] == POSITION and m.start[i] or sub(m.text, m.start[i], m.start[i] + m.length[i] - 1)
end

-- The captures of a match, or the whole of it where the pattern has none.
local function captures(m, s, finish)
   if m.level == 0 then
      return { sub(m.text, s, finish - 1) }
   end
   local list = {}
   for i = 1, m.level do
      list[i] = capture(m, i)
   end
   return list
end

local function begin(text, pattern)
   return { text = text, pattern = pattern, level = 0, start = {}, length = {} }
end

local function try(m, s, p)
   m.level = 0
   return match(m, s, p)
end

local function texts(name, ...)
   for i = 1, select("#", ...) do
      local value = select(i, ...)
      if type(value) ~= "string" and type(value) ~= "number" then
         error(("bad argument #%d to '%s' (string expected, got %s)"):format(i, name, type(value)), 3)
      end
   end
end

local function first_position(text, init)
   init = init or 1
   if type(init) ~= "number" then
      error("bad argument #3 (number expected, got " .. type(init) .. ")", 3)
   end
   return math.min(init < 0 and math.max(1, #text + init + 1) or math.max(1, init), #text + 1)
end

local function has_special(pattern)
   for i = 1, #pattern do
      if SPECIAL[byte(pattern, i)] then
         return true
      end
   end
   return false
end

-- The first match at or behind s: its start, its end, the matcher.
local function search(text, pattern, s)
   local m = begin(text, pattern)
   local anchored = byte(pattern, 1) == ANCHOR
   for from = s, anchored and s or #text + 1 do
      local finish = try(m, from, anchored and 2 or 1)
      if finish then
         return from, finish, m
      end
   end
   return nil
end

--- As string.find.
function text_pattern.find(text, pattern, init, plain)
   texts("find", text, pattern)
   text, pattern = text .. "", pattern .. ""
   local s = first_position(text, init)
   if plain or #pattern == 0 or not has_special(pattern) then
      for from = s, #text - #pattern + 1 do
         if sub(text, from, from + #pattern - 1) == pattern then
            return from, from + #pattern - 1
         end
      end
      return nil
   end
   local from, finish, m = search(text, pattern, s)
   if not from then
      return nil
   elseif m.level == 0 then
      return from, finish - 1
   end
   return from, finish - 1, unpack(captures(m, from, finish))
end

--- As string.match.
function text_pattern.match(text, pattern, init)
   texts("match", text, pattern)
   text, pattern = text .. "", pattern .. ""
   local s = first_position(text, init)
   local from, finish, m = search(text, pattern, s)
   if not from then
      return nil
   end
   return unpack(captures(m, from, finish))
end

--- As string.gmatch.
function text_pattern.gmatch(text, pattern)
   texts("gmatch", text, pattern)
   text, pattern = text .. "", pattern .. ""
   local s, m = 1, begin(text, pattern)
   return function()
      while s <= #text + 1 do
         local from = s
         local finish = try(m, from, 1)
         s = finish and finish > from and finish or from + 1
         if finish then
            return unpack(captures(m, from, finish))
         end
      end
      return nil
   end
end

-- %0 to %9 and %% in a replacement text.
local function expand(m, from, finish, with)
   local pieces, p = {}, 1
   while p <= #with do
      local c = sub(with, p, p)
      if c == "%" then
         p = p + 1
         c = sub(with, p, p)
         local number = tonumber(c)
         if number == 0 or number == 1 and m.level == 0 then
            c = sub(m.text, from, finish - 1)
         elseif number then
            if number > m.level then
               error("invalid capture index in replacement string", 4)
            end
            c = capture(m, number)
         end
      end
      pieces[#pieces + 1] = c
      p = p + 1
   end
   return table.concat(pieces)
end

local function replacement(m, from, finish, with)
   if type(with) == "string" then
      return expand(m, from, finish, with)
   end
   local value
   if type(with) == "function" then
      value = with(unpack(captures(m, from, finish)))
   elseif m.level > 0 then
      value = with[capture(m, 1)]
   else
      value = with[sub(m.text, from, finish - 1)]
   end
   if not value then
      return sub(m.text, from, finish - 1)
   elseif type(value) ~= "string" and type(value) ~= "number" then
      error("invalid replacement value (a " .. type(value) .. ")", 3)
   end
   return value
end

--- As string.gsub.
function text_pattern.gsub(text, pattern, with, limit)
   texts("gsub", text, pattern)
   text, pattern = text .. "", pattern .. ""
   local kind = type(with)
   if kind == "number" then
      with = with .. ""
   elseif kind ~= "string" and kind ~= "table" and kind ~= "function" then
      error("bad argument #3 to 'gsub' (string/function/table expected, got " .. kind .. ")", 2)
   end
   local anchored = byte(pattern, 1) == ANCHOR
   local m, pieces, s, count = begin(text, pattern), {}, 1, 0
   while s <= #text + 1 and (not limit or count < limit) do
      local finish = try(m, s, anchored and 2 or 1)
      if finish then
         count = count + 1
         pieces[#pieces + 1] = replacement(m, s, finish, with)
      end
      if finish and finish > s then
         s = finish
      else
         pieces[#pieces + 1] = sub(text, s, s)
         s = s + 1
      end
      if anchored then
         break
      end
   end
   pieces[#pieces + 1] = sub(text, s)
   return table.concat(pieces), count
end

--- As string.rep, up to 1 MiB.
function text_pattern.rep(text, count, separator)
   texts("rep", text, count)
   text = text .. ""
   if separator ~= nil then
      texts("rep", text, count, separator)
   end
   local bytes = (#text + #((separator or "") .. "")) * math.max(0, tonumber(count) or 0)
   if bytes == 0 then
      return ""
   elseif bytes > 1048576 or bytes ~= bytes then
      error(("string.rep (%.0f bytes) must make at most 1048576 bytes"):format(bytes), 2)
   end
   return rep(text, count, separator)
end

return text_pattern
