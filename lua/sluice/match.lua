--- Patterns over dotted names, matched through one trie, so that a thousand rules cost about as much as ten.
--
--    model.layers.{l}.self_attn.{p=q|k|v}_proj.weight
--
-- `{l}` captures one segment, `{p=q|k|v}` one of the texts listed (which may hold dots and may stand beside other text),
-- `*` is any one segment, `**` any number of segments, also none. A template is a text with the same captures: `{l}`, and
-- `**` for what the pattern's `**` matched, in order.
-- @module sluice.match

local match = {}

local find, sub, byte = string.find, string.sub, string.byte

local MOST_EXPANSIONS = 1024
local MOST_DEEP = 2
local MOST_SEGMENTS = 128
local DOT = byte(".")

-- ---- patterns ----

local function split(text)
   local list = {}
   for segment in (text .. "."):gmatch("([^.]*)%.") do
      list[#list + 1] = segment
   end
   return list
end

-- Replaces each {name=a|b} by each of its values: a list of { text, bound = { name = value } }.
local function expand(pattern)
   local done, open = {}, { { text = pattern, bound = {} } }
   while #open > 0 do
      local item = table.remove(open)
      local first, last, name, values = item.text:find("{([%a_][%w_]*)=([^{}]*)}")
      if not first then
         done[#done + 1] = item
         if #done > MOST_EXPANSIONS then
            return nil, ("stands for more than %d patterns"):format(MOST_EXPANSIONS)
         end
      else
         if item.bound[name] or item.text:find("{" .. name .. "}", 1, true) then
            return nil, ("captures {%s} twice"):format(name)
         end
         local list = {}
         for value in (values .. "|"):gmatch("([^|]*)|") do
            if value == "" then
               return nil, ("has an empty value in {%s=%s}"):format(name, values)
            end
            list[#list + 1] = value
         end
         for i = #list, 1, -1 do
            local bound = { [name] = list[i] }
            for key, value in pairs(item.bound) do
               bound[key] = value
            end
            open[#open + 1] = { text = item.text:sub(1, first - 1) .. list[i] .. item.text:sub(last + 1), bound = bound }
         end
      end
   end
   return done
end

-- One segment of an expanded pattern: its kind ("literal", "one", "deep") and the name of its capture.
local function read_segment(segment)
   if segment == "" then
      return nil, "has an empty segment"
   elseif segment == "*" then
      return "one"
   elseif segment == "**" then
      return "deep"
   end
   local name = segment:match("^{([%a_][%w_]*)}$")
   if name then
      return "one", name
   elseif segment:find("[{}]") then
      return nil, ("has a segment '%s' that is no capture: {name} is a whole segment, {name=a|b} lists its values"):format(
         segment)
   elseif segment:find("*", 1, true) then
      return nil, ("has a segment '%s': * and ** are whole segments"):format(segment)
   end
   return "literal"
end

local function read_expansion(item)
   local wild, names, deep = 0, {}, {}
   local path = {}
   for i, segment in ipairs(split(item.text)) do
      local kind, name = read_segment(segment)
      if not kind then
         return nil, name
      elseif kind ~= "literal" then
         wild = wild + 1
      end
      if name and names[name] then
         return nil, ("captures {%s} twice"):format(name)
      elseif name then
         names[name] = wild
      elseif kind == "deep" then
         deep[#deep + 1] = wild
      end
      path[i] = { kind = kind, text = segment }
   end
   if #deep > MOST_DEEP then
      return nil, ("has more than %d of **"):format(MOST_DEEP)
   end
   return { path = path, bound = item.bound, names = names, deep = deep }
end

--- Reads a pattern.
-- @return the list of simple patterns it stands for; or nil and what is wrong with it
function match.pattern(pattern)
   local items, problem = expand(pattern)
   if not items then
      return nil, problem
   end
   for i, item in ipairs(items) do
      items[i], problem = read_expansion(item)
      if not items[i] then
         return nil, problem
      end
   end
   return items
end

-- ---- templates ----

-- Pieces of a template: texts, and numbers of wildcards.
local function read_pieces(template, simple)
   local pieces, deep, at = {}, 0, 1
   while at <= #template do
      local first, last, name = template:find("{([^{}]*)}", at)
      local stars, stars_end = template:find("**", at, true)
      if stars and (not first or stars < first) then
         deep = deep + 1
         if not simple.deep[deep] then
            return nil, "has more of ** than the pattern"
         end
         first, last, name = stars, stars_end, nil
      elseif not first then
         break
      end
      pieces[#pieces + 1] = template:sub(at, first - 1)
      if name and simple.bound[name] then
         pieces[#pieces] = pieces[#pieces] .. simple.bound[name]
      elseif name then
         if not simple.names[name] then
            return nil, ("uses {%s}, which the pattern does not capture"):format(name)
         end
         pieces[#pieces + 1] = simple.names[name]
      else
         pieces[#pieces + 1] = simple.deep[deep]
      end
      at = last + 1
   end
   pieces[#pieces + 1] = template:sub(at)
   if table.concat(pieces, "\1"):find("[{}*]") then
      return nil, "has a brace or a star that is no capture"
   end
   return pieces, nil, deep > 0
end

--- Compiles a template for one of the simple patterns of match.pattern.
-- @return a function (matcher, name) -> text for use right after matcher:find(name); or nil and what is wrong
function match.template(template, simple)
   local pieces, problem, has_deep = read_pieces(template, simple)
   if not pieces then
      return nil, problem
   elseif #pieces == 1 then
      return function()
         return template ~= "" and pieces[1] or ""
      end
   elseif #pieces == 3 and not has_deep then
      local head, wild, tail = pieces[1], pieces[2], pieces[3]
      return function(matcher, name)
         return head .. sub(name, matcher.from[wild], matcher.to[wild]) .. tail
      end
   end
   local count = #pieces
   local texts = {}
   return function(matcher, name)
      for i = 1, count do
         local piece = pieces[i]
         texts[i] = type(piece) == "number" and sub(name, matcher.from[piece], matcher.to[piece]) or piece
      end
      local text = table.concat(texts, "", 1, count)
      if has_deep then -- a ** that matched nothing leaves a dot too many
         text = text:gsub("%.%.+", "."):gsub("^%.", ""):gsub("%.$", "")
      end
      return text
   end
end

-- ---- the trie ----

local Matcher = {}
Matcher.__index = Matcher

--- An empty matcher. After a find, matcher.from[k] and .to[k] say what the k-th wildcard of the pattern found matched.
function match.new()
   return setmetatable({ root = { least = math.huge }, from = {}, to = {}, head = {}, tail = {}, stack = {}, steps = 0 }, Matcher)
end

local function child(node, key, field)
   local place = field and node or node.literal
   local slot = field or key
   if not place then
      place = {}
      node.literal = place
   end
   if not place[slot] then
      place[slot] = { least = math.huge }
   end
   return place[slot]
end

--- Adds a simple pattern. Of several that match a name, the one with the smallest number wins.
-- @param simple one of match.pattern
-- @param number its rank among all
-- @param value what find gives back
-- @return the value of an equal pattern that was there before, if there was one (it stays when its number is smaller)
function Matcher:add(simple, number, value)
   local node = self.root
   node.least = math.min(node.least, number)
   for _, segment in ipairs(simple.path) do
      if segment.kind == "literal" then
         node = child(node, segment.text)
      else
         node = child(node, nil, segment.kind)
      end
      node.least = math.min(node.least, number)
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
local function walk(self, node, i, wild)
   if node.least >= self.best then
      return
   end
   local last = self.count
   if i > last then
      if node.number and node.number < self.best then
         take(self, node, wild)
      end
   else
      local literal = node.literal
      local next_node = literal and literal[self.segment[i]]
      if next_node then
         walk(self, next_node, i + 1, wild)
      end
      next_node = node.one
      if next_node then
         self.stack[2 * wild + 1], self.stack[2 * wild + 2] = self.head[i], self.tail[i]
         walk(self, next_node, i + 1, wild + 1)
      end
   end
   local deep = node.deep
   if deep then
      local only_end = not (deep.literal or deep.one or deep.deep)
      for j = only_end and last + 1 or i, last + 1 do
         local from = i <= last and self.head[i] or 1
         self.stack[2 * wild + 1], self.stack[2 * wild + 2] = from, j > i and self.tail[j - 1] or from - 1
         walk(self, deep, j, wild + 1)
      end
   end
end

--- The value of the first pattern that matches, or nil.
function Matcher:find(name)
   local head, tail, segment = self.head, self.tail, self.segment or {}
   self.segment = segment
   local count, at = 0, 1
   while true do
      local dot = find(name, ".", at, true)
      count = count + 1
      if count > MOST_SEGMENTS then
         return nil
      end
      head[count], tail[count] = at, (dot or #name + 1) - 1
      segment[count] = sub(name, at, tail[count])
      if not dot then
         break
      end
      at = dot + 1
   end
   self.count, self.best, self.found = count, math.huge, nil
   walk(self, self.root, 1, 0)
   return self.found
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
