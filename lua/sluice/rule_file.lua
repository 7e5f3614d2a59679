--- Finds, runs and checks one rule file: the table that it returns, with the file and line of each mistake. What the rules
-- in it mean is rule.lua's matter.
-- @module sluice.rule_file

local advice = require "sluice.advice"
local check = require "sluice.check"
local core = require "sluice.core"
local nearest = require "sluice.nearest"
local rule_body = require "sluice.rule_body"
local sandbox = require "sluice.sandbox"
local words = require "sluice.words"

local rule_file = {}

local LONGEST = 1048576
local LONGEST_SHOWN = 400
local FAMILIES = "sluice.rules."

local KEYS = {
   name = "text", extends = "text or texts", strip = "texts", rename = "pairs", rename_live = "pairs", unsourced = "texts",
   pins = "list", rules = "list", otherwise = "text", full = "text", require_direct = "boolean",
   scales = "scales", convert = "convert",
}
rule_file.keys = KEYS
local MOST_ITEMS, MOST_DIMS = 100000, 8
local OTHERWISE = { default = true, full = true, error = true }

-- ---- finding ----

-- Files beside the families that only they extend.
local PARTS = { attention = true, decoder = true, every_stage = true, experts = true, mlp = true, moe = true }

--- The families that ship with Sluice, sorted; and with them what they share.
function rule_file.families()
   local list, all = {}, {}
   for _, name in ipairs(core.files(FAMILIES)) do
      all[#all + 1] = name:sub(#FAMILIES + 1)
   end
   table.sort(all)
   for _, name in ipairs(all) do
      list[#list + 1] = not PARTS[name] and name or nil
   end
   return list, all
end

local function no_family(name, named, beside, place)
   local families, all = rule_file.families()
   local looked = named > 0 and ("; SLUICE_RULES_PATH has no %s.lua either"):format(check.shorten(name)) or ""
   check.raise("INVALID", ("%s (%s) must be a path, with a . or a / in it, or a family that ships with Sluice: %s%s%s"):format(place,
      check.shorten(name, LONGEST_SHOWN), table.concat(families, ", "), nearest.hint(name, beside and all or families), looked))
end

-- Texts that stand for files, by the name that they are asked for; and for those that a bare name finds, lists in order of folders.
local given, given_families = {}, {}

--- From now on `name` is a rule file with this text, in this state.
-- @param[opt] family where a bare name finds it: that name,
-- @param[opt] folder and the number of the folder
function rule_file.give(name, text, family, folder)
   if not family then
      given[name] = text
      return
   end
   given_families[family] = given_families[family] or {}
   table.insert(given_families[family], { text = text, path = name, folder = folder })
end

-- Files that were read in this state, in order, and each by its name.
local was_read = {}

--- What was read so far: a list of { name =, text =, family =, folder = }, as rule_file.give takes them.
function rule_file.read_so_far()
   return was_read
end

local function note(path, text, found)
   if not was_read[path] then
      was_read[path] = true
      was_read[#was_read + 1] = { name = path, text = text, family = found and found.family, folder = found and found.folder }
   end
end

-- A bare name: the first folder that has such a file, then the library. A file that asks for its own name gets the next.
local function read_family(name, beside, place)
   local folders, named = core.rule_folders()
   local first = beside and beside.family == name and beside.folder + 1 or 1
   for _, file in ipairs(given_families[name] or {}) do
      if file.folder >= first then
         return file.text, file.path, { family = name, folder = file.folder }
      end
   end
   for i = first, #folders do
      local text, path, problem = core.read_rules(folders[i], name, LONGEST)
      if problem then
         check.raise("INVALID", ("%s (%s) must be a file that can be trusted: %s"):format(place, name,
            check.shorten(problem, LONGEST_SHOWN)))
      elseif text then
         return text, path, { family = name, folder = i }
      end
   end
   local text, chunk = core.file(FAMILIES .. name)
   if not text or (beside and beside.family == name and beside.folder > #folders) then
      no_family(name, named, beside, place)
   end
   return text, (chunk:gsub("^@", "")), { family = name, folder = #folders + 1 }
end

local function read_path(path, place)
   local text, problem = given[path], nil
   if not text then
      text, problem = core.read_file(path, LONGEST)
   end
   if not text then
      check.raise("INVALID", ("%s (%s) must be a file that can be read"):format(place, check.shorten(problem, LONGEST_SHOWN)))
   end
   return text, path
end

-- A bare name is a family, anything else a path; `beside` is the file that asks.
local function read(rules, beside, place)
   if rules:find("^[%w_%-]+$") then
      return read_family(rules, beside and beside.found, place)
   end
   local folder = beside and not rules:find("^/") and beside.path:match("^(.*/)[^/]*$") or ""
   return read_path(folder .. rules, place)
end

-- ---- checking ----

-- "file:line" of the last line that begins with `return`, of the first line where none does.
local function last_return(file)
   local number, found = 0, 1
   for line in (file.text .. "\n"):gmatch("([^\n]*)\n") do
      number = number + 1
      found = line:find("^%s*return%f[^%w_]") and number or found
   end
   return ("%s:%d"):format(file.path, found)
end

-- "file:line" of the first line that holds `needle` (a pattern), of the last return where none does.
local function line_of(file, needle)
   local number = 0
   for line in (file.text .. "\n"):gmatch("([^\n]*)\n") do
      number = number + 1
      if line:find(needle) then
         return ("%s:%d"):format(file.path, number)
      end
   end
   return last_return(file)
end

-- The first line of each text that stands in quotes, read once: a file may hold thousands.
local function quoted_lines(file)
   local lines, number = {}, 0
   for line in (file.text .. "\n"):gmatch("([^\n]*)\n") do
      number = number + 1
      for _, text in line:gmatch("([\"'])(.-)%1") do
         lines[text] = lines[text] or number
      end
   end
   return lines
end

-- "file:line" of the first line that has `text` in quotes, "file" where none has.
local function quoted_at(file, text)
   file.quoted = file.quoted or quoted_lines(file)
   local number = file.quoted[text]
   return number and ("%s:%d"):format(file.path, number) or file.path
end

local function fail(file, key, text, ...)
   check.raise("SCRIPT", ("%s: %s"):format(line_of(file, "%f[%w_]" .. key .. "%s*="), text:format(...)))
end

local function check_utf8(file, key, what, text)
   if not core.is_utf8(text) then
      fail(file, key, "%s (%s) must be UTF-8 without zero characters", what, words.shown(text))
   end
end

local function check_texts(file, key, list)
   for i = 1, table.maxn(list) do
      if type(list[i]) ~= "string" or list[i] == "" then
         fail(file, key, "%s[%d] (%s) must be a text", key, i, words.shown(list[i]))
      end
      check_utf8(file, key, ("%s[%d]"):format(key, i), list[i])
   end
end

local function check_pairs(file, key, list)
   for i = 1, table.maxn(list) do
      local pair = list[i]
      if type(pair) ~= "table" or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" or #pair ~= 2 then
         fail(file, key, '%s[%d] (%s) must be a pair {"from", "to"}', key, i, words.shown(pair))
      end
      for part = 1, 2 do
         check_utf8(file, key, ("%s[%d][%d]"):format(key, i, part), pair[part])
      end
   end
end

local SCALES_KEYS = { block = true, ending = true }

local function check_scales(file, value)
   if type(value) ~= "table" or words.kind(value) then
      fail(file, "scales", 'scales (%s) must be a table: { ending = "_scale_inv", block = { 128, 128 } }', words.shown(value))
   end
   for key in pairs(value) do
      if not SCALES_KEYS[key] then
         fail(file, "scales", "scales: unknown key '%s'; known: block, ending", type(key) == "string" and key or words.shown(key))
      end
   end
   if type(value.ending) ~= "string" or not value.ending:find("^[%w_]+$") then
      fail(file, "scales", "scales: ending (%s) must be what a scale's name has more than its weight's", words.shown(value.ending))
   elseif type(value.block) ~= "table" or words.kind(value.block) or #value.block == 0
      or #value.block > MOST_DIMS then
      fail(file, "scales", "scales: block (%s) must be a list of how many elements share a scale", words.shown(value.block))
   end
   local block = { unpack(value.block) } -- of its own: another file may hold the host's list, too
   for i, size in ipairs(block) do
      if size ~= "*" and (type(size) ~= "number" or size % 1 ~= 0 or size < 1) then
         fail(file, "scales", 'scales: block[%d] (%s) must be an integer of at least 1, or "*" for all of the dim', i, words.shown(size))
      end
   end
   return { ending = value.ending, block = block }
end

local REASON = "a text: the reason"
local PLAIN = { text = "a text", boolean = "true or false", ["text or texts"] = "a text, or a list of them" }

local function check_value(file, key, value, as)
   local is_list = type(value) == "table" and not words.kind(value)
   local kind = KEYS[key] == "text or texts" and is_list and "texts" or as or KEYS[key]
   if PLAIN[kind] then
      if type(value) ~= (kind == "boolean" and "boolean" or "string") or value == "" then
         fail(file, key, "%s (%s) must be %s", key, words.shown(value), key == "full" and REASON or PLAIN[kind])
      elseif kind ~= "boolean" then
         check_utf8(file, key, key, value)
      end
      return
   elseif not is_list then
      fail(file, key, "%s (%s) must be a list", key, words.shown(value))
   end
   for index in pairs(value) do
      if type(index) == "number" and index % 1 == 0 and index > MOST_ITEMS then
         fail(file, key, "%s must have at most %d entries; it has number %s", key, MOST_ITEMS, words.shown(index))
      elseif type(index) ~= "number" or index % 1 ~= 0 or index < 1 then
         fail(file, key, "%s must be a list%s; it has the key '%s'", key, kind == "pairs" and ' of pairs {"from", "to"}' or "",
            type(index) == "string" and index or words.shown(index))
      end
   end
   if kind == "texts" then
      check_texts(file, key, value)
   elseif kind == "pairs" then
      check_pairs(file, key, value)
   end
end

-- A dtype, or a list of { "pattern", dtype }.
local function check_convert(file, value)
   if type(value) == "table" and not words.kind(value) then
      check_value(file, "convert", value, "pairs")
   end
   for _, pair in ipairs(type(value) == "table" and value or { { nil, value } }) do
      local fault = rule_body.convert_fault(pair[2])
      if fault then
         fail(file, "convert", "%s", fault)
      end
   end
end

local function check_table(file, result)
   if type(result) ~= "table" or words.kind(result) then
      check.raise("SCRIPT", ("%s: the file (%s) must return a table: return { rules = { ... } }"):format(last_return(file), words.shown(result)))
   end
   if result[1] ~= nil then
      check.raise("SCRIPT", ("%s: the file returns a list; its rules go under a key: return { rules = { ... } }"):format(last_return(file)))
   end
   local unknown -- the first: there may be millions
   for key in pairs(result) do
      if type(key) ~= "string" then
         check.raise("SCRIPT", ("%s: the table has a key that is no name (%s)"):format(last_return(file), words.shown(key)))
      end
      if not KEYS[key] and (unknown == nil or key < unknown) then
         unknown = key
      end
   end
   if unknown then
      fail(file, check.shorten(unknown):gsub("%p", "%%%0"), "unknown key '%s'%s", check.shorten(unknown),
         nearest.hint(unknown, nearest.keys(KEYS)))
   end
   for key in pairs(KEYS) do
      if result[key] == false and KEYS[key] ~= "boolean" then
         if key ~= "full" and key ~= "scales" and key ~= "convert" then -- a file's false stands against what an extended one says
            result[key] = nil -- a condition left it out
         end
      elseif KEYS[key] == "scales" and result[key] ~= nil then
         result[key] = check_scales(file, result[key])
      elseif KEYS[key] == "convert" and result[key] ~= nil then
         check_convert(file, result[key])
      elseif result[key] ~= nil then
         check_value(file, key, result[key])
      end
   end
   if result.otherwise and not OTHERWISE[result.otherwise] then
      fail(file, "otherwise", 'otherwise (%s) must be "default", "full" or "error"%s', words.shown(result.otherwise),
         nearest.hint(result.otherwise, nearest.keys(OTHERWISE)))
   end
end

--- Runs a rule file and checks the form of what it returns.
-- @param rules a family's name or a path
-- @param environment of words.environment
-- @param from the rule file that extends this one, if one does
-- @return { path =, text =, result =, at = function(quoted text) -> "file:line" }
function rule_file.load(rules, environment, from)
   local place = from and line_of(from, "%f[%w_]extends%s*=") .. ": extends" or "rules"
   local text, path, found = read(rules, from, place)
   note(path, text, found)
   local file = { text = text, path = path, found = found }
   local result, problem = sandbox.run(text, path, environment)
   if problem then
      check.raise("SCRIPT", problem .. advice.on(problem, text, environment))
   end
   check_table(file, result)
   file.result = result
   function file.key(key)
      return line_of(file, "%f[%w_]" .. key .. "%s*=")
   end
   function file.at(wanted)
      return quoted_at(file, wanted)
   end
   return file
end

return rule_file
