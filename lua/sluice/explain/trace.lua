--- How a parameter came by its destination: renames, the rules tried, the one that matched, pins, and for a full one every
-- reason. It asks the matchers and the resolver that decided; it matches nothing itself.
-- @module sluice.explain.trace

local default = require "sluice.default"
local resolve = require "sluice.resolve"
local rule = require "sluice.rule"
local target = require "sluice.target"

local trace = {}

local FEW = 3
local MOST_SIMPLES = 64

-- ---- rules that did not match ----

local function split(name)
   local list = {}
   for segment in (name .. "."):gmatch("([^.]*)%.") do
      list[#list + 1] = segment
   end
   return list
end

-- How many segments of a simple pattern agree with a name's, from the front or (step -1) from the back, and the first pair
-- that does not: pattern's, name's. Stops at a **.
local function agree(simple, segments, step)
   local i, j = step == 1 and 1 or #simple.path, step == 1 and 1 or #segments
   local count = 0
   while simple.path[i] and segments[j] do
      if simple.kinds[i] == "deep" then
         return count
      elseif not simple.kinds[i] and simple.path[i] ~= segments[j] then
         return count, simple.path[i], segments[j]
      end
      count, i, j = count + 1, i + step, j + step
   end
   return count
end

-- How near a rule that did not match comes to a name, and what keeps them apart.
local function nearness(said, segments)
   local best, why = -1, nil
   for i = 1, math.min(#said.read.simples, MOST_SIMPLES) do
      local simple = said.read.simples[i]
      local front, wanted, found = agree(simple, segments, 1)
      local back, wanted_back, found_back = agree(simple, segments, -1)
      if front + back > best then
         best = front + back
         why = wanted and ("%s is not %s"):format(found, wanted) or wanted_back and ("%s is not %s"):format(found_back, wanted_back)
            or ("it has %d segments, the pattern %d"):format(#segments, #simple.path)
      end
   end
   return best, why
end

-- The rules before number `stop`: all of them, or the nearest few.
local function passed(set, name, stop, all)
   local segments, list = split(name), {}
   for number = 1, stop - 1 do
      local said = set.list[number]
      local near, why = nearness(said, segments)
      list[number] = { number = number, pattern = said.pattern, where = said.place, why = why, near = near }
   end
   if not all and #list > FEW then
      table.sort(list, function(a, b)
         if a.near ~= b.near then
            return a.near > b.near
         end
         return a.number > b.number
      end)
      for i = #list, FEW + 1, -1 do
         list[i] = nil
      end
      table.sort(list, function(a, b)
         return a.number < b.number
      end)
   end
   for _, item in ipairs(list) do
      item.near = nil
   end
   return list
end

-- ---- the rule that did ----

local function captures(matcher, entry, read, name)
   local list = {}
   for i, capture in ipairs(matcher:captures(read, name, entry.bound)) do
      list[i] = { name = capture[1], text = capture[2] }
   end
   return list
end

local function rules_tried(set, param, all)
   local entry = set.rules:find(param.ruled)
   local said = entry and entry.said
   local matched = said and {
      number = said.number, pattern = said.pattern, where = said.place,
      captures = captures(set.rules, entry, said.read, param.ruled),
   }
   local stop = said and said.number or #set.list + 1
   return {
      file = set.path, count = #set.list, tried = math.min(stop, #set.list), matched = matched,
      passed = passed(set, param.ruled, stop, all), otherwise = not said and (set.otherwise or "error") or nil,
   }, entry
end

-- The pins that a `where` adds to a direct parameter.
local function pins_added(set, param)
   local where = set.pins and set.pins:find(param.ruled)
   if not where then
      return nil
   end
   local list = {}
   for i, pin in ipairs((target.pins(where, set.pins, param.ruled))) do
      list[i] = { axis = pin.axis, coordinate = pin.coordinate }
   end
   return { pattern = where.said.pattern, where = where.said.place, pins = list }
end

-- What each live tensor of a rule was called before rename_live.
local function live_renames(set, entry, param)
   local renames = {}
   for i = 1, #entry.said.strips do
      local list = {}
      local live = resolve.live_name(set, entry, i, param, list)
      renames[live] = list[1] and list or nil
   end
   return renames
end

--- Adds to an answer on a parameter: canonical, renames, rules, pins, and to each of its targets the renames of the live name.
-- @param state of explain.lua
-- @param param of resolve.params
-- @param answer with mode and targets
function trace.add(state, param, answer)
   local set = state.context.set
   if not set then
      return
   end
   local renames = {}
   rule.canonical_name(set, param.weight and param.weight.name or param.name, renames)
   answer.canonical, answer.renames = param.canonical, renames
   answer.scale_of = param.weight and param.weight.name
   local entry
   answer.rules, entry = rules_tried(set, param, state.all)
   if entry and answer.mode == "direct" then
      local renamed = live_renames(set, entry, param)
      for _, item in ipairs(answer.targets) do
         item.renames = renamed[item.live]
      end
      answer.pins = pins_added(set, param)
   end
end

-- ---- why not direct ----

-- The first full parameter of the same module, which keeps this one from direct.
local function module_cause(state, param)
   local module = default.module(param.canonical)
   for i, other in ipairs(state.params) do
      if other ~= param and default.module(other.canonical) == module and state.view.mode(i) == "full" then
         local decision = state.view.decision(i)
         return { name = module, cause = other.name, reason = decision.reason, where = decision.where }
      end
   end
end

--- Adds to an answer on a parameter that is full, or would be, why it is not direct: every reason, and the module rule's cause.
function trace.add_reasons(state, param, answer)
   if answer.mode ~= "full" and not param.must_not_be_full then
      return
   end
   answer.why_not_direct = { answer.reason or param.reason }
   if (answer.where or param.where) ~= resolve.DEFAULT or not state.knows_rules then
      return
   end
   local problems = resolve.problems(state.context, param)
   if problems[1] then
      answer.why_not_direct = problems
   else
      answer.module = module_cause(state, param)
   end
end

return trace
