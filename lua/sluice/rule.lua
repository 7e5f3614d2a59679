--- The rule language: checks each rule of a rule file and of those it extends, and builds the matchers that find a name's
-- rule. Mistakes are said as "file:line: rule "pattern": ...".
-- @module sluice.rule

local check = require "sluice.check"
local match = require "sluice.match"
local nearest = require "sluice.nearest"
local rule_file = require "sluice.rule_file"
local words = require "sluice.words"

local rule = {}

local MOST_FILES = 8
local MOST_STRIPS = 64

local STRIP_KEYS = { into = true, at = true, from = true, layout = true, permute = true, pad = true, zero = true }
local ZERO_KEYS = { "from", "pad", "permute" } -- that cannot stand beside zero
local MODE_KEYS = { full = true, skip = true, alias = true }
local BODY_KEYS = { shape = true, companion = true }
for _, keys in ipairs({ STRIP_KEYS, MODE_KEYS }) do
   for key in pairs(keys) do
      BODY_KEYS[key] = true
   end
end

local function fail(made, text, ...)
   check.raise("SCRIPT", ('%s: rule "%s": %s'):format(made.place, made.pattern, text:format(...)))
end

-- ---- picks ----

--- The pick inside a slice or a pin, if there is one.
function rule.pick_in(value)
   local number = value.start or value.at or value.coordinate
   return type(number) == "table" and number or nil
end

