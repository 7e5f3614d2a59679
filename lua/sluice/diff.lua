--- What differs between two plans: parameters that one of them lacks, and what became of the others. Tables in, tables out, which
-- lua/PLAN.md describes.
-- @module sluice.diff

local diff = {}

local MODES = { "direct", "full", "alias", "skip", "unresolved" }

-- What of a parameter is compared, in the order in which it is told. Where a rule stands is not: two files differ in that anyway.
local ASPECTS = { "dtype", "shape", "source", "mode", "destination", "reason", "problem" }

local function text_of(value)
   if type(value) ~= "table" then
      return value
   end
   local items = {}
   for i, item in ipairs(value) do
      items[i] = ("%.0f"):format(item)
   end
   return "[" .. table.concat(items, ", ") .. "]"
end

--- Whether a text is a mode of a parameter.
function diff.is_mode(text)
   for _, mode in ipairs(MODES) do
      if mode == text then
         return true
      end
   end
   return false
end

--- Parameters and bytes of each mode.
-- @param params a list with `mode` and `bytes`
function diff.totals(params)
   local totals = {}
   for _, mode in ipairs(MODES) do
      totals[mode] = { parameters = 0, bytes = 0 }
   end
   for _, param in ipairs(params) do
      local total = totals[param.mode]
      total.parameters, total.bytes = total.parameters + 1, total.bytes + param.bytes
   end
   return totals
end

local function by_name(params)
   local found = {}
   for _, param in ipairs(params) do
      found[param.name] = param
   end
   return found
end

local function changes_of(before, after)
   local list = {}
   for _, key in ipairs(ASPECTS) do
      local from, to = text_of(before[key]), text_of(after[key])
      if from ~= to then
         list[#list + 1] = { what = key, from = from, to = to }
      end
   end
   return list
end

local function summary(side)
   return { title = side.title, trainers = side.trainers, workers = side.workers, parameters = #side.params, totals = diff.totals(side.params),
            problem = side.problem }
end

local function brief(param)
   return { name = param.name, mode = param.mode, bytes = param.bytes, reason = param.reason }
end

--- Compares two plans.
-- @param a { title =, trainers =, workers =, problem =, params = a list of { name, dtype, shape, bytes, source, mode, reason,
-- destination, problem } }
-- @param b the same
-- @return { same =, a =, b =, added =, removed =, changed = { { name, bytes, mode, changes = { { what, from, to } } } }, moved = whether
-- the order of what both have differs }
function diff.compare(a, b)
   local in_a, in_b = by_name(a.params), by_name(b.params)
   local result = { a = summary(a), b = summary(b), added = {}, removed = {}, changed = {}, moved = false }
   local order = {}
   for _, param in ipairs(a.params) do
      if in_b[param.name] then
         order[#order + 1] = param.name
      else
         result.removed[#result.removed + 1] = brief(param)
      end
   end
   local at = 0
   for _, param in ipairs(b.params) do
      local before = in_a[param.name]
      if not before then
         result.added[#result.added + 1] = brief(param)
      else
         at = at + 1
         result.moved = result.moved or order[at] ~= param.name
         local changes = changes_of(before, param)
         if changes[1] then
            result.changed[#result.changed + 1] = { name = param.name, bytes = param.bytes, mode = param.mode, changes = changes }
         end
      end
   end
   result.same = not (result.added[1] or result.removed[1] or result.changed[1] or result.moved) and a.trainers == b.trainers
      and a.workers == b.workers and a.problem == b.problem
   return result
end

--- A name with its numbers as *, so that layers and experts are told once.
function diff.kind(name)
   return (("." .. name .. "."):gsub("%.%d+%f[.]", ".*"):sub(2, -2))
end

--- Items that differ in the numbers of their names only, together.
-- @param list of { name =, bytes = }
-- @param key function(item) -> a text that must be equal, too
-- @return a list of { name = with numbers as *, parameters = how many, bytes =, first = the first item }
function diff.kinds(list, key)
   local groups, found = {}, {}
   for _, item in ipairs(list) do
      local id = diff.kind(item.name) .. "\0" .. (key and key(item) or "")
      local group = found[id]
      if not group then
         group = { name = item.name, parameters = 0, bytes = 0, first = item }
         found[id], groups[#groups + 1] = group, group
      end
      group.parameters, group.bytes = group.parameters + 1, group.bytes + item.bytes
      if group.parameters > 1 then
         group.name = diff.kind(item.name)
      end
   end
   return groups
end

return diff
