--- Patterns over dotted names, matched through one trie, so that a thousand rules cost about as much as ten.
--
--    model.layers.{l}.self_attn.{p=q|k|v}_proj.weight
--
-- `{l}` captures one segment, `{p=q|k|v}` one of the texts listed (which may hold dots and may stand beside other text),
-- `*` is any one segment, `**` any number of segments, also none. A template is a text with the same captures: `{l}`, and
-- `**` for what the pattern's `**` matched, in order.
-- @module sluice.match

local match = {}

local find, sub, byte, concat = string.find, string.sub, string.byte, table.concat

local MOST_EXPANSIONS = 1024
local MOST_LISTED = 16
local MOST_DEEP = 2
local MOST_SEGMENTS = 128
local FIRST_STEPS, STEPS_EACH = 2000000, 300 -- nodes that finding may visit: some at first, more with every name
local STEPS_OF_ALL = 2000 -- with every name, where it goes through several matchers
local DOT = byte(".")
local LONGEST = 4096 -- bytes of a name
local TOO_LONG = ("is longer than a name can be (%d bytes)"):format(LONGEST)
local ZERO = "has a zero character, which no name has"
local MOST_PIECES = 64

-- ---- patterns ----

-- The values of {name=a|b}, or nil and what is wrong with them.
local function read_values(name, text)
   local list = {}
   for value in (text .. "|"):gmatch("([^|]*)|") do
      if value == "" then
         return nil, ("has an empty value in {%s=%s}"):format(name, text)
      elseif find(value, "*", 1, true) then
         return nil, ("has a star in {%s=%s}"):format(name, text)
      end
      list[#list + 1] = value
   end
   return list
end

-- Replaces each {name=a|b} by each of its values: a list of { text =, bound = { name = value } }, and the names.
local function expand(pattern)
   local items, listed, groups = { { text = pattern, bound = {} } }, {}, 0
   while true do
      local first, last, name, values = find(items[1].text, "{([%a_][%w_]*)=([^{}]*)}")
      local outer = items[1].text:match("{([%a_][%w_]*)=[^{}]*{")
      if outer then
         return nil, ("has a capture among the values of {%s=...}, which are plain texts; that is two patterns"):format(outer)
      elseif not first then
         return items, nil, listed
      elseif listed[name] then
         return nil, ("captures {%s} twice"):format(name)
      end
      listed[name], groups = values, groups + 1
      if groups > MOST_LISTED then
         return nil, ("has more than %d of {name=a|b}"):format(MOST_LISTED)
      end
      local list, problem = read_values(name, values)
      if not list then
         return nil, problem
      elseif #list * #items > MOST_EXPANSIONS then
         return nil, ("stands for more than %d patterns"):format(MOST_EXPANSIONS)
      end
      -- The texts differ in length, but each has this group at the same distance from its end.
      local from_end, to_end = #items[1].text - first, #items[1].text - last
      local more = {}
      for _, item in ipairs(items) do
         local head, tail = sub(item.text, 1, #item.text - from_end - 1), sub(item.text, #item.text - to_end + 1)
         for _, value in ipairs(list) do
            local bound = { [name] = value }
            for key, other in pairs(item.bound) do
               bound[key] = other
            end
            more[#more + 1] = { text = head .. value .. tail, bound = bound }
         end
      end
      items = more
   end
end

-- One segment of an expanded pattern: its kind ("literal", "one", "deep") and the name of its capture.
local function read_segment(segment)
   if segment == "" then
      return nil, "has an empty segment"
   elseif not find(segment, "[{}*]") then
      return "literal"
   elseif segment == "*" then
      return "one"
   elseif segment == "**" then
      return "deep"
   end
   local name = segment:match("^{([%a_][%w_]*)}$")
   if name then
      return "one", name
   elseif find(segment, "[{}]") then
      return nil, ("has a segment '%s' that is no capture: {name} is a whole segment, {name=a|b} lists its values"):format(
         segment)
   end
   return nil, ("has a segment '%s': * and ** are whole segments"):format(segment)
end

-- The segments of an expanded pattern: texts, and for wildcards their kind in `kinds`; notes captures in `found`.
local function read_path(text, found)
   local path, kinds, wild, count = {}, {}, 0, 0
   for segment in (text .. "."):gmatch("([^.]*)%.") do
      local kind, name = read_segment(segment)
      if not kind then
         return nil, name
      end
      count = count + 1
      path[count] = segment
      if count > MOST_SEGMENTS then
         return nil, ("has more than %d segments, which no name has"):format(MOST_SEGMENTS)
      elseif kind ~= "literal" then
         wild = wild + 1
         kinds[count] = kind
         if name and found.names[name] or name and found.listed[name] then
            return nil, ("captures {%s} twice"):format(name)
         elseif name then
            found.names[name] = wild
         elseif kind == "deep" then
            found.deep[#found.deep + 1] = wild
         end
      end
   end
   if #found.deep > MOST_DEEP then
      return nil, ("has more than %d of **"):format(MOST_DEEP)
   end
   return { path = path, kinds = kinds }
end

--- Reads a pattern.
-- @return { simples = the simple patterns that it stands for, names = { capture = number of its wildcard }, listed =
-- { capture = "q|k|v" }, deep = numbers of the ** }, where each simple pattern holds the values of its listed captures as
-- `bound`; or nil and what is wrong with it
function match.pattern(pattern)
   if #pattern > LONGEST then
      return nil, TOO_LONG
   elseif find(pattern, "%z") then
      return nil, ZERO
   end
   local items, problem, listed = expand(pattern)
   if not items then
      return nil, problem
   end
   local result = { simples = {}, names = {}, listed = listed, deep = {} }
   local found = result
   for i, item in ipairs(items) do
      local simple
      simple, problem = read_path(item.text, found)
      if not simple then
         return nil, problem
      end
      simple.bound = item.bound
      result.simples[i] = simple
      found = { names = {}, listed = listed, deep = {} } -- the wildcards are the same in all: values hold none
   end
   return result
end

-- ---- templates ----

-- The capture that a template's {name}, or {name=a|b} as the pattern has it, stands for; or nil and what is wrong.
local function read_capture(text, pattern)
   local name, values = text:match("^([%a_][%w_]*)=(.*)$")
   name = name or text
   local listed = pattern.listed[name]
   if not pattern.names[name] and not listed then
      return nil, ("uses {%s}, which the pattern does not capture"):format(text)
   elseif values and values ~= listed then
      return nil, ("uses {%s}; the pattern has {%s%s}"):format(text, name, listed and "=" .. listed or "")
   end
   return pattern.names[name] or { name }
end

-- Pieces of a template: texts, numbers of wildcards, and { name } for a listed capture.
local function read_pieces(template, pattern)
   if #template > LONGEST then
      return nil, TOO_LONG
   elseif find(template, "%z") then
      return nil, ZERO
   end
   local pieces, deep, at = {}, 0, 1
   while at <= #template do
      local first, last, text = find(template, "{([^{}]*)}", at)
      local stars, stars_end = find(template, "**", at, true)
      local piece, problem
      if stars and (not first or stars < first) then
         deep = deep + 1
         if not pattern.deep[deep] then
            return nil, "has more of ** than the pattern"
         end
         first, last, piece = stars, stars_end, pattern.deep[deep]
      elseif not first then
         break
      else
         piece, problem = read_capture(text, pattern)
         if not piece then
            return nil, problem
         end
      end
      pieces[#pieces + 1] = sub(template, at, first - 1)
      pieces[#pieces + 1] = piece
      at = last + 1
   end
   pieces[#pieces + 1] = sub(template, at)
   if #pieces > MOST_PIECES then
      return nil, "uses too many captures"
   end
   for _, piece in ipairs(pieces) do
      if type(piece) == "string" and find(piece, "[{}*]") then
         return nil, "has a brace or a star that is no capture"
      end
   end
   return pieces, nil, deep > 0
end

--- Compiles a template for a pattern.
-- @return a function (matcher, name, bound) -> text for use right after matcher:find(name) gave one of the pattern's simple
-- patterns, whose `bound` it is; or nil and what is wrong
function match.template(template, pattern)
   local pieces, problem, has_deep = read_pieces(template, pattern)
   if not pieces then
      return nil, problem
   elseif #pieces == 1 then
      return function()
         return template
      end
   end
   local count, texts, is_deep = #pieces, {}, {}
   for _, wild in ipairs(pattern.deep) do
      is_deep[wild] = true
   end
   return function(matcher, name, bound)
      for i = 1, count do
         local piece = pieces[i]
         local kind = type(piece)
         texts[i] = kind == "string" and piece or kind == "number" and sub(name, matcher.from[piece], matcher.to[piece])
            or bound[piece[1]]
      end
      for i = 2, has_deep and count or 1 do
         if texts[i] == "" and is_deep[pieces[i]] then -- matched nothing: a dot beside it is one too many
            if byte(texts[i - 1], -1) == DOT then
               texts[i - 1] = sub(texts[i - 1], 1, -2)
            else
               texts[i + 1] = texts[i + 1]:gsub("^%.", "")
            end
         end
      end
      return concat(texts, "", 1, count)
   end
end

-- ---- the trie ----

local Matcher = {}
Matcher.__index = Matcher

local function give_up_plainly()
   error("the search among patterns is too long", 0)
end

--- What matchers share through which the same names go, one after the other: the segments of the last name, and the steps that
-- finding may take.
function match.search()
   return { steps = FIRST_STEPS, each = STEPS_EACH, count = 0, head = {}, tail = {}, segment = {} }
end

--- Says how many matchers share it.
function match.share(search, matchers)
   search.each = math.min(STEPS_EACH, STEPS_OF_ALL / math.max(matchers, 1))
end

--- An empty matcher. After a find, matcher.from[k] and .to[k] say what the k-th wildcard of the pattern found matched.
-- @param give_up called, and raises, when finding has taken too many steps; nil: an error of Lua's
-- @param search of match.search; nil: one of its own
function match.new(give_up, search)
   return setmetatable({ root = { least = math.huge }, from = {}, to = {}, stack = {}, give_up = give_up or give_up_plainly,
                         search = search or match.search() }, Matcher)
end

--- Adds a simple pattern. Of several that match a name, the one with the smallest number wins.
-- @param simple one of match.pattern's
-- @param number its rank among all
-- @param value what find gives back
-- @return the value of an equal pattern that was there before, if there was one (it stays when its number is smaller)
function Matcher:add(simple, number, value)
   local node = self.root
   node.least = node.least < number and node.least or number
   for i, segment in ipairs(simple.path) do
      local kind = simple.kinds[i]
      local place, key = node, kind
      if not kind then
         place, key = node.literal, segment
         if not place then
            place = {}
            node.literal = place
         end
      end
      local next_node = place[key]
      if not next_node then
         next_node = { least = number }
         place[key] = next_node
      elseif number < next_node.least then
         next_node.least = number
      end
      node = next_node
   end
   local before = node.value
   if not before or number < node.number then
      node.number, node.value = number, value
   end
   return before
end

local function take(self, node, wild)
   self.best, self.found = node.number, node.value
   local stack = self.stack
   for k = 1, wild do
      self.from[k], self.to[k] = stack[2 * k - 1], stack[2 * k]
   end
end

-- Tries segments i to the last below `node`; `wild` wildcards were met on the way.
local function walk(self, search, node, i, wild)
   if node.least >= self.best then
      return
   end
   search.steps = search.steps - 1
   if search.steps < 0 then
      self.give_up()
   end
   local last = search.count
   if i > last then
      if node.number and node.number < self.best then
         take(self, node, wild)
      end
   else
      local literal = node.literal
      local next_node = literal and literal[search.segment[i]]
      if next_node then
         walk(self, search, next_node, i + 1, wild)
      end
      next_node = node.one
      if next_node then
         self.stack[2 * wild + 1], self.stack[2 * wild + 2] = search.head[i], search.tail[i]
         walk(self, search, next_node, i + 1, wild + 1)
      end
   end
   local deep = node.deep
   if deep then
      local only_end = not (deep.literal or deep.one or deep.deep)
      for j = only_end and last + 1 or i, last + 1 do
         local from = i <= last and search.head[i] or 1
         self.stack[2 * wild + 1], self.stack[2 * wild + 2] = from, j > i and search.tail[j - 1] or from - 1
         walk(self, search, deep, j, wild + 1)
      end
   end
end

--- Of a name; one with more is matched by no pattern.
match.MOST_SEGMENTS = MOST_SEGMENTS

-- Splits a name into its segments; false where it has too many.
local function split(search, name)
   local head, tail, segment = search.head, search.tail, search.segment
   local count, at = 0, 1
   search.name, search.count = name, 0
   while true do
      local dot = find(name, ".", at, true)
      count = count + 1
      if count > MOST_SEGMENTS then
         return false
      end
      head[count], tail[count] = at, (dot or #name + 1) - 1
      segment[count] = sub(name, at, tail[count])
      if not dot then
         search.count = count
         return true
      end
      at = dot + 1
   end
end

--- The value of the first pattern that matches, or nil.
function Matcher:find(name)
   local search = self.search
   if search.name == name and search.count == 0 or search.name ~= name and not split(search, name) then
      return nil
   end
   self.best, self.found = math.huge, nil
   search.steps = search.steps + search.each
   walk(self, search, self.root, 1, 0)
   return self.found
end

--- What a pattern captured, right after find(name) gave one of its simple patterns.
-- @param pattern of match.pattern
-- @param bound of the simple pattern that was found
-- @return list of { name, text }, sorted by name, then what each ** matched
function Matcher:captures(pattern, name, bound)
   local list = {}
   for capture, wild in pairs(pattern.names) do
      list[#list + 1] = { capture, sub(name, self.from[wild], self.to[wild]) }
   end
   for capture, value in pairs(bound) do
      list[#list + 1] = { capture, value }
   end
   table.sort(list, function(a, b)
      return a[1] < b[1]
   end)
   for _, wild in ipairs(pattern.deep) do
      list[#list + 1] = { "**", sub(name, self.from[wild], self.to[wild]) }
   end
   return list
end

--- A simple pattern as a name: its wildcards filled with the segments of a name that stand there.
-- @return the text; nil where the pattern has a **
function match.fill(simple, segments)
   local filled = {}
   for i, segment in ipairs(simple.path) do
      if simple.kinds[i] == "deep" then
         return nil
      end
      filled[i] = simple.kinds[i] and segments[i] or segment
   end
   return concat(filled, ".")
end

--- Removes a sequence of whole segments wherever it stands in a name.
function match.strip(name, segments)
   local at = 1
   while true do
      local first, last = find(name, segments, at, true)
      if not first then
         return name
      end
      local before, behind = byte(name, first - 1), byte(name, last + 1)
      if (first == 1 or before == DOT) and (behind == nil or behind == DOT) and not (first == 1 and behind == nil) then
         name = sub(name, 1, first - 1) .. sub(name, last + 2)
         if behind == nil then
            name = sub(name, 1, first - 2)
         end
         at = first
      else
         at = first + 1
      end
   end
end

return match
