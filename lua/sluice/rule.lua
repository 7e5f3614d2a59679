--- The rule language: reads a rule file and those it extends, and builds the matchers that find a name's rule. Mistakes are
-- said as "file:line: rule "pattern": ...".
-- @module sluice.rule

local check = require "sluice.check"
local core = require "sluice.core"
local match = require "sluice.match"
local nearest = require "sluice.nearest"
local rule_body = require "sluice.rule_body"
local rule_file = require "sluice.rule_file"
local words = require "sluice.words"

local rule = {}

local MOST_FILES = 16
local MOST_WRAPPERS = 4 -- segments in front of a name
local FEW_EDITS = 3 -- between a name and a pattern that was meant for it
local MOST_PATTERNS = 100000 -- of all rules, pins and unsourced, one for each value of {p=a|b}
local MOST_STRIPS = 100000 -- of all rules
local MOST_RENAMES = 256 -- and as many strips: each name goes through all of them
local LONGEST = 4096 -- bytes of a name
local NO_TEXT = "is no UTF-8, which every name is"

local fail = rule_body.fail

local function read_pattern(pattern, complain)
   local read, problem = match.pattern(pattern)
   if read and not core.is_utf8(pattern) then
      complain("the pattern " .. NO_TEXT)
   elseif not read then
      complain("the pattern " .. problem)
   end
   return read
end

local function template(made, key, text, pattern)
   local compiled, problem = match.template(text, pattern)
   if not compiled then
      fail(made, "%s (%s) %s", key, check.shorten(text, 200), problem)
   end
   return compiled
end

-- What a rule says, with its templates.
local function read_rule(made, pattern)
   local said = rule_body.read(made)
   said.names, said.into, said.companion = pattern.names, {}, {}
   for i, strip in ipairs(said.strips or {}) do
      rule_body.check_picks(strip.picks, pattern, function(problem) fail(made, "%s", problem) end)
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

-- A matcher that gives up where patterns are made to be searched for ever. `search` is nil, or what it shares with others.
local function new_matcher(set, search)
   return match.new(function()
      check.raise("SCRIPT", ("%s: too many patterns with ** and captures could match alike; the search for a name's rule is too long")
         :format(set.path))
   end, search)
end

-- Counts patterns, each for every value of its {p=a|b}.
local function count(set, place, read)
   set.patterns = set.patterns + #read.simples
   if set.patterns > MOST_PATTERNS then
      check.raise("SCRIPT", ("%s: more than %d patterns, each {p=a|b} counted once a value"):format(place, MOST_PATTERNS))
   end
end

