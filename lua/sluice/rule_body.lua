--- What one rule says: checks the table behind a pattern as far as it can be before a parameter is seen. Mistakes are said
-- as "file:line: rule "pattern": ...".
-- @module sluice.rule_body

local check = require "sluice.check"
local core = require "sluice.core"
local nearest = require "sluice.nearest"
local words = require "sluice.words"

local rule_body = {}

local MOST_STRIPS = 64
local LONGEST_TEXT = 4096 -- bytes of a name or a reason
local LONGEST_SHOWN = 200

local STRIP_KEYS = { into = true, at = true, from = true, layout = true, permute = true, pad = true, zero = true, convert = true }
local ZERO_KEYS = { "convert", "from", "pad", "permute" } -- that cannot stand beside zero
local MODE_KEYS = { full = true, skip = true, alias = true }
local BARE = { column = true, row = true, replicate = true } -- words that stand without quotes
local BODY_KEYS = { shape = true, companion = true }
for _, keys in ipairs({ STRIP_KEYS, MODE_KEYS }) do
   for key in pairs(keys) do
      BODY_KEYS[key] = true
   end
end

rule_body.keys = BODY_KEYS

--- Raises a mistake in a rule.
function rule_body.fail(made, text, ...)
   check.raise("SCRIPT", ('%s: rule "%s": %s'):format(made.place, check.shorten(made.pattern, LONGEST_SHOWN), text:format(...)))
end

local fail = rule_body.fail

-- ---- picks ----

--- The pick (or each) inside a slice or a pin, if there is one.
function rule_body.pick_in(value)
   local number = value.start or value.at or value.coordinate
   return type(number) == "table" and number or nil
end