-- The picks in some lists of slices and placements.
local function picks_in(...)
   local picks = {}
   for i = 1, select("#", ...) do
      for _, value in ipairs((select(i, ...))) do
         picks[#picks + 1] = rule.pick_in(value)
      end
   end
   return picks
end

local function check_picks(picks, pattern, complain)
   for _, pick in ipairs(picks) do
      if not pattern.names[pick.capture] and not pattern.listed[pick.capture] then
         complain(('pick("%s") names no capture of the pattern'):format(pick.capture))
      end
   end
end

-- ---- values of a destination ----

-- One value of a kind, or a list of such values; always gives a list.
local function list_of(made, key, value, kinds, wanted)
   if value == nil then
      return {}
   end
   local list = words.kind(value) and { value } or value
   if type(list) ~= "table" then
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
   return list
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

local function check_text(made, key, value)
   if type(value) ~= "string" or value == "" then
      fail(made, "%s (%s) must be a text", key, words.shown(value))
   end
   return value
end

local function check_keys(made, body, allowed)
   local names = {}
   for key in pairs(body) do
      if type(key) ~= "number" and not allowed[key] then
         names[#names + 1] = tostring(key)
      end
   end
   table.sort(names)
   if names[1] then
      fail(made, "unknown key '%s'%s", names[1], nearest.hint(names[1], nearest.keys(allowed)))
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
      if type(body[i]) ~= "table" or words.kind(body[i]) then
         fail(made, "strip %d (%s) must be a table", i, words.shown(body[i]))
      end
      check_keys(made, body[i], STRIP_KEYS)
      if table.maxn(body[i]) > 0 then
         fail(made, "strip %d must hold no strips of its own", i)
      end
      strips[i] = check_strip(made, body[i], body)
      brings = brings or not strips[i].zero
   end
   if not brings then
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

-- What a rule says, checked as far as it can be before a parameter is seen.
local function read_body(made)
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

-- ---- from rules to matchers ----

local function read_pattern(pattern, complain)
   local read, problem = match.pattern(pattern)
   if not read then
      complain("the pattern " .. problem)
   end
   return read
end

local function template(made, key, text, pattern)
   local compiled, problem = match.template(text, pattern)
   if not compiled then
      fail(made, "%s (%s) %s", key, text, problem)
   end
   return compiled
end

-- What a rule says, with its templates.
local function read_rule(made, pattern)
   local said = read_body(made)
   said.names, said.into, said.companion = pattern.names, {}, {}
   for i, strip in ipairs(said.strips or {}) do
      check_picks(strip.picks, pattern, function(problem) fail(made, "%s", problem) end)
      said.into[i] = strip.into and template(made, "into", strip.into, pattern) or false
   end
   for i, companion in ipairs(said.companions) do
      said.companion[i] = template(made, "companion", companion, pattern)
   end
   said.alias = said.mode == "alias" and template(made, "alias", said.text, pattern) or nil
   return said
end

-- { "pattern", key = ... } says the same as rule "pattern" { key = ... }; its line is the first that holds the pattern.
local function plain_rule(file, value)
   if type(value) ~= "table" or type(value[1]) ~= "string" or value[1] == "" then
      return nil
   end
   local body = {}
   for key, item in pairs(value) do
      if type(key) ~= "number" then
         body[key] = item
      elseif key > 1 then
         body[key - 1] = item
      end
   end
   return { pattern = value[1], body = body, place = file.at(value[1]) }
end

local function add_rule(set, file, made)
   local pattern = read_pattern(made.pattern, function(problem) fail(made, "%s", problem) end)
   local said = read_rule(made, pattern)
   set.list[#set.list + 1] = said
   said.file, said.read, said.number = file, pattern, #set.list
   for _, simple in ipairs(pattern.simples) do
      set.count = set.count + 1
      local before = set.rules:add(simple, set.count, { said = said, bound = simple.bound })
      if before and before.said.file == file then
         fail(made, "can never match: the rule at %s has the same pattern", before.said.place)
      end
   end
end

local function add_rules(set, file)
   for i = 1, table.maxn(file.result.rules or {}) do
      local made = file.result.rules[i]
      if made then -- false and nil are rules that a condition left out
         local kind = words.kind(made)
         made = kind == "rule" and made or not kind and plain_rule(file, made)
         if not made then
            check.raise("SCRIPT", ('%s: rules[%d] (%s) must be a rule: rule "pattern" { ... }'):format(file.path, i,
               words.shown(file.result.rules[i])))
         end
         add_rule(set, file, made)
      end
   end
end

local function add_where(set, made)
   local function complain(problem)
      check.raise("SCRIPT", ('%s: where "%s": %s'):format(made.place, made.pattern, problem))
   end
   local picks, pattern = picks_in(made.pins), read_pattern(made.pattern, complain)
   check_picks(picks, pattern, complain)
   set.pins = set.pins or match.new()
   local said = { place = made.place, pattern = made.pattern, names = pattern.names }
   for _, simple in ipairs(pattern.simples) do
      set.pin_count = set.pin_count + 1
      set.pins:add(simple, set.pin_count, { said = said, bound = simple.bound, pins = made.pins, picks = picks,
                                            number = set.pin_count, settled = {} })
   end
end

local function add_pins(set, file)
   for i = 1, table.maxn(file.result.pins or {}) do
      local made = file.result.pins[i]
      if made and words.kind(made) ~= "where" then
         check.raise("SCRIPT", ('%s: pins[%d] (%s) must be made by where "pattern" (pin(...))'):format(file.path, i,
            words.shown(made)))
      elseif made then
         add_where(set, made)
      end
   end
end

local function read_rename(file, key, pair)
   local function complain(problem)
      check.raise("SCRIPT", ('%s: %s "%s": %s'):format(file.at(pair[1]), key, pair[1], problem))
   end
   local matcher, pattern = match.new(), read_pattern(pair[1], complain)
   local compiled, problem = match.template(pair[2], pattern)
   if not compiled then
      complain(("(%s) %s"):format(pair[2], problem))
   end
   for number, simple in ipairs(pattern.simples) do
      matcher:add(simple, number, { compiled = compiled, bound = simple.bound })
   end
   return { matcher = matcher, word = key, from = pair[1], to = pair[2], place = file.at(pair[1]) }
end

-- A trainer's name goes from the extending file to the extended one, a live name comes back the other way.
local function add_renames(set, file)
   for _, pair in ipairs(file.result.rename or {}) do
      set.renames[#set.renames + 1] = read_rename(file, "rename", pair)
   end
   for i, pair in ipairs(file.result.rename_live or {}) do
      table.insert(set.live_renames, i, read_rename(file, "rename_live", pair))
   end
   for _, segments in ipairs(file.result.strip or {}) do
      set.strips[#set.strips + 1] = { text = segments:gsub("^%.", ""):gsub("%.$", ""), place = file.at(segments) }
   end
end

local function add_unsourced(set, file)
   for _, pattern in ipairs(file.result.unsourced or {}) do
      local read = read_pattern(pattern, function(problem)
         check.raise("SCRIPT", ('%s: unsourced "%s": %s'):format(file.at(pattern), pattern, problem))
      end)
      for _, simple in ipairs(read.simples) do
         set.unsourced = set.unsourced or match.new()
         set.unsourced:add(simple, 1, { pattern = pattern, place = file.at(pattern) })
      end
   end
end

--- Loads a rule file and those it extends.
-- @param rules a family's name or a path
-- @param environment of words.environment
-- @return the set: rules and pins (matchers), list (what each rule says, in order), renames, strips, unsourced, otherwise,
-- full, require_direct, and the path
function rule.load(rules, environment)
   local set = { rules = match.new(), list = {}, count = 0, pin_count = 0, renames = {}, live_renames = {}, strips = {} }
   local file, files = nil, 0
   while rules do
      local from = file
      file = rule_file.load(rules, environment, from)
      files = files + 1
      if files > MOST_FILES then
         check.raise("SCRIPT", ("%s: extends: more than %d files extend each other"):format(from.path, MOST_FILES))
      end
      add_rules(set, file)
      add_pins(set, file)
      add_renames(set, file)
      add_unsourced(set, file)
      for _, key in ipairs({ "otherwise", "full", "require_direct" }) do
         if set[key] == nil then
            set[key] = file.result[key]
         end
      end
      set.path = set.path or file.path
      rules = file.result.extends
   end
   return set
end

local function note(trace, word, before, after, from, to, place)
   if trace and before ~= after then
      trace[#trace + 1] = { word = word, from = from, to = to, where = place, before = before, after = after }
   end
   return after
end

local function rename(renames, name, trace)
   for _, step in ipairs(renames) do
      local found = step.matcher:find(name)
      if found then
         name = note(trace, step.word, name, found.compiled(step.matcher, name, found.bound), step.from, step.to, step.place)
      end
   end
   return name
end

--- The name that rules see: wrappers stripped, then each rename tried once, in order.
-- @param trace a list, or nil: gets { word =, from =, to =, where =, before =, after = } of each step that changed the name
function rule.canonical_name(set, name, trace)
   for _, strip in ipairs(set.strips) do
      name = note(trace, "strip", name, match.strip(name, strip.text), strip.text, nil, strip.place)
   end
   return rename(set.renames, name, trace)
end

--- What this server calls a live tensor that a rule names. `trace` as above.
function rule.live_name(set, name, trace)
   return rename(set.live_renames, name, trace)
end

return rule