local function add_rule(set, file, made)
   local pattern = read_pattern(made.pattern, function(problem) fail(made, "%s", problem) end)
   count(set, made.place, pattern)
   local said = read_rule(made, pattern)
   set.parts = set.parts + (said.strips and #said.strips or 0)
   if set.parts > MOST_STRIPS then
      check.raise("SCRIPT", ("%s: the rules have more than %d strips in all"):format(made.place, MOST_STRIPS))
   end
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
         made = kind == "rule" and words.value(made) or not kind and plain_rule(file, made)
         if not made then
            local wrong = file.result.rules[i]
            local unfinished = kind and words.value(wrong)
            check.raise("SCRIPT", ('%s: rules[%d] (%s) must be a rule: rule "pattern" { ... }'):format(
               unfinished and unfinished.place or file.key("rules"), i, words.shown(wrong)))
         end
         add_rule(set, file, made)
      end
   end
end

local function add_where(set, made)
   local function complain(problem)
      check.raise("SCRIPT", ('%s: where "%s": %s'):format(made.place, made.pattern, problem))
   end
   local picks, pattern = rule_body.picks_in(made.pins), read_pattern(made.pattern, complain)
   rule_body.check_picks(picks, pattern, complain)
   for _, pick in ipairs(picks) do
      if pick.each then
         complain("each is for the strips of rules")
      elseif pick.several then
         complain(('pick("%s") must give one number each: copies are for rules'):format(pick.capture))
      end
   end
   count(set, made.place, pattern)
   set.pins = set.pins or new_matcher(set)
   local said = { word = "where", place = made.place, pattern = made.pattern, names = pattern.names }
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
         check.raise("SCRIPT", ('%s: pins[%d] (%s) must be made by where "pattern" (pin(...))'):format(file.key("pins"), i,
            words.shown(made)))
      elseif made then
         add_where(set, words.value(made))
      end
   end
end

local function read_rename(set, file, key, pair)
   local function complain(problem)
      check.raise("SCRIPT", ('%s: %s "%s": %s'):format(file.at(pair[1]), key, pair[1], problem))
   end
   local matcher, pattern = new_matcher(set, set.search[key]), read_pattern(pair[1], complain)
   count(set, file.at(pair[1]), pattern)
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
      set.renames[#set.renames + 1] = read_rename(set, file, "rename", pair)
   end
   for i, pair in ipairs(file.result.rename_live or {}) do
      table.insert(set.live_renames, i, read_rename(set, file, "rename_live", pair))
   end
   for _, segments in ipairs(file.result.strip or {}) do
      set.strips[#set.strips + 1] = { text = segments:gsub("^%.", ""):gsub("%.$", ""), place = file.at(segments) }
   end
   for _, key in ipairs({ "renames", "live_renames", "strips" }) do
      if #set[key] > MOST_RENAMES then
         check.raise("SCRIPT", ("%s: more than %d %s"):format(file.path, MOST_RENAMES, key))
      end
   end
end

local function add_unsourced(set, file)
   for _, pattern in ipairs(file.result.unsourced or {}) do
      local read = read_pattern(pattern, function(problem)
         check.raise("SCRIPT", ('%s: unsourced "%s": %s'):format(file.at(pattern), pattern, problem))
      end)
      count(set, file.at(pattern), read)
      for _, simple in ipairs(read.simples) do
         set.unsourced = set.unsourced or new_matcher(set)
         set.unsourced:add(simple, 1, { pattern = pattern, place = file.at(pattern) })
      end
   end
end

-- What a file says that names land as, where their rule does not: a dtype for float32 parameters, or { "pattern", dtype } each.
local function read_convert(set, file)
   local said = file.result.convert
   if type(said) ~= "table" then
      return said
   end
   local matcher = new_matcher(set)
   for i = 1, #said do
      local pattern, dtype = said[i][1], said[i][2]
      local read = read_pattern(pattern, function(problem)
         check.raise("SCRIPT", ('%s: convert "%s": %s'):format(file.at(pattern), pattern, problem))
      end)
      count(set, file.at(pattern), read)
      for _, simple in ipairs(read.simples) do
         matcher:add(simple, 1, { dtype = dtype })
      end
   end
   return matcher
end

-- Adds a file and, behind it, those that it extends.
local function add_file(set, rules, environment, from)
   local file = rule_file.load(rules, environment, from)
   set.files = set.files + 1
   if set.files > MOST_FILES then
      check.raise("SCRIPT", ("%s: extends: more than %d files extend each other"):format(from.path, MOST_FILES))
   end
   set.path, set.place.rules = set.path or file.path, set.place.rules or file.key("rules")
   add_rules(set, file)
   add_pins(set, file)
   add_renames(set, file)
   add_unsourced(set, file)
   for _, key in ipairs({ "otherwise", "full", "require_direct", "scales", "convert" }) do
      if set[key] == nil and file.result[key] ~= nil then
         set[key], set.place[key] = key == "convert" and read_convert(set, file) or file.result[key], file.key(key)
      end
   end
   local extends = file.result.extends
   for _, other in ipairs(type(extends) == "table" and extends or { extends }) do
      add_file(set, other, environment, file)
   end
end

--- Loads a rule file and those it extends.
-- @param rules a family's name or a path
-- @param environment of words.environment
-- @param[opt] full a reason why all goes whole, whatever the files say
-- @return the set: rules and pins (matchers), list (what each rule says, in order), renames, strips, unsourced, otherwise,
-- full, require_direct, scales, convert (a dtype, or a matcher of patterns that have one), the path, and in `place` the
-- "file:line" of rules, otherwise and full
function rule.load(rules, environment, full)
   local set = { full = full, list = {}, count = 0, pin_count = 0, patterns = 0, parts = 0, files = 0, place = {}, renames = {}, live_renames = {},
                 strips = {}, search = { rename = match.search(), rename_live = match.search() } }
   set.rules = new_matcher(set)
   add_file(set, rules, environment, nil)
   set.place.full = set.place.full or set.place.rules
   match.share(set.search.rename, #set.renames)
   match.share(set.search.rename_live, #set.live_renames)
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
         local renamed = found.compiled(step.matcher, name, found.bound)
         if #renamed > LONGEST then
            check.raise("SCRIPT", ('%s: %s "%s": it makes of %s a name of %d bytes; a name has at most %d'):format(step.place, step.word,
               check.shorten(step.from, 200), check.shorten(name), #renamed, LONGEST))
         end
         name = note(trace, step.word, name, renamed, step.from, step.to, step.place)
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

-- The rule that matches a name once its first segments, a few at most, are gone.
local function hint_behind(set, name)
   local rest = name
   for _ = 1, MOST_WRAPPERS do
      rest = rest and rest:match("^[^.]+%.(.+)$")
      local found = rest and set.rules:find(rest)
      if found then
         return (' (without "%s" in front rule "%s" at %s matches; strip or rename takes it away)'):format(
            name:sub(1, #name - #rest - 1), found.said.pattern, found.said.place)
      end
   end
end

-- A pattern that reads like a regular expression, or a path: no name has such characters.
local function hint_expression(set)
   for _, said in ipairs(set.list) do
      local sign = said.pattern:match("[%[%]()\\^$+?/]")
      if sign then
         return (' (rule "%s" at %s holds %s, which stands for itself: {l} is any one segment, segments are parted by dots)'):format(
            said.pattern, said.place, sign)
      end
   end
   return ""
end

--- The rule whose pattern comes nearest to a name that no rule matches: what its author may have meant.
-- @return " (did you mean rule "..." at file:line?)", or ""
function rule.hint(set, name)
   local dots = select(2, name:gsub("%.", ""))
   if dots >= match.MOST_SEGMENTS then
      return (", which has %d segments; patterns match names of at most %d"):format(dots + 1, match.MOST_SEGMENTS)
   end
   local behind = hint_behind(set, name)
   if behind then
      return behind
   end
   local segments, candidates, said_of = {}, {}, {}
   for segment in name:gmatch("[^.]+") do
      segments[#segments + 1] = segment
   end
   for _, said in ipairs(set.list) do
      for _, simple in ipairs(said.read.simples) do
         local made = #simple.path == #segments and match.fill(simple, segments)
         if made and not said_of[made] then
            candidates[#candidates + 1], said_of[made] = made, said
         end
      end
   end
   local said = said_of[nearest.word(name, candidates, math.min(FEW_EDITS, math.floor(#name / 6))) or false]
   return said and (' (did you mean rule "%s" at %s?)'):format(said.pattern, said.place) or hint_expression(set)
end

--- What this server calls a live tensor that a rule names. `trace` as above.
function rule.live_name(set, name, trace)
   return rename(set.live_renames, name, trace)
end

return rule