--- The picks in some lists of slices and placements.
function rule_body.picks_in(...)
   local picks = {}
   for i = 1, select("#", ...) do
      for _, value in ipairs((select(i, ...))) do
         picks[#picks + 1] = rule_body.pick_in(value)
      end
   end
   return picks
end

--- Complains of a pick whose capture the pattern (match.pattern's) lacks.
function rule_body.check_picks(picks, pattern, complain)
   local count
   for _, pick in ipairs(picks) do
      if pick.each and count and #pick.each ~= count then
         complain(("a strip has an each of %d and one of %d"):format(count, #pick.each))
      elseif pick.each then
         count = #pick.each
      elseif not pattern.names[pick.capture] and not pattern.listed[pick.capture] then
         complain(('pick("%s") names no capture of the pattern'):format(pick.capture))
      end
   end
end

local picks_in = rule_body.picks_in

-- ---- values of a destination ----

-- One value of a kind, or a list of such values; always gives a list.
local function list_of(made, key, value, kinds, wanted)
   if value == nil then
      return {}
   end
   local list = words.kind(value) and { value } or value
   if BARE[value] then
      fail(made, "%s (%s) is a text; without quotes it is the word %s", key, words.shown(value), value)
   elseif type(list) ~= "table" then
      fail(made, "%s (%s) must be %s, or a list of them", key, words.shown(value), wanted)
   end
   for i = 1, math.max(table.maxn(list), 1) do
      if not kinds[words.kind(list[i])] and next(list) ~= nil then
         fail(made, "%s[%d] (%s) must be %s", key, i, words.shown(list[i]), wanted)
      end
   end
   for index in pairs(list) do
      if type(index) ~= "number" then
         fail(made, "%s has the key '%s'; it must be %s, or a list of them", key, tostring(index), wanted)
      end
   end
   local opened = {}
   for i = 1, table.maxn(list) do
      opened[i] = words.value(list[i])
   end
   return opened
end

local function check_slices(made, key, value)
   local list = list_of(made, key, value, { span = true, index = true }, "a span or an index")
   local seen = {}
   for _, slice in ipairs(list) do
      if seen[slice.dim] then
         fail(made, "%s slices dim %d twice", key, slice.dim)
      end
      seen[slice.dim] = true
   end
   return list
end

local function check_layout(made, value)
   local list = list_of(made, "layout", value, { shard = true, pin = true, first = true, replicate = true },
      "column, row, replicate, a shard, a first or a pin")
   local kept, seen = {}, {}
   for _, placement in ipairs(list) do
      if words.kind(placement) ~= "replicate" then
         if seen[placement.axis] then
            fail(made, "layout places axis '%s' twice", placement.axis)
         end
         seen[placement.axis] = true
         kept[#kept + 1] = placement
      elseif #list > 1 then
         fail(made, "layout has replicate beside other placements; axes that are not named replicate")
      end
   end
   return kept
end

local function check_permute(made, value)
   if value == nil then
      return nil
   end
   local seen = {}
   for i = 1, type(value) == "table" and #value or 0 do
      local dim = value[i]
      if type(dim) ~= "number" or dim % 1 ~= 0 or dim < 0 or dim >= #value or seen[dim] then
         fail(made, "permute must hold each of 0 to %d once; it has %s", #value - 1, words.shown(dim))
      end
      seen[dim] = true
   end
   if type(value) ~= "table" or #value == 0 then
      fail(made, "permute (%s) must be a list of dims, as {1, 0}", words.shown(value))
   end
   return value
end

--- What is wrong with a dtype to convert to, or nil.
function rule_body.convert_fault(value)
   if type(value) ~= "string" then
      return ('convert (%s) must be a dtype, as "bfloat16", or false'):format(words.shown(value))
   elseif not core.dtypes[value] then
      return ("convert (%s) is no dtype%s"):format(words.shown(value), nearest.hint(value, nearest.keys(core.dtypes)))
   end
end

local function check_convert(made, value)
   local fault = value and rule_body.convert_fault(value)
   if fault then
      fail(made, "%s", fault)
   end
   return value
end

local function check_text(made, key, value)
   if type(value) ~= "string" or value == "" then
      fail(made, "%s (%s) must be a text%s", key, words.shown(value), (key == "full" or key == "skip") and ": the reason" or "")
   elseif #value > LONGEST_TEXT or value:find("%z") then
      fail(made, "%s (%s) must be a text of at most %d bytes without zero characters", key, words.shown(value), LONGEST_TEXT)
   elseif not core.is_utf8(value) then
      fail(made, "%s (%s) must be UTF-8", key, words.shown(value))
   end
   return value
end

-- Of keys that are not allowed the first; a table may have millions.
local function check_keys(made, body, allowed)
   local first
   for key in pairs(body) do
      if type(key) == "number" and (key < 1 or key % 1 ~= 0) then
         fail(made, "strips are numbered from 1 on; it has the number %s", words.shown(key))
      elseif type(key) ~= "number" and not allowed[key] then
         local name = type(key) == "string" and key or words.shown(key)
         first = (first == nil or name < first) and name or first
      end
   end
   if first then
      if allowed ~= BODY_KEYS and BODY_KEYS[first] then
         fail(made, "%s is a word for the whole rule, not for one of its strips", first)
      end
      fail(made, "unknown key '%s'%s", check.shorten(first), nearest.among(first, nearest.keys(allowed)))
   end
end

-- A strip that clears: what it takes from the rule is the live tensor, the part of it and the pins.
local function check_zero(made, body, defaults)
   if body.zero ~= true then
      fail(made, "zero (%s) must be true", words.shown(body.zero))
   end
   for _, key in ipairs(ZERO_KEYS) do
      if body[key] ~= nil then
         fail(made, "%s cannot stand beside zero: that strip brings nothing", key)
      end
   end
   local into, layout = body.into or defaults.into, {}
   for _, placement in ipairs(check_layout(made, body.layout or defaults.layout)) do
      if words.kind(placement) == "pin" then
         layout[#layout + 1] = placement
      elseif body.layout then
         fail(made, "layout (%s) of a strip with zero must be pins: each worker clears its own part",
            words.shown(placement))
      end
   end
   local at = check_slices(made, "at", body.at)
   return {
      into = into and check_text(made, "into", into), at = at, from = {}, layout = layout, zero = true,
      picks = picks_in(at, layout), templates = {},
   }
end

local function check_strip(made, body, defaults)
   if body.zero ~= nil and body.zero ~= false then
      return check_zero(made, body, defaults)
   end
   local function value(key)
      if body[key] == nil then
         return defaults[key]
      end
      return body[key]
   end
   local pad = value("pad")
   if pad ~= nil and pad ~= "zero" then
      fail(made, 'pad (%s) must be "zero"', words.shown(pad))
   end
   local at, from = check_slices(made, "at", value("at")), check_slices(made, "from", value("from"))
   local layout = check_layout(made, value("layout"))
   return {
      into = value("into") ~= nil and check_text(made, "into", value("into")) or nil,
      at = at, from = from, layout = layout, permute = check_permute(made, value("permute")), pad = pad,
      convert = check_convert(made, value("convert")),
      picks = picks_in(at, from, layout), templates = {},
   }
end

local function check_strips(made, body)
   local count, brings = table.maxn(body), false
   if body.zero ~= nil then
      fail(made, "zero stands in a strip beside the strip that brings the parameter: { ... }, { into = ..., zero = true }")
   elseif count == 0 then
      return { check_strip(made, body, {}) }
   elseif count > MOST_STRIPS then
      fail(made, "%d strips; a rule may have %d", count, MOST_STRIPS)
   end
   local strips = {}
   for i = 1, count do
      if body[i] then -- false and nil are strips that a condition left out
         if type(body[i]) ~= "table" or words.kind(body[i]) then
            fail(made, "strip %d (%s) must be a table", i, words.shown(body[i]))
         end
         check_keys(made, body[i], STRIP_KEYS)
         if table.maxn(body[i]) > 0 then
            fail(made, "strip %d must hold no strips of its own", i)
         end
         strips[#strips + 1] = check_strip(made, body[i], body)
         brings = brings or not strips[#strips].zero
      end
   end
   if not strips[1] then
      fail(made, "every strip is left out; leave out the rule")
   elseif not brings then
      fail(made, 'every strip is zero, none brings the parameter; say skip = "a reason" if it is not served')
   end
   return strips
end

local function check_shape(made, value)
   if value == nil then
      return nil
   elseif type(value) ~= "table" or words.kind(value) then
      fail(made, 'shape (%s) must be a list of numbers and "*"', words.shown(value))
   end
   for i = 1, table.maxn(value) do
      local extent = value[i]
      if extent ~= "*" and (type(extent) ~= "number" or extent % 1 ~= 0 or extent < 1) then
         fail(made, 'shape[%d] (%s) must be an integer of at least 1, or "*"', i, words.shown(extent))
      end
   end
   return value
end

local function check_companions(made, value)
   local list = type(value) == "string" and { value } or value or {}
   if type(list) ~= "table" then
      fail(made, "companion (%s) must be a parameter's name, or a list of them", words.shown(value))
   end
   for i = 1, table.maxn(list) do
      check_text(made, ("companion[%d]"):format(i), list[i])
   end
   return list
end

--- What a rule says.
-- @param made { place =, pattern =, body = the table in braces }
-- @return { place =, pattern =, mode =, text =, strips =, shape =, companions = }
function rule_body.read(made)
   local body = made.body
   check_keys(made, body, BODY_KEYS)
   local said = { place = made.place, pattern = made.pattern, shape = check_shape(made, body.shape),
                  companions = check_companions(made, body.companion) }
   for _, mode in ipairs({ "alias", "full", "skip" }) do
      if body[mode] ~= nil and body[mode] ~= false then
         if said.mode then
            fail(made, "%s and %s cannot both hold", said.mode, mode)
         end
         said.mode, said.text = mode, check_text(made, mode, body[mode])
      end
   end
   if not said.mode then
      said.mode, said.strips = "direct", check_strips(made, body)
      return said
   end
   for key in pairs(STRIP_KEYS) do
      if body[key] ~= nil and not (key == "into" and said.mode == "full") then
         fail(made, "%s cannot stand beside %s", key, said.mode)
      end
   end
   if body.into ~= nil then -- where the host's loader puts it: nothing else need write there
      said.strips = { { into = check_text(made, "into", body.into), picks = {} } }
   end
   if table.maxn(body) > 0 then
      fail(made, "strips cannot stand beside %s", said.mode)
   end
   return said
end

return rule_body
